// SPDX-License-Identifier: Apache-2.0
// Options that take sizes with a unit: "256MiB".
#pragma once

#include <cstdint>
#include <string>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace kvtier {

// Adds an option whose default is what `target` holds. A bare number counts bytes if the option's
// name ends in -bytes, and is refused otherwise.
CLI::Option* AddSizeOption(CLI::App* command, const std::string& name, uint64_t* target,
                           const std::string& description);

}  // namespace kvtier
