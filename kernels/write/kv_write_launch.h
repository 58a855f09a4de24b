// What the host hands to the kernels that write keys and values.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/blocks/fast_divide.h"
#include "kvtier/kv_write.h"

namespace kvtier::kernels {

// By value, as a kernel parameter.
struct WritePlan {
  kvt_kv_write_params params;
  FastDivide units;  // of a token: runs of KV heads, then runs of query heads
  uint32_t kv_runs;  // a run: every kv_runs-th head, its values and its keys
  uint32_t threads;
  uint32_t first_blocks;  // that fit the device at once
  uint32_t rotary_dim;    // 0: no rope
  int32_t lane_shift;     // head_dim / 16 threads to a row
  int32_t page_shift;
};

// Of checked parameters, with so many heads' keys and values to a thread.
[[nodiscard]] WritePlan PlanHeads(const kvt_kv_write_params& params, int heads, int first_blocks);

// Of checked parameters, on a device of so many multiprocessors.
[[nodiscard]] cudaError_t LaunchKvWriteBf16(const kvt_kv_write_params& params, int processors,
                                            cudaStream_t stream);
[[nodiscard]] cudaError_t LaunchKvWriteFp16(const kvt_kv_write_params& params, int processors,
                                            cudaStream_t stream);

}  // namespace kvtier::kernels
