// SPDX-License-Identifier: Apache-2.0
// Prefill for devices that have no wgmma: what its kernel is given, and its launch. Simple rather
// than fast: one kernel for queries of every length, whose keys are not split.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/call.h"
#include "kvtier/prefill.h"

namespace kvtier::kernels {

// Rows of queries that a block works on: (token, head of the group) pairs, token-major.
inline constexpr int kAmpereRows = 64;

// By value, as a kernel parameter.
struct AmperePrefillPlan {
  kvt_prefill_params params;
  int32_t group;             // query heads for each KV head
  int32_t page_shift;        // log2(page_tokens)
  int32_t scales_per_token;  // fp8: scales differ along tokens, so they cannot wait for the end
  int32_t to_fp32;           // results leave as fp32
};

// REQUIRES: checked parameters. `blocks`: at least the tiles of kAmpereRows rows that the step's
// sequences and KV heads have; those beyond find nothing to do.
template <Operands kOperands>
[[nodiscard]] cudaError_t LaunchAmperePrefill(const AmperePrefillPlan& plan, int64_t blocks,
                                              cudaStream_t stream);

}  // namespace kvtier::kernels
