// SPDX-License-Identifier: Apache-2.0
// The keys of [cold].
#pragma once

#include <vector>

#include "daemon/config/config_schema.h"

namespace kvtier {

[[nodiscard]] std::vector<ConfigKey> ColdKeys();

}  // namespace kvtier
