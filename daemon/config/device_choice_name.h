// SPDX-License-Identifier: Apache-2.0
// What `pool.device` calls a device.
#pragma once

#include <string>

#include "daemon/config/config.h"

namespace kvtier {

// "auto", "host", "cuda:3".
[[nodiscard]] std::string DeviceChoiceName(DeviceChoice choice);

// The N of cuda:N. REQUIRES: `choice` is a GPU's.
[[nodiscard]] int OrdinalOf(DeviceChoice choice);

}  // namespace kvtier
