// SPDX-License-Identifier: Apache-2.0
// The prefill kernel for long queries: persistent CTAs of one producer warpgroup and two or three
// consumer warpgroups. Compiled once for each of Operands (KVT_OPERANDS).

#include <cuda_runtime.h>

#include "kernels/hopper/launch.cuh"
#include "kernels/prefill/prefill.h"
#include "kernels/prefill/prefill_consumer.cuh"
#include "kernels/prefill/prefill_producer.cuh"

namespace kvtier::kernels {

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1)
    PrefillKernel(const __grid_constant__ PrefillPlan plan) {
  extern __shared__ __align__(kAtomBytes) char raw_shared[];
  auto& shared = *reinterpret_cast<PrefillShared<Traits>*>(raw_shared);
  // From lane 0, so that the compiler knows it is the same for the whole warp.
  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) {
    PrefetchTensorMap(plan.key_map);
    PrefetchTensorMap(plan.value_map);
    shared.InitBarriers(plan.scales_per_token != 0);
    FenceBarrierInit();
  }
  __syncthreads();
  if (plan.tables_first == 0) {
    WaitOnDependentGrids();
    LaunchDependentGrids();
  }
  if (warpgroup == 0) {
    DeallocateRegisters<Traits::kRegistersGiven>();
    if (threadIdx.x < 32) {
      TileCopier<Traits>(plan, shared, threadIdx.x).Run();
      if (plan.tables_first != 0) WaitOnDependentGrids();
      if (threadIdx.x == 0) ResetCounters(*plan.counters);
    } else if (Traits::kCopierWarps > 1 && threadIdx.x < 64) {
      TileCopier<Traits>(plan, shared, threadIdx.x % 32).RunValues();
    } else {
      TileLoader<Traits>(plan, shared, threadIdx.x - 32 * Traits::kCopierWarps).Run();
    }
  } else {
    AllocateRegisters<Traits::kRegistersTaken>();
    if (plan.tables_first != 0) {
      WaitOnDependentGrids();
      LaunchDependentGrids();
    }
    TileConsumer<Traits>(plan, shared, warpgroup - 1, threadIdx.x % 128).Run();
  }
}

template <typename Traits>
cudaError_t LaunchTraits(const PrefillPlan& plan, int ctas, cudaStream_t stream) {
  constexpr int kBytes = sizeof(PrefillShared<Traits>);
  static_assert(kBytes <= kMaxSharedBytes);
  const cudaError_t error = cudaFuncSetAttribute(
      PrefillKernel<Traits>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  return LaunchOverlapped(PrefillKernel<Traits>, ctas, Traits::kThreads, kBytes, stream, plan);
}

// For every head size that is built.
template <Operands kOperands>
cudaError_t LaunchPrefill(const PrefillPlan& plan, int ctas, cudaStream_t stream) {
  using Element = std::conditional_t<kOperands == Operands::kBf16, __nv_bfloat16, __half>;
  constexpr bool kFp8 = kOperands == Operands::kFp8;
  switch (plan.params.kv.head_dim) {
    case 64:
      return LaunchTraits<PrefillTraits<Element, kFp8, 64, kTileRows>>(plan, ctas, stream);
    case 128:
      if constexpr (kFp8) {
        if (plan.tile_rows == kTallTileRows) {
          return LaunchTraits<PrefillTraits<Element, kFp8, 128, kTallTileRows>>(plan, ctas, stream);
        }
      }
      return LaunchTraits<PrefillTraits<Element, kFp8, 128, kTileRows>>(plan, ctas, stream);
    default:
      return LaunchTraits<PrefillTraits<Element, kFp8, 256, kTileRows>>(plan, ctas, stream);
  }
}

template cudaError_t LaunchPrefill<Operands::KVT_OPERANDS>(const PrefillPlan& plan, int ctas,
                                                           cudaStream_t stream);

}  // namespace kvtier::kernels
