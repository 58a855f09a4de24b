// SPDX-License-Identifier: Apache-2.0
#include "kernels/mla/mla_kernel.cuh"

namespace kvtier::kernels {

cudaError_t LaunchMlaFp8(kvt_dtype query, const MlaArguments& arguments, int blocks,
                         cudaStream_t stream) {
  return query == KVT_BF16 ? LaunchMla<__nv_bfloat16, true>(arguments, blocks, stream)
                           : LaunchMla<__half, true>(arguments, blocks, stream);
}

}  // namespace kvtier::kernels
