// SPDX-License-Identifier: Apache-2.0
#include "kernels/mla/mla_kernel.cuh"

namespace kvtier::kernels {

cudaError_t LaunchMlaBf16(const MlaArguments& arguments, int blocks, cudaStream_t stream) {
  return LaunchMla<__nv_bfloat16, false>(arguments, blocks, stream);
}

}  // namespace kvtier::kernels
