// SPDX-License-Identifier: Apache-2.0
// Which keys a reload takes over.
#pragma once

#include <vector>

#include "daemon/config/config_schema.h"

namespace kvtier {

// Marks those of which no part of the daemon keeps a copy, and that no client was told of: sizes
// and paths are taken at the start, and clients learn of limits on their calls when they connect.
// REQUIRES: `keys` are all keys.
void MarkReloadable(std::vector<ConfigKey>* keys);

}  // namespace kvtier
