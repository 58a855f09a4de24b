// The warpgroup that brings queries and an fp8 latent cache: its first warp has the copy engine
// fetch raw tiles, one ahead, and all of it widens them to fp16, from the raw places to those that
// the consumers multiply from. Left and right halves are fetched and given out apart.
#pragma once

#include <cstdint>

#include "kernels/append/fp16_pair.cuh"
#include "kernels/blocks/overlapped_launch.cuh"
#include "kernels/mla/mla_shared.cuh"

namespace kvtier::kernels {

constexpr int kMlaWidenBarrier = 2;

struct MlaTile {
  int sequence;
  int first_token;
  int existing;  // of its tokens; 0: the end
  bool begins_segment;
};

// Tiles of a block's segments, one after another; segments without tokens are passed over.
class MlaTileWalker {
 public:
  __device__ explicit MlaTileWalker(const SegmentWalker& segments) : segments_(segments) {}

  __device__ MlaTile Next(const StepShape& step) {
    const bool begins = first_token_ >= segment_.token_end;
    while (first_token_ >= segment_.token_end) {
      if (!segments_.Next(step, &segment_)) return {};
      first_token_ = segment_.token_begin;
    }
    const MlaTile tile = {segment_.sequence, first_token_,
                          min(kMlaTileTokens, segment_.token_end - first_token_), begins};
    first_token_ += kMlaTileTokens;
    return tile;
  }

 private:
  SegmentWalker segments_;
  Segment segment_ = {};
  int first_token_ = 0;
};

template <typename Traits>
class MlaWidener {
 public:
  // `thread`: 0 to 127.
  __device__ MlaWidener(const MlaArguments& arguments, MlaShared<Traits>& shared, int thread,
                        int head_tile)
      : arguments_(arguments),
        shared_(shared),
        warp_(thread / 32),
        lane_(thread % 32),
        head_tile_(head_tile) {
    // A warp takes an atom: four lanes a row of 64 bytes, which become 128.
    const int row = lane_ / 4, chunk = 2 * (lane_ % 4);
    wide_[0] = row * 128 + ((chunk ^ row) * 16);
    wide_[1] = row * 128 + (((chunk + 1) ^ row) * 16);
  }

  // Waits for earlier launches itself, after the first look at the tables if they are settled.
  __device__ void Run(const SegmentWalker& segments) {
    MlaTileWalker tiles(segments);
    MlaTile next = tiles.Next(arguments_.step);
    if (next.existing == 0) return;
    int32_t block = BlockOf(next);
    WaitForEarlierGrids();
    Fetch<kLeft>(next, block);
    Fetch<kRight>(next, block);
    while (next.existing > 0) {
      const MlaTile tile = next;
      if (tile.begins_segment) FetchQuery(tile.sequence);
      next = tiles.Next(arguments_.step);
      block = BlockOf(next);
      if (arguments_.scales_by_token != 0) ReadScale(tile);
      Widen<kLeft>(tile.existing);
      Fetch<kLeft>(next, block);
      Widen<kRight>(tile.existing);
      Fetch<kRight>(next, block);
    }
  }

 private:
  enum Half { kLeft, kRight };

  __device__ int Boxes(const MlaTile& tile) const {
    return (tile.existing + arguments_.box_tokens - 1) / arguments_.box_tokens;
  }

  // The token at which this lane's box begins.
  __device__ int BoxToken(const MlaTile& tile) const {
    return tile.first_token + lane_ * arguments_.box_tokens;
  }

  // The block that holds this lane's box of the tile; the fetching warp's matter.
  __device__ int32_t BlockOf(const MlaTile& tile) const {
    if (warp_ != 0 || lane_ >= Boxes(tile)) return 0;
    return BlockOfToken(tile.sequence, BoxToken(tile));
  }

  __device__ int32_t BlockOfToken(int sequence, int token) const {
    return arguments_
        .block_table[sequence * arguments_.table_stride + (token >> arguments_.page_shift)];
  }

  // Has a half of the tile fetched; its place is free.
  template <Half kHalf>
  __device__ void Fetch(const MlaTile& tile, int32_t block) {
    if (warp_ != 0 || tile.existing == 0) return;
    constexpr int kGroupBytes = kHalf == kLeft ? kMlaLeftGroupBytes / 2 : kMlaRightGroupBytes / 2;
    TransactionBarrier& full = kHalf == kLeft ? shared_.raw.left_full : shared_.raw.right_full;
    const char* const raw = kHalf == kLeft ? shared_.raw.left : shared_.raw.right;
    const int boxes = Boxes(tile), box_rows = arguments_.box_tokens / 8;
    if (lane_ == 0) full.ArriveExpecting(boxes * box_rows * kGroupBytes);
    __syncwarp();
    if (lane_ >= boxes) return;
    const int group = (BoxToken(tile) & ((1 << arguments_.page_shift) - 1)) / 8;
    CopyTensor(SharedAddress(raw) + lane_ * box_rows * kGroupBytes,
               kHalf == kLeft ? arguments_.left_map : arguments_.right_map, 0, 0, 0, group, block,
               full);
  }

