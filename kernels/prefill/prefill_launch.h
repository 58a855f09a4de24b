// SPDX-License-Identifier: Apache-2.0
// The launches of the prefill kernel, one translation unit for each operand type.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/prefill/prefill_plan.h"

namespace kvtier::kernels {

// The plan's head_dim is one that is built. `ctas`: at most one for each multiprocessor.
cudaError_t LaunchPrefillBf16(const PrefillPlan& plan, int ctas, cudaStream_t stream);
cudaError_t LaunchPrefillFp16(const PrefillPlan& plan, int ctas, cudaStream_t stream);
cudaError_t LaunchPrefillFp8(const PrefillPlan& plan, int ctas, cudaStream_t stream);

}  // namespace kvtier::kernels
