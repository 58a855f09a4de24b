// SPDX-License-Identifier: Apache-2.0
// The four warps that have the copy engine bring queries and pages of the latent cache: one for
// each half of the columns of each stage, so that no half waits for another's place. Each chunk of
// 64 columns is given out by itself. A chunk from an fp8 cache takes the second half of its place,
// unswizzled, and is widened to fp16 where it lies.
#pragma once

#include <cstdint>

#include "kernels/hopper/launch.cuh"
#include "kernels/hopper/math.cuh"
#include "kernels/mla/mla_shared.cuh"

namespace kvtier::kernels {

template <bool kFp8>
class MlaProducer {
 public:
  // `warp`: 0 to 3.
  __device__ MlaProducer(const MlaArguments& arguments, MlaShared& shared, int warp, int lane)
      : arguments_(arguments),
        shared_(shared),
        lane_(lane),
        stage_(warp / 2),
        right_(warp % 2 != 0),
        first_chunk_(right_ ? kMlaLeftChunks : 0),
        chunks_(right_ ? kMlaChunks - kMlaLeftChunks : kMlaLeftChunks),
        own_box_(lane / chunks_),
        own_chunk_(first_chunk_ + lane % chunks_) {}

  // Waits for earlier launches itself, after the first look at the tables if they are settled.
  __device__ void Run(SegmentWalker walker, int head_tile) {
    // The second stage is needed later than the first.
    const bool loads_query = stage_ == 1 && !right_;
    Segment segment;
    bool first = true;
    while (walker.Next(arguments_.step, &segment)) {
      const int tiles = MlaTiles(segment);
      int32_t block = stage_ < tiles ? BlockOf(segment, stage_) : 0;
      if (first) WaitOnDependentGrids();
      first = false;
      if (loads_query && tiles > 0) CopyQuery(segment, head_tile);
      for (int tile = stage_; tile < tiles; tile += 2) {
        const int32_t next_block = tile + 2 < tiles ? BlockOf(segment, tile + 2) : 0;
        LoadHalf(segment, tile, block);
        block = next_block;
      }
    }
  }

 private:
  __device__ static int Existing(const Segment& segment, int tile) {
    return min(kMlaTileTokens, segment.token_end - segment.token_begin - tile * kMlaTileTokens);
  }

  // Whether a tile of so many tokens has this lane's box.
  __device__ bool HasOwnBox(int existing) const {
    return own_box_ * arguments_.box_tokens < existing;
  }

  // The first token of this lane's box.
  __device__ int FirstToken(const Segment& segment, int tile) const {
    return segment.token_begin + tile * kMlaTileTokens + own_box_ * arguments_.box_tokens;
  }

  // The block that holds this lane's box of the tile.
  __device__ int32_t BlockOf(const Segment& segment, int tile) const {
    if (!HasOwnBox(Existing(segment, tile))) return 0;
    return BlockOfToken(segment, FirstToken(segment, tile));
  }

  __device__ int32_t BlockOfToken(const Segment& segment, int token) const {
    return arguments_
        .block_table[segment.sequence * arguments_.table_stride + (token >> arguments_.page_shift)];
  }

  __device__ int InPage(int token) const { return token & ((1 << arguments_.page_shift) - 1); }

  __device__ void CopyQuery(const Segment& segment, int head_tile) {
    shared_.query_ring.empty[0].Wait(query_.filled_parity());
    TransactionBarrier& full = shared_.query_ring.full[0];
    if (lane_ == 0) full.ArriveAndExpectBytes(kMlaChunks * kMlaChunkBytes);
    __syncwarp();
    if (lane_ < kMlaChunks) {
      CopyTensor(SharedAddress(shared_.query[lane_]), arguments_.query_map, lane_ * 64,
                 head_tile * kMlaTileHeads, segment.sequence, full);
    }
    query_.Advance();
  }

