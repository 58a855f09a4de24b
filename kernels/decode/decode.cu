// SPDX-License-Identifier: Apache-2.0
// The decode kernel: schedule, stream, merge. Compiled once for each Family (KVT_FAMILY) and each
// of Operands (KVT_OPERANDS).
#include "kernels/decode/part_merge.cuh"
#include "kernels/hopper/launch.cuh"

namespace kvtier::kernels {

// Brings the arguments into the constant cache, a value of each of its 64-byte lines, while the
// previous launch still runs.
__device__ inline void PrefetchArguments(const DecodeArguments& arguments) {
  const kvt_decode_params& params = arguments.params;
  asm volatile("" ::"l"(params.query), "l"(params.output_head_stride), "l"(params.kv.token_stride),
               "l"(params.kv.value_scales.head_stride), "f"(params.softmax_scale),
               "l"(arguments.step.kv_lengths), "l"(arguments.token_stride_bytes),
               "l"(arguments.workspace.parts));
}

// Shared memory: all warps' slices, the block's sums, all warps' scales, all warps' queries.
template <typename Traits>
__device__ WarpRing RingOf(uint32_t shared) {
  constexpr uint32_t kSums = kDecodeWarps * Traits::kWarpBytes;
  constexpr uint32_t kScales = kSums + Traits::kMergeBytes;
  constexpr uint32_t kQueries = kScales + kDecodeWarps * Traits::kStages * Traits::kScaleBytes;
  const int warp = threadIdx.x / 32;
  return {.slices = shared + warp * Traits::kWarpBytes,
          .scales = shared + kScales + warp * Traits::kStages * Traits::kScaleBytes,
          .query = shared + kQueries + warp * Traits::kQueryBytes};
}

// The segment's queries into `group`, when its first slice has come.
template <typename Traits>
__device__ void TakeQuery(const DecodeArguments& arguments, const Segment& segment,
                          const WarpRing& ring, KvRing<Traits>* kv, HeadGroup<Traits>* group) {
  if constexpr (Traits::kFetchesQuery) {
    kv->AwaitQuery(arguments, segment);
    group->ReadSharedQuery(ring.query);
  }
  group->FinishQuery(arguments, segment);
}

template <typename Traits>
__global__ void __launch_bounds__(kDecodeThreads, Traits::kBlocksPerSm)
    DecodeKernel(const __grid_constant__ DecodeArguments arguments) {
  extern __shared__ __align__(1024) char shared[];
  __shared__ ScheduleScratch<kDecodeWarps> schedule;
  __shared__ MergeScratch<Traits> scratch;
  const WarpRing ring = RingOf<Traits>(SharedAddress(shared));
  float* const merge_sums = reinterpret_cast<float*>(shared + kDecodeWarps * Traits::kWarpBytes);

  PrefetchArguments(arguments);
  const bool settled = arguments.params.tables_settled != 0;
  if (!settled) WaitOnDependentGrids<Traits::kFamily>();
  SegmentWalker walker = PartitionStep(arguments.step, blockIdx.x, gridDim.x, &schedule);
  KvRing<Traits> kv(arguments, ring, walker);

  int stage = 0;
  bool primed = false;
  Segment segment;
  while (walker.Next(arguments.step, &segment)) {
    HeadGroup<Traits> group;
    group.Begin();
    if (!primed) {
      if (settled) WaitOnDependentGrids<Traits::kFamily>();
      LaunchDependentGrids<Traits::kFamily>();
    }
    // Ahead of the keys and values, which everything else would wait behind.
    if constexpr (!Traits::kFetchesQuery) group.ReadQuery(arguments, segment);
    if (!primed) {
      primed = true;
#pragma unroll 1  // as little code as can be: a short step runs it from a cold cache
      for (int i = 0; i < Traits::kStages; ++i) kv.Queue(arguments, i);
    }
    bool query_taken = false;
    SliceCursor<Traits> cursor;
    for (cursor.Begin(segment); !cursor.AtEnd(segment); cursor.Advance(segment)) {
      WaitForCopies<Traits::kStages - 1>();
      __syncwarp();
      if (!query_taken) TakeQuery(arguments, segment, ring, &kv, &group);
      query_taken = true;
      group.Process(arguments, segment, cursor.token, ring.slices + stage * Traits::kStageBytes,
                    ring.scales + stage * Traits::kScaleBytes);
      __syncwarp();
      kv.Queue(arguments, stage);
      stage = stage + 1 == Traits::kStages ? 0 : stage + 1;
    }
    group.Finish();
    WriteSegment(arguments, segment, group, &scratch, merge_sums);
    if (segment.parts > 1) ArriveAndMerge(arguments, segment, &scratch);
  }
}

template <typename Traits>
[[nodiscard]] DecodeShape ShapeOf() {
  return {.tile_tokens = Traits::kTileTokens,
          .blocks_per_sm = Traits::kBlocksPerSm,
          .shared_bytes = Traits::kSharedBytes};
}

template <typename Traits>
[[nodiscard]] cudaError_t Launch(const DecodeArguments& arguments, int blocks,
                                 cudaStream_t stream) {
  const cudaError_t error = cudaFuncSetAttribute(
      DecodeKernel<Traits>, cudaFuncAttributeMaxDynamicSharedMemorySize, Traits::kSharedBytes);
  if (error != cudaSuccess) return error;
  return LaunchOverlapped<Traits::kFamily>(DecodeKernel<Traits>, blocks, kDecodeThreads,
                                           Traits::kSharedBytes, stream, arguments);
}

template <Family kFamily, Operands kOperands, int kHeadDim, int kHeadTiles>
using TraitsFor =
    DecodeTraits<kFamily, std::conditional_t<kOperands == Operands::kBf16, Bf16Math, Fp16Math>,
                 kOperands == Operands::kFp8, kHeadDim, kHeadTiles>;

template <Family kFamily, Operands kOperands, int kHeadTiles>
[[nodiscard]] cudaError_t LaunchTiles(const DecodeArguments& arguments, int blocks,
                                      cudaStream_t stream) {
  switch (arguments.params.kv.head_dim) {
    case 64:
      return Launch<TraitsFor<kFamily, kOperands, 64, kHeadTiles>>(arguments, blocks, stream);
    case 128:
      return Launch<TraitsFor<kFamily, kOperands, 128, kHeadTiles>>(arguments, blocks, stream);
    default:
      return Launch<TraitsFor<kFamily, kOperands, 256, kHeadTiles>>(arguments, blocks, stream);
  }
}

template <Family kFamily, Operands kOperands>
DecodeShape DecodeShapeFor(int head_dim) {
  switch (head_dim) {
    case 64:
      return ShapeOf<TraitsFor<kFamily, kOperands, 64, 1>>();
    case 128:
      return ShapeOf<TraitsFor<kFamily, kOperands, 128, 1>>();
    default:
      return ShapeOf<TraitsFor<kFamily, kOperands, 256, 1>>();
  }
}

template <Family kFamily, Operands kOperands>
cudaError_t LaunchDecode(const DecodeArguments& arguments, int blocks, cudaStream_t stream) {
  return arguments.group <= 8 ? LaunchTiles<kFamily, kOperands, 1>(arguments, blocks, stream)
                              : LaunchTiles<kFamily, kOperands, 2>(arguments, blocks, stream);
}

template DecodeShape DecodeShapeFor<Family::KVT_FAMILY, Operands::KVT_OPERANDS>(int head_dim);
template cudaError_t LaunchDecode<Family::KVT_FAMILY, Operands::KVT_OPERANDS>(
    const DecodeArguments& arguments, int blocks, cudaStream_t stream);

}  // namespace kvtier::kernels
