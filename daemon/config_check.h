// What single keys cannot say: whether the values of a configuration go together.
#pragma once

#include "base/result.h"
#include "daemon/config.h"

namespace kvtier {

// Errors: kInvalidArgument "config_conflict"; the context names the keys.
[[nodiscard]] Status CheckConfig(const Config& config);

}  // namespace kvtier
