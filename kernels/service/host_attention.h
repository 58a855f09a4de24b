// SPDX-License-Identifier: Apache-2.0
// Attention over a paged KV cache on the CPU, fast enough to serve: fp32 sums, vectorised, over the
// same strided layouts as the kernels. What it gives is judged by AttentionReference.
//
// All pointers are host pointers. Any thread may call; nothing is kept between calls.
#pragma once

#include <atomic>

#include "kernels/reference/attention_reference.h"

namespace kvtier::kernels {

// `problem` as for AttentionReference, without sinks, its scales by head at most (other strides 0);
// its caches and queries may also be KVT_FP32, pages of any size, heads of any size.
struct HostAttention {
  ReferenceAttention problem;
  void* output = nullptr;  // [rows, q_heads, head_dim] of problem.query_dtype, contiguous
  float* lse = nullptr;    // [rows, q_heads], contiguous; null: not wanted
};

// False if `cancelled` became true on the way (looked at every few hundred microseconds); what was
// written then is unspecified. `cancelled` may be null.
[[nodiscard]] bool AttendOnHost(const HostAttention& attention,
                                const std::atomic<bool>* cancelled = nullptr);

}  // namespace kvtier::kernels
