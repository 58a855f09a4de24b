// SPDX-License-Identifier: Apache-2.0
// What the blocks of a launch agree by on who merges.
#pragma once

#include <cstdint>

namespace kvtier::kernels {

// In the workspace, one for each set of rows; zero between launches.
struct MergeState {
  int32_t arrived;  // parts that are written
  // Runs of rows that blocks have claimed, and kMergeDeparture for each block that left without.
  int32_t claims;
};

constexpr int32_t kMergeDeparture = 1 << 16;  // more than there are runs and parts

}  // namespace kvtier::kernels
