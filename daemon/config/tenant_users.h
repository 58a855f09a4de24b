// SPDX-License-Identifier: Apache-2.0
// Users of the configuration, from names to numbers.
#pragma once

#include "base/result.h"
#include "daemon/config/config.h"

namespace kvtier {

// Sets `user_uids` of every tenant. Asks the machine's user database, which may take a while.
// Errors: kInvalidArgument "config_unknown_user", naming the place.
[[nodiscard]] Status LookUpUsers(Config* config);

}  // namespace kvtier
