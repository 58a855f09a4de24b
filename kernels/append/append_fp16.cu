#include "kernels/append/append_kernel.cuh"

namespace kvtier::kernels {

cudaError_t LaunchAppendFp16(const AppendPlan& plan, int ctas, cudaStream_t stream) {
  return LaunchHeadDims<__half, false>(plan, ctas, stream);
}

}  // namespace kvtier::kernels
