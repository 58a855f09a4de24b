// SPDX-License-Identifier: Apache-2.0
// What single keys cannot say: whether the values of a configuration go together.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "daemon/config/config.h"

namespace kvtier {

// Errors: kInvalidArgument "config_conflict"; the context names the place, the keys and the way
// out.
[[nodiscard]] Status CheckConfig(const Config& config);

// Where `key` ("section.name") was given, for complaints about it; "(default)" if it was not.
[[nodiscard]] std::string PlaceOfKey(const Config& config, std::string_view key);

}  // namespace kvtier
