// SPDX-License-Identifier: Apache-2.0
// Which of the daemon's devices, by position in the configuration.
#pragma once

#include <cstdint>

#include "base/strong.h"

namespace kvtier {

using DeviceIndex = Strong<struct DeviceIndexTag, uint32_t>;
// So that a block's place in a pool fits into 32 bits; see pool_place.h.
inline constexpr uint32_t kMaxDevices = 16;

}  // namespace kvtier
