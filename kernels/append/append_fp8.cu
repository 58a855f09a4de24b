#include "kernels/append/append_kernel.cuh"

namespace kvtier::kernels {

cudaError_t LaunchAppendFp8(const AppendPlan& plan, int ctas, cudaStream_t stream) {
  return LaunchHeadDims<__half, true>(plan, ctas, stream);
}

}  // namespace kvtier::kernels
