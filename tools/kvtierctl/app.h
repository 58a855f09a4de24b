// The table of kvtierctl's commands: the program parses with it, and its man page and completions
// are written from it.
#pragma once

#include <memory>

#include "tools/kvtierctl/command.h"

namespace kvtier {

// `context` outlives the table; parsing fills it and runs the command.
[[nodiscard]] std::unique_ptr<CLI::App> MakeKvtierctlApp(CommandContext* context);

}  // namespace kvtier
