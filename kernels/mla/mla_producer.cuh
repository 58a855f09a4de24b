// The warp that has the copy engine bring queries and pages of the latent cache, tile by tile.
#pragma once

#include <cstdint>

#include "kernels/blocks/overlapped_launch.cuh"
#include "kernels/mla/mla_shared.cuh"

namespace kvtier::kernels {

template <typename Traits>
class MlaProducer {
 public:
  __device__ MlaProducer(const MlaArguments& arguments, MlaShared<Traits>& shared, int lane)
      : arguments_(arguments), shared_(shared), lane_(lane) {}

  // Waits for earlier launches itself, after the first look at the tables if they are settled.
  __device__ void Run(SegmentWalker walker, int head_tile) {
    Segment segment;
    bool first = true;
    while (walker.Next(arguments_.step, &segment)) {
      const int tiles = MlaTiles(segment);
      int32_t block = tiles > 0 ? BlockOf(segment, 0) : 0;
      if (first) WaitForEarlierGrids();
      first = false;
      if (tiles == 0) continue;
      CopyQuery(segment, head_tile);
      for (int tile = 0; tile < tiles; ++tile) {
        const int32_t next_block = tile + 1 < tiles ? BlockOf(segment, tile + 1) : 0;
        CopyTile(segment, tile, block);
        block = next_block;
      }
    }
  }

 private:
  __device__ static int Existing(const Segment& segment, int tile) {
    return min(kMlaTileTokens, segment.token_end - segment.token_begin - tile * kMlaTileTokens);
  }

  __device__ int Boxes(int existing) const {
    return (existing + arguments_.box_tokens - 1) / arguments_.box_tokens;
  }

  __device__ int FirstToken(const Segment& segment, int tile) const {
    return segment.token_begin + tile * kMlaTileTokens + lane_ * arguments_.box_tokens;
  }

  // The block that holds this lane's box of the tile.
  __device__ int32_t BlockOf(const Segment& segment, int tile) const {
    if (lane_ >= Boxes(Existing(segment, tile))) return 0;
    return arguments_.block_table[segment.sequence * arguments_.table_stride +
                                  (FirstToken(segment, tile) >> arguments_.page_shift)];
  }

  __device__ void CopyQuery(const Segment& segment, int head_tile) {
    shared_.query_ring.empty[0].Wait(query_.filled_parity());
    TransactionBarrier& full = shared_.query_ring.full[0];
    if (lane_ == 0) full.ArriveExpecting(kMlaQueryChunks * kMlaQueryChunkBytes);
    __syncwarp();
    if (lane_ < kMlaQueryChunks) {
      CopyTensor(SharedAddress(shared_.query[lane_]), arguments_.query_map, lane_ * 64,
                 head_tile * kMlaTileHeads, segment.sequence, full);
    }
    query_.Advance();
  }

  __device__ void CopyTile(const Segment& segment, int tile, int32_t block) {
    const int stage = tiles_.stage();
    const int existing = Existing(segment, tile);
    const int boxes = Boxes(existing);
    const int group = (FirstToken(segment, tile) & ((1 << arguments_.page_shift) - 1)) / 8;
    const bool whole = existing == kMlaTileTokens;
    TransactionBarrier& left = whole ? shared_.left_ring.full[stage] : shared_.tail;
    TransactionBarrier& right = whole ? shared_.right_ring.full[stage] : shared_.tail;
    const int box_rows = arguments_.box_tokens / 8;
    shared_.left_ring.empty[stage].Wait(tiles_.filled_parity());
    if (!whole) shared_.right_ring.empty[stage].Wait(tiles_.filled_parity());
    if (lane_ == 0) {
      left.ArriveExpecting(boxes * box_rows *
                           (kMlaLeftGroupBytes + (whole ? 0 : kMlaRightGroupBytes)));
    }
    __syncwarp();
    if (lane_ < boxes) {
      CopyTensor(SharedAddress(shared_.left[stage]) + lane_ * box_rows * kMlaLeftGroupBytes,
                 arguments_.left_map, 0, 0, 0, group, block, left);
    }
    if (whole) {
      shared_.right_ring.empty[stage].Wait(tiles_.filled_parity());
      if (lane_ == 0) right.ArriveExpecting(boxes * box_rows * kMlaRightGroupBytes);
      __syncwarp();
    }
    if (lane_ < boxes) {
      CopyTensor(SharedAddress(shared_.right[stage]) + lane_ * box_rows * kMlaRightGroupBytes,
                 arguments_.right_map, 0, 0, 0, group, block, right);
    }
    if (!whole) GiveOutTail(stage, existing);
    tiles_.Advance();
  }

  // 0 times NaN is NaN: tokens that do not exist must be 0, not just weightless.
  __device__ void GiveOutTail(int stage, int existing) {
    shared_.tail.Wait(tail_parity_);
    tail_parity_ ^= 1;
    ZeroRows(shared_.left[stage], kMlaLeftGroupBytes, existing);
    ZeroRows(shared_.right[stage], kMlaRightGroupBytes, existing);
    FenceAsyncProxy();
    __syncwarp();
    if (lane_ == 0) {
      shared_.left_ring.full[stage].Arrive();
      shared_.right_ring.full[stage].Arrive();
    }
  }

  // Whole 128-byte rows of atoms, so that the swizzle does not matter.
  __device__ void ZeroRows(char* part, int group_bytes, int first_row) const {
    for (int row = first_row; row < kMlaTileTokens; ++row) {
      char* const begin = part + row / 8 * group_bytes + row % 8 * 128;
      for (int i = lane_; i < group_bytes / kMlaAtomBytes * 8; i += 32) {
        *reinterpret_cast<uint4*>(begin + i / 8 * kMlaAtomBytes + i % 8 * 16) = uint4{};
      }
    }
  }

  const MlaArguments& arguments_;
  MlaShared<Traits>& shared_;
  int lane_;
  RingCursor<1> query_;
  RingCursor<Traits::kLeftStages> tiles_;  // of both halves
  uint32_t tail_parity_ = 0;
};

}  // namespace kvtier::kernels
