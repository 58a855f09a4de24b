// SPDX-License-Identifier: Apache-2.0
// kvtierctl status: the daemon's status document for people. The command itself is declared in
// command.h; `top` shows the same text again and again. Include from .cc files only.
#pragma once

#include <string>

#include "tools/support/json_view.h"
#include "tools/support/terminal.h"

namespace kvtier {

// At most 80 columns. Members that an older daemon does not send are shown as 0 or left out.
[[nodiscard]] std::string FormatStatus(JsonView status, const Terminal& terminal);

}  // namespace kvtier
