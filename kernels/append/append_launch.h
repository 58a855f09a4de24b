// The launches of the append kernel, one translation unit for each operand type.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/append/append_plan.h"

namespace kvtier::kernels {

// The plan's head_dim is one that is built. `ctas`: at most one for each multiprocessor.
cudaError_t LaunchAppendBf16(const AppendPlan& plan, int ctas, cudaStream_t stream);
cudaError_t LaunchAppendFp16(const AppendPlan& plan, int ctas, cudaStream_t stream);
cudaError_t LaunchAppendFp8(const AppendPlan& plan, int ctas, cudaStream_t stream);

}  // namespace kvtier::kernels
