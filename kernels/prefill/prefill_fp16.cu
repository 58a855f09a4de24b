// SPDX-License-Identifier: Apache-2.0
#include "kernels/prefill/prefill_kernel.cuh"

namespace kvtier::kernels {

cudaError_t LaunchPrefillFp16(const PrefillPlan& plan, int ctas, cudaStream_t stream) {
  return LaunchHeadDims<__half, false>(plan, ctas, stream);
}

}  // namespace kvtier::kernels
