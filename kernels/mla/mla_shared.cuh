// The shared memory of an MLA block, and who waits for whom in it.
#pragma once

#include <cstdint>

#include "kernels/append/pipeline.cuh"
#include "kernels/decode/decode_schedule.cuh"
#include "kernels/merge/merge_together.cuh"
#include "kernels/mla/mla_arguments.h"

namespace kvtier::kernels {

constexpr int kMlaStages = 2;  // tiles of tokens
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

struct alignas(kMlaAtomBytes) MlaShared {
  alignas(kMlaAtomBytes) char query[kMlaQueryChunks][kMlaQueryChunkBytes];
  alignas(kMlaAtomBytes) char left[kMlaStages][kMlaLeftBytes];
  alignas(kMlaAtomBytes) char right[kMlaStages][kMlaRightBytes];
  alignas(kMlaAtomBytes) char weights[kMlaWeightsBytes];  // of a tile, for the right consumer
  float factors[kMlaTileHeads];  // what its sums are multiplied with before; at last, what divides
  Ring<1> query_ring;            // emptied by the left consumer
  Ring<kMlaStages> left_ring;    // likewise
  Ring<kMlaStages> right_ring;   // emptied by the right consumer
  Ring<1> weights_ring;          // weights and factors: from the left to the right consumer
  TransactionBarrier turn;       // given to the right consumer by the left one
  TransactionBarrier tail;  // the copies of a tile whose end must be zeroed before it is given out
  ScheduleScratch<kMlaWarps> schedule;
  MergeTurn merge;

  // By one thread, before any other touches the barriers.
  __device__ void InitBarriers() {
    query_ring.Init(1, 4);
    left_ring.Init(1, 4);
    right_ring.Init(1, 4);
    weights_ring.Init(4 * kMlaFactorLanes, 4 * kMlaFactorLanes);
    turn.Init(4);
    tail.Init(1);
  }
};

// What a segment takes: its tiles, and how many of the last one's tokens exist.
__device__ __forceinline__ int MlaTiles(const Segment& segment) {
  return (segment.token_end - segment.token_begin + kMlaTileTokens - 1) / kMlaTileTokens;
}

}  // namespace kvtier::kernels
