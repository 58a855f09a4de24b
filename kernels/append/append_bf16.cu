#include "kernels/append/append_kernel.cuh"

namespace kvtier::kernels {

cudaError_t LaunchAppendBf16(const AppendPlan& plan, int ctas, cudaStream_t stream) {
  return LaunchHeadDims<__nv_bfloat16, false>(plan, ctas, stream);
}

}  // namespace kvtier::kernels
