// The shared memory of an MLA block, and who waits for whom in it.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/append/pipeline.cuh"
#include "kernels/decode/decode_schedule.cuh"
#include "kernels/merge/merge_together.cuh"
#include "kernels/mla/mla_arguments.h"

namespace kvtier::kernels {

constexpr int kMlaThreads = 3 * 128;
constexpr int kMlaWarps = kMlaThreads / 32;
constexpr int kMlaAtomBytes = 1024;  // 8 rows of 128 bytes
constexpr int kMlaQueryChunks = KVT_MLA_QUERY_DIM / 64;
constexpr int kMlaQueryChunkBytes = kMlaTileHeads * 128;
// Eight tokens of a part: its atoms side by side.
constexpr int kMlaLeftGroupBytes = kMlaHalfDim / 64 * kMlaAtomBytes;
constexpr int kMlaRightGroupBytes = (KVT_MLA_QUERY_DIM - kMlaHalfDim) / 64 * kMlaAtomBytes;
constexpr int kMlaLeftBytes = kMlaTileTokens / 8 * kMlaLeftGroupBytes;
constexpr int kMlaRightBytes = kMlaTileTokens / 8 * kMlaRightGroupBytes;
constexpr int kMlaWeightsBytes = kMlaTileHeads * 128;  // a row has the pitch of the swizzle

// Of a consumer's warp, the lanes that write or read factors, one of each quad; each gives them
// out, or back, itself.
constexpr int kMlaFactorLanes = 8;

// Of queries and output, and whether the latent cache is fp8.
template <typename Query, bool kFp8Latent>
struct MlaTraits {
  using Output = Query;
  // What is multiplied: fp16 holds all values of e4m3.
  using Element = std::conditional_t<kFp8Latent, __half, Query>;
  static constexpr bool kFp8 = kFp8Latent;
  // Tiles of tokens. Raw fp8 tiles take the room of one half.
  static constexpr int kLeftStages = 2;
  static constexpr int kRightStages = kFp8Latent ? 1 : 2;
};

// What an fp8 latent cache takes besides: a tile as it lies in the cache, in groups of 8 tokens,
// the atoms of a group side by side, unswizzled.
struct MlaRaw {
  alignas(128) char left[kMlaLeftBytes / 2];
  alignas(128) char right[kMlaRightBytes / 2];
  float scales[2][kMlaTileTokens];  // of the tokens in the left stages
  TransactionBarrier left_full;
  TransactionBarrier right_full;
};
struct MlaNoRaw {};

template <typename Traits>
struct alignas(kMlaAtomBytes) MlaShared {
  alignas(kMlaAtomBytes) char query[kMlaQueryChunks][kMlaQueryChunkBytes];
  alignas(kMlaAtomBytes) char left[Traits::kLeftStages][kMlaLeftBytes];
  alignas(kMlaAtomBytes) char right[Traits::kRightStages][kMlaRightBytes];
  alignas(kMlaAtomBytes) char weights[kMlaWeightsBytes];  // of a tile, for the right consumer
  std::conditional_t<Traits::kFp8, MlaRaw, MlaNoRaw> raw;
  float factors[kMlaTileHeads];  // what its sums are multiplied with before; at last, what divides
  Ring<1> query_ring;            // emptied by the left consumer
  Ring<Traits::kLeftStages> left_ring;    // likewise
  Ring<Traits::kRightStages> right_ring;  // emptied by the right consumer
  Ring<1> weights_ring;     // weights and factors: from the left to the right consumer
  TransactionBarrier turn;  // given to the right consumer by the left one
  TransactionBarrier tail;  // the copies of a tile whose end must be zeroed before it is given out
  ScheduleScratch<kMlaWarps> schedule;
  MergeTurn merge;

  // By one thread, before any other touches the barriers.
  __device__ void InitBarriers() {
    constexpr int kFillers = Traits::kFp8 ? 128 : 1;  // besides the bytes of copies
    query_ring.Init(1, 4);
    left_ring.Init(kFillers, 4);
    right_ring.Init(kFillers, 4);
    weights_ring.Init(4 * kMlaFactorLanes, 4 * kMlaFactorLanes);
    turn.Init(4);
    tail.Init(1);
    if constexpr (Traits::kFp8) {
      raw.left_full.Init(1);
      raw.right_full.Init(1);
    }
  }
};

// What a segment takes: its tiles, and how many of the last one's tokens exist.
__device__ __forceinline__ int MlaTiles(const Segment& segment) {
  return (segment.token_end - segment.token_begin + kMlaTileTokens - 1) / kMlaTileTokens;
}

}  // namespace kvtier::kernels
