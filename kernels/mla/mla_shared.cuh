// SPDX-License-Identifier: Apache-2.0
// The shared memory of an MLA block, and who waits for whom in it.
//
// Tiles of tokens come in pairs: the first of a pair lies in stage 0, the second in stage 1. The
// first consumer multiplies queries with the first tile's rows and sums up the left half of the
// output's columns, the second consumer takes the second tile and the right half. Each hands the
// weights of its tile to the other.
#pragma once

#include <cstdint>

#include "kernels/decode/decode_schedule.cuh"
#include "kernels/hopper/pipeline.cuh"
#include "kernels/mla/mla.h"
#include "kernels/mla/mla_merge.cuh"

namespace kvtier::kernels {

constexpr int kMlaThreads = 3 * 128;
constexpr int kMlaWarps = kMlaThreads / 32;
constexpr int kMlaAtomBytes = 1024;  // 8 rows of 128 bytes
// Queries and tiles of tokens lie in chunks of 64 columns: 64 rows of 128 bytes, swizzled.
constexpr int kMlaChunks = KVT_MLA_QUERY_DIM / 64;
constexpr int kMlaLeftChunks = kMlaHalfDim / 64;
constexpr int kMlaChunkBytes = 64 * 128;
static_assert(kMlaTileHeads == 64 && kMlaTileTokens == 64);

// The quads of a consumer's warp. The first lane of each reads and writes what goes with its rows,
// and arrives for itself.
constexpr int kMlaQuads = 8;

struct alignas(kMlaAtomBytes) MlaShared {
  alignas(kMlaAtomBytes) char query[kMlaChunks][kMlaChunkBytes];
  alignas(kMlaAtomBytes) char tiles[2][kMlaChunks][kMlaChunkBytes];
  // The weights of a pair's tiles in turn: a warp that gives weights has already taken those given
  // to it.
  alignas(kMlaAtomBytes) char weights[kMlaChunkBytes];
  float row_max[2][kMlaTileHeads];  // the maxima to which a pair's weights are relative
  float sums[2][kMlaTileHeads];     // of each consumer's weights
  float scales[2][kMlaTileTokens];  // of an fp8 cache's tokens
  Ring<1> query_ring;               // emptied by both consumers
  TransactionBarrier full[2][kMlaChunks];
  TransactionBarrier left_empty[2];   // by the first consumer
  TransactionBarrier right_empty[2];  // by the second
  // Weights and row_max of a tile, from each warp of a consumer to the same warp of the other. The
  // giver learns that it has taken them from the next weights that it is given, or from the end of
  // the segment.
  TransactionBarrier weights_full[2][4];
  TransactionBarrier landed[2][2];  // copies to be widened, or zeroed at their end, before
                                    // they are given out
  ScheduleScratch<kMlaWarps> schedule;
  MergeClaim merge;

  // By one thread, before any other touches the barriers.
  __device__ void InitBarriers() {
    query_ring.Init(1, 8);
    for (int stage = 0; stage < 2; ++stage) {
      for (TransactionBarrier& chunk : full[stage]) chunk.Init(1);
      left_empty[stage].Init(4);
      right_empty[stage].Init(4);
      for (TransactionBarrier& warp : weights_full[stage]) warp.Init(kMlaQuads);
      landed[stage][0].Init(1);
      landed[stage][1].Init(1);
    }
  }
};

// A consumer thread's share of a tile.
constexpr int kMlaScores = kMlaTileTokens / 2;
constexpr int kMlaWords = kMlaTileTokens / 4;  // its weights in pairs
constexpr int kMlaOutputs = kMlaHalfDim / 2;

// A segment's tiles, and how many of the last one's tokens exist.
__device__ __forceinline__ int MlaTiles(const Segment& segment) {
  return (segment.token_end - segment.token_begin + kMlaTileTokens - 1) / kMlaTileTokens;
}

}  // namespace kvtier::kernels
