// SPDX-License-Identifier: Apache-2.0
// The arguments that the host hands to the kernels that write keys and values.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/arithmetic.h"
#include "kernels/common/call.h"
#include "kvtier/kv_write.h"

namespace kvtier::kernels {

// A thread's part of a token, a run, is worked on in pairs of rows: the values and the keys of a
// head, or two queries.
struct WriteShape {
  int threads;  // of a block
  int blocks;   // of a multiprocessor
  int heads;    // of a run of keys and values, a pair each
  int query_pairs;
  // Pairs under way at a time in shared memory; 0: all of a run, in registers.
  int stages;
  int query_stages;
};

// By value, as a kernel parameter.
struct WritePlan {
  kvt_kv_write_params params;
  FastDivide kv_runs;     // of a token; run r has every kv_runs-th head from the r-th on
  FastDivide query_runs;  // of a token; each has neighbouring heads
  uint32_t kv_threads;
  uint32_t query_threads;
  uint32_t kv_blocks;  // those after them have queries
  uint32_t query_blocks;
  uint32_t first_blocks;  // that fit the device at once
  uint32_t rotary_dim;    // 0: no rope
  int32_t lane_shift;     // head_dim / 16 threads to a row
  int32_t page_shift;
  // From a run's row to the one two rows later, in bytes.
  int64_t value_step, key_step, cache_step;
  int64_t query_step, output_step;
};

// Plans a write with checked parameters on a device of `processors` multiprocessors.
[[nodiscard]] WritePlan PlanWrite(const kvt_kv_write_params& params, const WriteShape& shape,
                                  int processors);
// Inputs of a 16-bit type: kBf16 or kFp16.
template <Family kFamily, Operands kOperands>
[[nodiscard]] cudaError_t LaunchKvWrite(const kvt_kv_write_params& params, int processors,
                                        cudaStream_t stream);

}  // namespace kvtier::kernels
