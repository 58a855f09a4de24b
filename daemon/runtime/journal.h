// SPDX-License-Identifier: Apache-2.0
// The log's way into systemd's journal, where every message keeps its level and its id as fields.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "daemon/config/config.h"

namespace kvtier {

// Whether standard error is connected to the journal (systemd tells in JOURNAL_STREAM).
[[nodiscard]] bool StandardErrorIsJournal();

// The fields of one entry, "NAME=value": MESSAGE, PRIORITY (as syslog's), KVTIER_ID and
// SYSLOG_IDENTIFIER.
[[nodiscard]] std::vector<std::string> JournalFields(LogLevel level, std::string_view id,
                                                     std::string_view message);

// Any thread. False if the journal cannot be reached.
[[nodiscard]] bool SendToJournal(const std::vector<std::string>& fields);

}  // namespace kvtier
