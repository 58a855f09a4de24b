// SPDX-License-Identifier: Apache-2.0
// The merge of kvt_merge_lse for kernels of this library that split their own work.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/arithmetic.h"
#include "kernels/common/call.h"
#include "kvtier/merge_lse.h"

namespace kvtier::kernels {

constexpr int kMergeElements = 4;  // of a row, for each thread

// By value, as a kernel parameter.
struct MergePlan {
  kvt_merge_lse_params params;
  FastDivide chunks_per_row;
  FastDivide heads;
  uint32_t threads;
  const int32_t* first_token;
  const int32_t* token_limit;
};

// REQUIRES: checked parameters.
template <Family kFamily>
[[nodiscard]] cudaError_t LaunchMerge(const MergePlan& plan, cudaStream_t stream);

// `first_token` and `token_limit` (device memory, or null): tokens before *first_token, and those
// at or beyond *token_limit, are left alone.
kvt_kernel_status LaunchMergeLse(const kvt_merge_lse_params& params, const int32_t* first_token,
                                 const int32_t* token_limit, cudaStream_t stream);

}  // namespace kvtier::kernels
