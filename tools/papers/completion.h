// SPDX-License-Identifier: Apache-2.0
// Completion of command lines, for three shells.
#pragma once

#include <string>

#include "tools/papers/command_table.h"

namespace kvtier {

[[nodiscard]] std::string BashCompletion(const CommandRow& table);
[[nodiscard]] std::string ZshCompletion(const CommandRow& table);
[[nodiscard]] std::string FishCompletion(const CommandRow& table);

}  // namespace kvtier
