// SPDX-License-Identifier: Apache-2.0
// Whether engines agree with the reference, on memory of their devices in the pool's layout.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "daemon/attention/attention_engine.h"
#include "gpu/device.h"

namespace kvtier {

// The result for one engine. `cases` of 0 with an empty failure is lack of memory.
struct AttentionSelfTest {
  uint32_t cases = 0;         // that were computed
  std::string failure;        // the first; empty: all were right
  double worst_error = 0;     // the largest over all cases, as a share of the allowed one
  bool device_lost = false;   // see kDeviceLost
  bool lacks_memory = false;  // so that cases were left out, and another time may be better
};

// A trial takes so much memory of the engine's device.
inline constexpr uint64_t kSelfTestBytes = uint64_t{8} << 20;

// An engine, and memory of its device to compute on: null if that could not be had. Both borrowed.
struct AttentionTrial {
  AttentionEngine* engine = nullptr;
  DevicePool* memory = nullptr;
};

// One case for each type of cache, head size and group size that the engine has, for decode and for
// append, and one for a long prompt where GPUs have a kernel for it: keys and values in shuffled
// blocks of a pool in which all else is NaN are attended to, and the pool must stay as it is. So
// every kernel has been loaded and has run once when this returns, on every device, but for that of
// tall tiles, to which some 1,600 query tokens over an fp8 cache lead. Blocks, some hundred
// milliseconds, nearly all of it for the expected results, which are computed once for all devices;
// those are tried side by side. The engines must not be in use. Any thread. One result for each of
// `trials`.
[[nodiscard]] std::vector<AttentionSelfTest> TestAttention(std::span<const AttentionTrial> trials);

}  // namespace kvtier