  __device__ void LoadHalf(const Segment& segment, int tile, int32_t block) {
    const int existing = Existing(segment, tile);
    TransactionBarrier& empty = right_ ? shared_.right_empty[stage_] : shared_.left_empty[stage_];
    empty.Wait(parity_ ^ 1);
    parity_ ^= 1;
    if (!kFp8 && existing == kMlaTileTokens) {
      if (lane_ < chunks_) Full(lane_).ArriveAndExpectBytes(kMlaChunkBytes);
      __syncwarp();
      CopyBox(segment, tile, block, shared_.full[stage_][own_chunk_]);
      return;
    }
    TransactionBarrier& landed = shared_.landed[stage_][right_];
    // Box by box.
    const int rows = (existing + arguments_.box_tokens - 1) & -arguments_.box_tokens;
    const int bytes = rows * 64 * (kFp8 ? 1 : 2) * chunks_;
    if (lane_ == 0) landed.ArriveAndExpectBytes(bytes);
    __syncwarp();
    CopyBox(segment, tile, block, landed);
    if (kFp8 && !right_ && arguments_.scales_by_token != 0) TakeScales(segment, tile, existing);
    landed.Wait(landed_parity_);
    landed_parity_ ^= 1;
    for (int i = 0; i < chunks_; ++i) {
      if constexpr (kFp8) {
        Widen(Chunk(i), existing);
      } else {
        ZeroRows(Chunk(i), existing);
      }
    }
    FenceAsyncProxy();
    __syncwarp();
    if (lane_ < chunks_) Full(lane_).Arrive();
  }

  // The barrier of one of the half's chunks.
  __device__ TransactionBarrier& Full(int chunk) const {
    return shared_.full[stage_][first_chunk_ + chunk];
  }
  __device__ char* Chunk(int chunk) const { return shared_.tiles[stage_][first_chunk_ + chunk]; }

  // This lane's box of this lane's chunk, if the tile has it.
  __device__ void CopyBox(const Segment& segment, int tile, int32_t block,
                          const TransactionBarrier& landed) const {
    if (!HasOwnBox(Existing(segment, tile))) return;
    constexpr int kRowBytes = kFp8 ? 64 : 128;
    const uint32_t to = SharedAddress(shared_.tiles[stage_][own_chunk_]) +
                        (kFp8 ? kMlaChunkBytes / 2 : 0) +
                        own_box_ * arguments_.box_tokens * kRowBytes;
    CopyTensor(to, arguments_.latent_map, own_chunk_ * 64, InPage(FirstToken(segment, tile)), block,
               landed, EvictFirst());
  }

  // 0 times NaN is NaN: tokens that do not exist must be 0, not just weightless. Whole rows, so
  // that the swizzle does not matter.
  __device__ void ZeroRows(char* chunk, int first_row) const {
    for (int i = first_row * 8 + lane_; i < kMlaTileTokens * 8; i += 32) {
      *reinterpret_cast<uint4*>(chunk + i * 16) = uint4{};
    }
  }

  // Eight tokens at a time, whose wide form covers no raw tokens but these and earlier ones. Tokens
  // that do not exist become 0.
  __device__ __forceinline__ void Widen(char* chunk, int existing) const {
    // Four lanes take a row of 64 bytes, which becomes 128.
    const int row = lane_ / 4, column = 2 * (lane_ % 4);
    const uint32_t to = SharedAddress(chunk) + row * 128;
    const uint32_t low = (column ^ row) * 16, high = ((column + 1) ^ row) * 16;
    const uint32_t from = SharedAddress(chunk) + kMlaChunkBytes / 2 + lane_ * 16;
    constexpr int kGroups = kMlaTileTokens / 8;
    constexpr int kBatch = 4;
#pragma unroll 1
    for (int first = 0; first < kGroups; first += kBatch) {
      uint4 raw[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        raw[i] = LoadShared(from + (first + i) * (kMlaAtomBytes / 2));
        if ((first + i) * 8 + row >= existing) raw[i] = uint4{};
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const uint32_t group = to + (first + i) * kMlaAtomBytes;
        StoreWide(group + low, make_uint2(raw[i].x, raw[i].y));
        StoreWide(group + high, make_uint2(raw[i].z, raw[i].w));
      }
      __syncwarp();
    }
  }

  __device__ void TakeScales(const Segment& segment, int tile, int existing) const {
    const kvt_scales& scales = arguments_.scales;
    for (int i = lane_; i < kMlaTileTokens; i += 32) {
      const int token = segment.token_begin + tile * kMlaTileTokens + i;
      shared_.scales[stage_][i] =
          i < existing ? scales.values[BlockOfToken(segment, token) * scales.block_stride +
                                       InPage(token) * scales.token_stride]
                       : 0.0f;
    }
  }

  const MlaArguments& arguments_;
  MlaShared& shared_;
  int lane_;
  int stage_;
  bool right_;
  int first_chunk_;
  int chunks_;
  int own_box_;
  int own_chunk_;
  RingCursor<1> query_;
  uint32_t parity_ = 0;
  uint32_t landed_parity_ = 0;
};

}  // namespace kvtier::kernels
