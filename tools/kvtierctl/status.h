// SPDX-License-Identifier: Apache-2.0
// kvtierctl status: the daemon's status document for people. The command itself is declared in
// command.h; `top` shows the same text again and again.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "tools/support/terminal.h"

namespace kvtier {

// At most 80 columns. Members that an older daemon does not send are shown as 0 or left out.
// Errors: kCorrupt "bad_status" when it is not a status document.
[[nodiscard]] Result<std::string> FormatStatus(std::string_view status_json,
                                               const Terminal& terminal);

}  // namespace kvtier
