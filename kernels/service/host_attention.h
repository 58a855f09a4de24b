// SPDX-License-Identifier: Apache-2.0
// Attention over a paged KV cache on the CPU, fast enough to serve: fp32 sums, vectorised, over the
// same strided layouts as the kernels. AttentionReference judges its results.
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

// Returns false if `cancelled` became true on the way (it is read every few hundred microseconds);
// the output is then unspecified. `cancelled` may be null.
[[nodiscard]] bool AttendOnHost(const HostAttention& attention,
                                const std::atomic<bool>* cancelled = nullptr);

// About as many nanoseconds as one core takes for it.
[[nodiscard]] double HostAttentionNs(const ReferenceAttention& problem);

}  // namespace kvtier::kernels
