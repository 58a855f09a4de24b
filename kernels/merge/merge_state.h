// What the blocks of a launch agree by on who merges.
#pragma once

#include <cstdint>

namespace kvtier::kernels {

// In the workspace, one for each set of rows; zero between launches.
struct MergeState {
  int32_t arrived;   // parts that are written
  int32_t claimed;   // runs of rows that someone merges
  int32_t departed;  // blocks that are done with the set
};

}  // namespace kvtier::kernels
