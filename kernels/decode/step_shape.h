// SPDX-License-Identifier: Apache-2.0
// What the sharing out of a step's work needs to know of the step.
#pragma once

#include <cstdint>

namespace kvtier::kernels {

// By value, as a part of a kernel's parameter. A pair is a sequence and one of its `kv_heads` KV
// heads; a unit is 1 << unit_shift tokens of a pair.
struct StepShape {
  const int32_t* kv_lengths;  // on the device
  int32_t sequences;
  int32_t max_kv_length;
  int32_t kv_heads;
  int32_t window_tokens;  // 0: all
  int32_t split_tokens;   // 0: equal chunks; else cuts at its multiples and nowhere else
  int32_t unit_shift;
};

}  // namespace kvtier::kernels
