// SPDX-License-Identifier: Apache-2.0
// The MLA decode kernel: four producer warps and two consumer warpgroups on each multiprocessor.
// Compiled once for each of Operands (KVT_OPERANDS).

#include <cuda_runtime.h>

#include "kernels/hopper/launch.cuh"
#include "kernels/mla/mla_consumer.cuh"
#include "kernels/mla/mla_producer.cuh"

namespace kvtier::kernels {

constexpr int kMlaProducerRegisters = 40;
constexpr int kMlaConsumerRegisters = 232;

// Works off the block's segments, and merges. Both consumers; they merge in the same code, of which
// there is a lot.
template <typename Output, bool kFp8>
__device__ void Consume(const MlaArguments& arguments, MlaShared& shared, SegmentWalker walker,
                        int warpgroup) {
  const int head_tile = static_cast<int>(blockIdx.x) % arguments.head_tiles;
  MlaConsumer<Output, kFp8> consumer(arguments, shared, threadIdx.x % 128);
  Segment segment;
  while (walker.Next(arguments.step, &segment)) {
    const MlaOutput<Output> output(arguments, segment, head_tile);
    if (warpgroup == 0) {
      consumer.template Work<0>(output, segment);
    } else {
      consumer.template Work<1>(output, segment);
    }
    if (segment.parts == 1) continue;
    // Between segments no warpgroup multiplies with weights.
    auto* const scratch = reinterpret_cast<MergeScratch<kMlaMergeThreads / 32>*>(shared.weights);
    static_assert(sizeof(*scratch) <= sizeof(shared.weights));
    MergeState* const state =
        arguments.merges + segment.sequence * arguments.head_tiles + head_tile;
    MergeCooperatively<KVT_MLA_LATENT_DIM, kMlaMergeThreads, kMlaMeetBarrier>(
        state, &shared.merge, scratch, output, segment.parts, output.Rows(), threadIdx.x,
        walker.AtEnd());
  }
}

template <typename Output, bool kFp8>
__global__ void __launch_bounds__(kMlaThreads, 1)
    MlaKernel(const __grid_constant__ MlaArguments arguments) {
  // Not rounded up at run time: the compiler would no longer know that it is shared memory.
  extern __shared__ __align__(kMlaAtomBytes) char raw_shared[];
  auto& shared = *reinterpret_cast<MlaShared*>(raw_shared);
  const int warpgroup = __shfl_sync(kFullWarp, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) {
    PrefetchTensorMap(arguments.query_map);
    PrefetchTensorMap(arguments.latent_map);
    shared.InitBarriers();
    FenceBarrierInit();
  }
  if (arguments.tables_settled == 0) WaitOnDependentGrids();
  // Meets all threads, so that the barriers are ready after it.
  const SegmentWalker walker =
      PartitionStep(arguments.step, static_cast<int>(blockIdx.x) / arguments.head_tiles,
                    static_cast<int>(gridDim.x) / arguments.head_tiles, &shared.schedule);
  if (warpgroup == 2) {
    DeallocateRegisters<kMlaProducerRegisters>();
    const int thread = static_cast<int>(threadIdx.x) - 2 * 128;
    MlaProducer<kFp8>(arguments, shared, __shfl_sync(kFullWarp, thread / 32, 0), thread % 32)
        .Run(walker, static_cast<int>(blockIdx.x) % arguments.head_tiles);
  } else {
    AllocateRegisters<kMlaConsumerRegisters>();
    WaitOnDependentGrids();
    LaunchDependentGrids();
    Consume<Output, kFp8>(arguments, shared, walker, warpgroup);
  }
}

template <typename Output, bool kFp8>
[[nodiscard]] cudaError_t LaunchTyped(const MlaArguments& arguments, int blocks,
                                      cudaStream_t stream) {
  constexpr int kBytes = sizeof(MlaShared);
  static_assert(kBytes <= kMaxSharedBytes);
  const cudaError_t error = cudaFuncSetAttribute(
      MlaKernel<Output, kFp8>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  return LaunchOverlapped(MlaKernel<Output, kFp8>, blocks, kMlaThreads, kBytes, stream, arguments);
}

template <Operands kOperands>
cudaError_t LaunchMla(kvt_dtype query, const MlaArguments& arguments, int blocks,
                      cudaStream_t stream) {
  if constexpr (kOperands == Operands::kBf16) {
    return LaunchTyped<__nv_bfloat16, false>(arguments, blocks, stream);
  } else if constexpr (kOperands == Operands::kFp16) {
    return LaunchTyped<__half, false>(arguments, blocks, stream);
  } else {
    return query == KVT_BF16 ? LaunchTyped<__nv_bfloat16, true>(arguments, blocks, stream)
                             : LaunchTyped<__half, true>(arguments, blocks, stream);
  }
}

template cudaError_t LaunchMla<Operands::KVT_OPERANDS>(kvt_dtype query,
                                                       const MlaArguments& arguments, int blocks,
                                                       cudaStream_t stream);

}  // namespace kvtier::kernels
