// The MLA decode kernel: a producer warp and two consumer warpgroups on each multiprocessor.
#pragma once

#include <cuda_runtime.h>

#include "kernels/blocks/overlapped_launch.cuh"
#include "kernels/mla/mla_consumer.cuh"
#include "kernels/mla/mla_producer.cuh"

namespace kvtier::kernels {

constexpr int kMlaMergeBarrier = 1;
constexpr int kMlaProducerRegisters = 40;
constexpr int kMlaConsumerRegisters = 232;

// Works off the block's segments with a consumer, and merges. Both consumers, each its own.
template <typename Element, typename Consumer>
__device__ void Consume(const MlaArguments& arguments, MlaShared& shared, SegmentWalker walker,
                        Consumer consumer) {
  const int head_tile = static_cast<int>(blockIdx.x) % arguments.head_tiles;
  Segment segment;
  while (walker.Next(arguments.step, &segment)) {
    const MlaOutput<Element> output(arguments, segment, head_tile);
    consumer.Work(output, segment);
    if (segment.parts == 1) continue;
    // Between segments nobody multiplies with weights.
    auto* const scratch = reinterpret_cast<MergeScratch<kMlaMergeThreads / 32>*>(shared.weights);
    static_assert(sizeof(*scratch) <= sizeof(shared.weights));
    MergeState* const state =
        arguments.merges + segment.sequence * arguments.head_tiles + head_tile;
    MergeTogether<KVT_MLA_LATENT_DIM, kMlaMergeThreads, kMlaMergeBarrier>(
        state, &shared.merge, scratch, output, segment.parts, output.Rows(), threadIdx.x,
        walker.AtEnd());
  }
}

template <typename Element>
__global__ void __launch_bounds__(kMlaThreads, 1)
    MlaKernel(const __grid_constant__ MlaArguments arguments) {
  extern __shared__ char raw_shared[];
  constexpr uintptr_t kAlignment = kMlaAtomBytes - 1;
  auto& shared = *reinterpret_cast<MlaShared*>(
      (reinterpret_cast<uintptr_t>(raw_shared) + kAlignment) & ~kAlignment);
  const int warpgroup = __shfl_sync(kFullWarp, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) {
    PrefetchTensorMap(arguments.query_map);
    PrefetchTensorMap(arguments.left_map);
    PrefetchTensorMap(arguments.right_map);
    shared.InitBarriers();
    FenceBarrierInit();
  }
  if (arguments.tables_settled == 0) WaitForEarlierGrids();
  // Meets all threads, so that the barriers are ready after it.
  const SegmentWalker walker =
      ShareOut(arguments.step, static_cast<int>(blockIdx.x) / arguments.head_tiles,
               static_cast<int>(gridDim.x) / arguments.head_tiles, &shared.schedule);
  if (warpgroup == 2) {
    GiveRegisters<kMlaProducerRegisters>();
    if (threadIdx.x < 2 * 128 + 32) {
      const int head_tile = static_cast<int>(blockIdx.x) % arguments.head_tiles;
      MlaProducer(arguments, shared, threadIdx.x % 32).Run(walker, head_tile);
    }
  } else {
    TakeRegisters<kMlaConsumerRegisters>();
    WaitForEarlierGrids();
    LetLaterGridsStart();
    if (warpgroup == 0) {
      Consume<Element>(arguments, shared, walker,
                       MlaLeftConsumer<Element>(arguments, shared, threadIdx.x));
    } else {
      Consume<Element>(
          arguments, shared, walker,
          MlaRightConsumer<Element>(shared, threadIdx.x - 128, arguments.head_tiles > 1));
    }
  }
}

template <typename Element>
[[nodiscard]] cudaError_t LaunchMla(const MlaArguments& arguments, int blocks,
                                    cudaStream_t stream) {
  constexpr int kBytes = sizeof(MlaShared) + kMlaAtomBytes;
  static_assert(kBytes <= 227 * 1024);
  const cudaError_t error =
      cudaFuncSetAttribute(MlaKernel<Element>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  return LaunchOverlapped(MlaKernel<Element>, blocks, kMlaThreads, kBytes, stream, arguments);
}

}  // namespace kvtier::kernels
