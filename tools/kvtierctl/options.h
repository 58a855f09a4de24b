// SPDX-License-Identifier: Apache-2.0
// Options that several commands take: sizes with a unit, and whose pool is meant.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "tools/kvtierctl/command.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace kvtier {

// Adds an option whose default is what `target` holds. A bare number counts bytes if the option's
// name ends in -bytes, and is refused otherwise.
CLI::Option* AddSizeOption(CLI::App* command, const std::string& name, uint64_t* target,
                           const std::string& description);

// ---- `--device`: where a private daemon has its pool, or which of a running daemon's is used ----

// Takes "host", "all" or "cuda:N". `target` stays empty if it is not given.
CLI::Option* AddDeviceOption(CLI::App* command, std::string* target,
                             const std::string& description);

// The position of that device among the running daemon's; 0 for an empty name, without asking.
// Errors: kNotFound "no_such_device", naming those that there are; those of asking.
[[nodiscard]] Result<uint32_t> FindDevice(const CommandContext& context, const std::string& name);

}  // namespace kvtier
