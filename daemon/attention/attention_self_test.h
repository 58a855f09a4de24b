// Whether an engine computes what the reference says, on memory of its device in the pool's layout.
#pragma once

#include <cstdint>
#include <string>

#include "daemon/attention/attention_engine.h"
#include "gpu/device.h"

namespace kvtier {

struct AttentionSelfTest {
  uint32_t cases = 0;        // that were computed
  std::string failure;       // the first; empty: all were right
  double worst_error = 0;    // the largest over all cases, as a share of what was allowed
  bool device_lost = false;  // see kDeviceLost
};

// One case for each type of cache, head size and group size that the engine has, for decode and for
// append: keys and values are written by the engine into shuffled blocks of a pool in which all
// else is NaN, compared with the reference's bytes, and attended to. So every kernel has been
// loaded and has run once when this returns. Blocks, some hundred milliseconds on a GPU, while
// threads compute what is expected. The engine must not be in use.
[[nodiscard]] AttentionSelfTest TestAttention(AttentionEngine* engine, Device* device);

}  // namespace kvtier
