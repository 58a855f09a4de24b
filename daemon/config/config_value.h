// SPDX-License-Identifier: Apache-2.0
// Single configuration values: from TOML, to text, and what is allowed.
#pragma once

#include <string>

#include "base/result.h"
#include "daemon/config/config_schema.h"
#include "daemon/config/toml_document.h"

namespace kvtier {

// Sets `key` in `config`. Errors: kInvalidArgument "config_wrong_type" or "config_out_of_range";
// the context says what is allowed, but not where the value stood.
[[nodiscard]] Status AssignConfigValue(const ConfigKey& key, const TomlValue& value,
                                       Config* config);

// The value of `key` as it would be written in the file.
[[nodiscard]] std::string FormatConfigValue(const ConfigKey& key, const Config& config);

// For people: `a size with a unit, "64KiB" to "1GiB"`.
[[nodiscard]] std::string DescribeAllowed(const ConfigKey& key);

// "256MiB": the largest binary unit that expresses `bytes` exactly.
[[nodiscard]] std::string FormatExactByteSize(uint64_t bytes);

}  // namespace kvtier
