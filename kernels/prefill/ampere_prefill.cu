// SPDX-License-Identifier: Apache-2.0
// Prefill attention by mma.sync: a block of four warps for each tile of 64 rows. Compiled once for
// each of Operands (KVT_OPERANDS).
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/hopper/launch.cuh"
#include "kernels/prefill/ampere_rows.cuh"

namespace kvtier::kernels {

template <typename Traits>
__global__ void __launch_bounds__(kAmpereThreads)
    AmperePrefillKernel(const __grid_constant__ AmperePrefillPlan plan) {
  extern __shared__ __align__(128) char raw_shared[];
  const uint32_t shared = SharedAddress(raw_shared);
  const PrefillItem item = FindAmpereItem(plan, blockIdx.x);
  if (!item.valid) return;
  const KeySpan span = SpanOfKeys(plan, item);
  const AmpereKv<Traits> kv(plan, item, span, shared);
  AmpereRows<Traits> rows(plan, item);
  LoadQueries<Traits>(plan, item, shared);
  kv.Queue(span.begin, 0);
  int stage = 0;
  for (int32_t first = span.begin; first < span.end; first += kAmpereKeys) {
    kv.Queue(first + kAmpereKeys, 1 - stage);
    WaitForCopies<1>();
    __syncthreads();  // all threads' copies have come
    rows.Process(shared, kv, stage, first);
    __syncthreads();  // the stage has been read
    stage = 1 - stage;
  }
  WaitForCopies<0>();
  rows.Write();
}

template <typename Traits>
[[nodiscard]] cudaError_t Launch(const AmperePrefillPlan& plan, int64_t blocks,
                                 cudaStream_t stream) {
  const auto kernel = AmperePrefillKernel<Traits>;
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Traits::kSharedBytes);
  if (error != cudaSuccess) return error;
  return LaunchOverlapped<Family::kAmpere>(kernel, static_cast<unsigned>(blocks), kAmpereThreads,
                                           Traits::kSharedBytes, stream, plan);
}

template <Operands kOperands>
cudaError_t LaunchAmperePrefill(const AmperePrefillPlan& plan, int64_t blocks,
                                cudaStream_t stream) {
  switch (plan.params.kv.head_dim) {
    case 64:
      return Launch<AmpereTraits<kOperands, 64>>(plan, blocks, stream);
    case 128:
      return Launch<AmpereTraits<kOperands, 128>>(plan, blocks, stream);
    default:
      return Launch<AmpereTraits<kOperands, 256>>(plan, blocks, stream);
  }
}

template cudaError_t LaunchAmperePrefill<Operands::KVT_OPERANDS>(const AmperePrefillPlan& plan,
                                                                 int64_t blocks,
                                                                 cudaStream_t stream);

}  // namespace kvtier::kernels
