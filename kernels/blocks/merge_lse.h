// SPDX-License-Identifier: Apache-2.0
// The merge of kvt_merge_lse for kernels of this library that split their own work.
#pragma once

#include <cuda_runtime_api.h>

#include "kvtier/block_ops.h"

namespace kvtier::kernels {

// `token_limit` (device memory, or null): tokens at or beyond *token_limit are left alone.
kvt_kernel_status LaunchMergeLse(const kvt_merge_lse_params& params, const int32_t* token_limit,
                                 cudaStream_t stream);

}  // namespace kvtier::kernels
