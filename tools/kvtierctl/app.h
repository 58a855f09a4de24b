// SPDX-License-Identifier: Apache-2.0
// The table of kvtierctl's commands: the program parses with it, and its man page and completions
// are written from it.
#pragma once

#include <memory>

#include "tools/kvtierctl/command.h"

namespace kvtier {

// `context` outlives the table; parsing fills it and runs the command.
[[nodiscard]] std::unique_ptr<CLI::App> MakeKvtierctlApp(CommandContext* context);

// What is wrong with the command's name, after parsing has failed; empty if it is something else.
[[nodiscard]] std::string WrongCommand(const CLI::App& app);

}  // namespace kvtier
