// SPDX-License-Identifier: Apache-2.0
// Reads the daemon's configuration: a file, and settings that override it.
//
// Reading is strict: an unknown section, key or value is an error that says where it stands, which
// ones are allowed, and which was probably meant.
//
// Any thread: reading has no state of its own. It may block for as long as the file system and, for
// the users of tenants, the machine's user database take.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "daemon/config/config.h"

namespace kvtier {

// A configuration file longer than this is certainly something else.
inline constexpr size_t kMaxConfigFileBytes = 1 << 20;

// Parses and checks `text`. `source` (the file's path) is named in errors, whose context is
// "source:line:column: message". Then applies `overrides`, each "section.key=value"; a value that
// is not TOML stands for itself as a string ("pool.bytes=256MiB"). Errors: kInvalidArgument with a
// reason that begins with "config_".
[[nodiscard]] Result<Config> ParseConfig(std::string_view text, std::string_view source,
                                         const std::vector<std::string>& overrides);

// The same for a file; an empty `path` means the defaults. Errors: also kIoError
// "config_unreadable".
[[nodiscard]] Result<Config> LoadConfig(const std::string& path,
                                        const std::vector<std::string>& overrides);

}  // namespace kvtier
