// SPDX-License-Identifier: Apache-2.0
// Sizes of decode's kernels, by element types, head size and group class.
#pragma once

#include <type_traits>

#include "kernels/decode/decode.h"
#include "kernels/hopper/math.cuh"
#include "kernels/hopper/shared_memory.cuh"

namespace kvtier::kernels {

// Dynamic shared memory that lets one or two blocks live on a multiprocessor, less each block's
// static part and the system's share.
template <Family kFamily>
struct SmShare {
  static constexpr int kWholeBytes = 225 * 1024;  // of 227 KB
  static constexpr int kHalfBytes = 111 * 1024;
};
// One block must fit the 99 KB of the smallest devices (8.6, 8.9, 12.0), two the 164 KB of 8.0.
template <>
struct SmShare<Family::kAmpere> {
  static constexpr int kWholeBytes = 97 * 1024;
  static constexpr int kHalfBytes = 80 * 1024;
};

// kHeadTiles: groups of up to 8 query heads, the width of one matrix instruction.
template <Family kFamilyValue, typename MathType, bool kFp8CacheValue, int kHeadDimValue,
          int kHeadTilesValue>
struct DecodeTraits {
  using Math = MathType;
  static constexpr Family kFamily = kFamilyValue;
  static constexpr bool kLargeSm = kFamily == Family::kHopper;
  static constexpr bool kFp8Cache = kFp8CacheValue;
  static constexpr int kHeadDim = kHeadDimValue;
  static constexpr int kHeadTiles = kHeadTilesValue;

  static constexpr int kRowBytes = kHeadDim * (kFp8Cache ? 1 : 2);
  static constexpr int kRowChunks = kRowBytes / 16;
  // A slice is what a warp takes at a time. Its keys and values make 8 KB, at 16 tokens or more
  // (the height of a matrix instruction): large enough to pay for a turn of the loop.
  static constexpr int kSliceTokens = kRowBytes >= 256 ? 16 : 4096 / kRowBytes;
  static constexpr int kTileTokens = kSliceTokens * kDecodeWarps;
  static constexpr int kRowTiles = kSliceTokens / 16;
  static constexpr int kHalfSliceBytes = kSliceTokens * kRowBytes;
  static constexpr int kScaleBytes = kFp8Cache ? 2 * kSliceTokens * 4 : 0;
  static constexpr int kStageBytes = 2 * kHalfSliceBytes;
  // Two stages of 8 warps are 128 KB on their way on each SM, 64 KB while all warps compute. HBM
  // needs 64 KB to run at 95 % of its rate; any more makes everything else wait longer. With less
  // room, warps with large slices have one each and wait for it by turns.
  static constexpr int kStages = kStageBytes <= 8192 ? 2 : kLargeSm ? 3 : 1;
  static constexpr int kWarpBytes = kStages * kStageBytes;

  // Heads whose sums the block adds up at a time.
  static constexpr int kMergeHeads = kHeadDim == 256 || !kLargeSm ? 4 : 8;
  static constexpr int kMergeBytes = kDecodeWarps * kHeadDim * kMergeHeads * 4;
  static constexpr int kRingBytes =
      kDecodeWarps * (kWarpBytes + kStages * kScaleBytes) + kMergeBytes;
  static constexpr int kBlocksPerSm = kRingBytes <= SmShare<kFamily>::kHalfBytes ? 2 : 1;

  // A warp's copy of the next segment's queries, fetched with the segment's first slice: read when
  // needed, they would wait for microseconds behind the keys and values on their way. Where shared
  // memory is too small they are read so all the same.
  static constexpr int kQueryRows = 8 * kHeadTiles;
  static constexpr int kQueryBytes = kQueryRows * kHeadDim * 2;
  static constexpr bool kFetchesQuery =
      kRingBytes + kDecodeWarps * kQueryBytes <=
      (kBlocksPerSm == 2 ? SmShare<kFamily>::kHalfBytes : SmShare<kFamily>::kWholeBytes);
  static constexpr int kSharedBytes = kRingBytes + (kFetchesQuery ? kDecodeWarps * kQueryBytes : 0);
  static_assert(kSharedBytes <= SmShare<kFamily>::kWholeBytes);

  static constexpr int kQuerySteps = kHeadDim / 16;  // of 16 elements, the depth of an instruction
};

// Where 16-byte chunk `chunk` of row `row` lies in a slice: XORed so that eight rows' chunks of one
// column fall into different banks.
template <typename Traits>
__device__ constexpr int ChunkOffset(int row, int chunk) {
  constexpr int kLineBytes = Traits::kRowBytes < 128 ? 128 : Traits::kRowBytes;
  const int offset = row * Traits::kRowBytes + chunk * 16;
  return offset ^ (((offset / kLineBytes) & 7) << 4);
}

// The same for 16-byte chunks of queries, rows of 16-bit elements.
template <typename Traits>
__device__ constexpr int QueryChunkOffset(int row, int chunk) {
  return row * Traits::kHeadDim * 2 + ((chunk ^ (row & 7)) << 4);
}

}  // namespace kvtier::kernels
