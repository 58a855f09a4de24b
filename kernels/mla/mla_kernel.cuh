// The MLA decode kernel: a producer warp, or a widening warpgroup over an fp8 latent cache, and two
// consumer warpgroups on each multiprocessor.
#pragma once

#include <cuda_runtime.h>

#include "kernels/blocks/overlapped_launch.cuh"
#include "kernels/mla/mla_consumer.cuh"
#include "kernels/mla/mla_producer.cuh"
#include "kernels/mla/mla_widener.cuh"

namespace kvtier::kernels {

constexpr int kMlaMergeBarrier = 1;
template <bool kFp8>
constexpr int kMlaProducerRegisters = kFp8 ? 56 : 40;
template <bool kFp8>
constexpr int kMlaConsumerRegisters = kFp8 ? 224 : 232;

// Works off the block's segments, and merges. Both consumers, `warpgroup` 0 the left one; they
// merge in the same code, of which there is a lot.
template <typename Traits>
__device__ void Consume(const MlaArguments& arguments, MlaShared<Traits>& shared,
                        SegmentWalker walker, int warpgroup) {
  const int head_tile = static_cast<int>(blockIdx.x) % arguments.head_tiles;
  // Over one right stage the left consumer's next scores wait for the right one.
  const bool waits = Traits::kRightStages > 1 && arguments.head_tiles > 1;
  MlaLeftConsumer<Traits> left(arguments, shared, threadIdx.x % 128);
  MlaRightConsumer<Traits> right(shared, threadIdx.x % 128, waits);
  Segment segment;
  while (walker.Next(arguments.step, &segment)) {
    const MlaOutput<typename Traits::Output> output(arguments, segment, head_tile);
    if (warpgroup == 0) {
      left.Work(output, segment);
    } else {
      right.Work(output, segment);
    }
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

template <typename Traits>
__global__ void __launch_bounds__(kMlaThreads, 1)
    MlaKernel(const __grid_constant__ MlaArguments arguments) {
  extern __shared__ __align__(kMlaAtomBytes) char raw_shared[];
  auto& shared = *reinterpret_cast<MlaShared<Traits>*>(raw_shared);
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
  const int head_tile = static_cast<int>(blockIdx.x) % arguments.head_tiles;
  if (warpgroup == 2) {
    GiveRegisters<kMlaProducerRegisters<Traits::kFp8>>();
    const int thread = static_cast<int>(threadIdx.x) - 2 * 128;
    if constexpr (Traits::kFp8) {
      MlaWidener<Traits>(arguments, shared, thread, head_tile).Run(walker);
    } else if (thread < 32) {
      MlaProducer<Traits>(arguments, shared, thread).Run(walker, head_tile);
    }
  } else {
    TakeRegisters<kMlaConsumerRegisters<Traits::kFp8>>();
    WaitForEarlierGrids();
    LetLaterGridsStart();
    Consume(arguments, shared, walker, warpgroup);
  }
}

template <typename Traits>
[[nodiscard]] cudaError_t LaunchMla(const MlaArguments& arguments, int blocks,
                                    cudaStream_t stream) {
  constexpr int kBytes = sizeof(MlaShared<Traits>);
  static_assert(kBytes <= 227 * 1024);
  const cudaError_t error =
      cudaFuncSetAttribute(MlaKernel<Traits>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  return LaunchOverlapped(MlaKernel<Traits>, blocks, kMlaThreads, kBytes, stream, arguments);
}

}  // namespace kvtier::kernels