  // Widens a half of the tile that was fetched last, as soon as it is there and its place is free,
  // and gives it out. Tokens that do not exist become 0: 0 times NaN is NaN.
  template <Half kHalf>
  __device__ void Widen(int existing) {
    if constexpr (kHalf == kLeft) {
      shared_.left_ring.empty[left_.stage()].Wait(left_.filled_parity());
      if (arguments_.scales_by_token != 0) WriteScale();
      shared_.raw.left_full.Wait(raw_parity_);
      WidenAtoms<kMlaLeftBytes / kMlaAtomBytes, kMlaLeftGroupBytes / kMlaAtomBytes>(
          SharedAddress(shared_.raw.left), SharedAddress(shared_.left[left_.stage()]), existing);
      FenceAsyncProxy();
      shared_.left_ring.full[left_.stage()].Arrive();
      left_.Advance();
    } else {
      shared_.right_ring.empty[right_.stage()].Wait(right_.filled_parity());
      shared_.raw.right_full.Wait(raw_parity_);
      WidenAtoms<kMlaRightBytes / kMlaAtomBytes, kMlaRightGroupBytes / kMlaAtomBytes>(
          SharedAddress(shared_.raw.right), SharedAddress(shared_.right[right_.stage()]), existing);
      FenceAsyncProxy();
      shared_.right_ring.full[right_.stage()].Arrive();
      right_.Advance();
      raw_parity_ ^= 1;
    }
    NamedBarrierSync(kMlaWidenBarrier, 128);
  }

  // Atoms lie in the same order on both sides.
  template <int kAtoms, int kAtomsOfGroup>
  __device__ __forceinline__ void WidenAtoms(uint32_t from, uint32_t to, int existing) const {
    constexpr int kSteps = kAtoms / 4;
    constexpr int kBatch = kSteps / 2;
    static_assert(kSteps % kBatch == 0);
    from += lane_ * 16;
#pragma unroll
    for (int first = 0; first < kSteps; first += kBatch) {
      uint4 raw[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int atom = (first + i) * 4 + warp_;
        raw[i] = LoadShared(from + atom * (kMlaAtomBytes / 2));
        if (atom / kAtomsOfGroup * 8 + lane_ / 4 >= existing) raw[i] = uint4{};
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const uint32_t atom = to + ((first + i) * 4 + warp_) * kMlaAtomBytes;
        StoreWide(atom + wide_[0], make_uint2(raw[i].x, raw[i].y));
        StoreWide(atom + wide_[1], make_uint2(raw[i].z, raw[i].w));
      }
    }
  }

  // The scale of this thread's token of the tile; the first 64 threads have one.
  __device__ void ReadScale(const MlaTile& tile) {
    const int own = warp_ * 32 + lane_;
    scale_ = 0.0f;
    if (own >= tile.existing) return;
    const int token = tile.first_token + own;
    const kvt_scales& scales = arguments_.scales;
    scale_ = scales.values[BlockOfToken(tile.sequence, token) * scales.block_stride +
                           (token & ((1 << arguments_.page_shift) - 1)) * scales.token_stride];
  }

  __device__ void WriteScale() const {
    const int own = warp_ * 32 + lane_;
    if (own < kMlaTileTokens) shared_.raw.scales[left_.stage()][own] = scale_;
  }

  // The left consumer narrows it.
  __device__ void FetchQuery(int sequence) {
    if (warp_ != 0) return;
    shared_.query_ring.empty[0].Wait(query_.filled_parity());
    query_.Advance();
    TransactionBarrier& full = shared_.query_ring.full[0];
    if (lane_ == 0) full.ArriveExpecting(kMlaQueryChunks * kMlaQueryChunkBytes);
    __syncwarp();
    if (lane_ >= kMlaQueryChunks) return;
    CopyTensor(SharedAddress(shared_.query[lane_]), arguments_.query_map, lane_ * 64,
               head_tile_ * kMlaTileHeads, sequence, full);
  }

  const MlaArguments& arguments_;
  MlaShared<Traits>& shared_;
  int warp_;
  int lane_;
  int head_tile_;
  uint32_t wide_[2];  // where a thread's halves of 16 bytes go within an atom
  float scale_ = 1.0f;
  RingCursor<1> query_;
  RingCursor<Traits::kLeftStages> left_;
  RingCursor<Traits::kRightStages> right_;
  uint32_t raw_parity_ = 0;
};

}  // namespace kvtier::kernels
