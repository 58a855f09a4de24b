// SPDX-License-Identifier: Apache-2.0
// The consumer warpgroups of the kernel for short queries: 64 rows of queries against the keys of
// this CTA, each warpgroup on every kShortGroups-th tile. The first one adds up the others' sums
// and merges them with the cluster's other CTAs, while those go on with the next item.
//
// A step with a short query is short itself and runs all of this from a cold instruction cache:
// there is one copy of each piece of code, and little is unrolled that need not be.
#pragma once

#include <cstdint>

#include "kernels/attention/online_softmax.cuh"
#include "kernels/attention/score_tile.cuh"
#include "kernels/hopper/math.cuh"
#include "kernels/hopper/wgmma.cuh"
#include "kernels/prefill/prefill_tile.cuh"
#include "kernels/prefill/short_merge.cuh"
#include "kernels/prefill/short_shared.cuh"

namespace kvtier::kernels {

template <typename Traits>
class ShortConsumer {
 public:
  // `thread`: 0 to 127 within warpgroup `group`.
  __device__ ShortConsumer(const PrefillPlan& plan, ShortShared<Traits>& shared, int group,
                           int thread)
      : plan_(plan),
        shared_(shared),
        group_(group),
        thread_(thread),
        row_(thread / 32 * 16 + thread % 32 / 4),
        ctas_(static_cast<int32_t>(ClusterCtas())) {
    query_ = wgmma::Descriptor(SharedAddress(shared.query[0]), 0, Traits::kGroupBytes);
    keys_ = wgmma::Descriptor(SharedAddress(shared.keys[0]), 0, Traits::kGroupBytes);
    values_ = wgmma::Descriptor(SharedAddress(shared.values[0]), kAtomBytes, Traits::kGroupBytes);
  }

  __device__ void Run() {
    for (;; item_cursor_.Advance()) {
      const int slot = item_cursor_.stage();
      shared_.item_ring.full[slot].Wait(item_cursor_.parity());
      const PrefillItem& item =
          shared_.items[slot];  // not held in registers, of which few are left
      if (!item.valid) return;
      if (group_ == 0) WaitUntilPeersHaveRead();
      Work(item);
      shared_.item_ring.empty[slot].Arrive();
    }
  }

 private:
  using Element = typename Traits::Element;
  static constexpr int kScores = Traits::kKeys / 2;
  static constexpr int kOutputs = Traits::kHeadDim / 2;
  static constexpr int kWords = Traits::kKeys / 4;  // a thread's probabilities in pairs

  // A warpgroup's sums, by now divided, and the log-sum-exps of this thread's rows.
  struct Sums {
    float output[kOutputs];
    float lse[2];
  };

  // The ring's stage in which a tile lies, and the parity of the phase that brings it.
  struct StagePhase {
    int stage;
    uint32_t parity;
  };

  // All threads of the warpgroup.
  __device__ void Meet() const { NamedBarrierSync(1 + group_, 128); }

  // Releases a tile of keys or values; arrives as often as ShortTraits::kTileEmptiers says.
  __device__ __forceinline__ void ReleaseTile(TransactionBarrier& barrier) const {
    if constexpr (Traits::kFp8) {
      barrier.Arrive();
    } else {
      ArriveOncePerWarp(barrier, thread_ % 32);
    }
  }

  // The stage of tile `tile` of the item. Lane 0 broadcasts it, so that the compiler keeps
  // descriptors in registers that the warp shares.
  __device__ __forceinline__ StagePhase StageOfTile(int32_t tile) const {
    const uint32_t number = __shfl_sync(0xffffffff, tiles_before_ + tile, 0);
    return {static_cast<int>(number % Traits::kStages), number / Traits::kStages % 2};
  }

  // The last tile of the item that warpgroup `group` works on, if it has one.
  __device__ static int32_t LastTile(int32_t tiles, int group) {
    return group + (tiles - 1 - group) / kShortGroups * kShortGroups;
  }

  // The visible range within this CTA's keys. As VisibleKeysOf in prefill_tile.cuh, written out:
  // a shared function made the compiler order this kernel's instructions differently.
  __device__ VisibleKeys Visible(const PrefillItem& item, int32_t rows) const {
    VisibleKeys visible;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // Rows behind the last one are computed, though never written, as if they were it.
      const int32_t token = PositionOf(plan_, item, min(row_ + 8 * r, rows - 1)).token;
      const int32_t last = LastKey(plan_.params, item, token);
      visible.first[r] = FirstKey(plan_.params, item, token, last);
      visible.last[r] = min(last, item.end_tile * kShortUnitKeys - 1);
    }
    return visible;
  }

  // scores = queries * keys^T. Keys that a tile lacks are masked later.
  __device__ __forceinline__ void MultiplyKeys(float (&scores)[kScores], int stage) {
    const int slot = __shfl_sync(0xffffffff, query_cursor_.stage(), 0);
    const uint64_t query = wgmma::Advance(query_, slot * Traits::kQueryBytes);
    const uint64_t keys = wgmma::Advance(keys_, stage * Traits::kTileBytes);
    wgmma::Fence();
    QueueScores<Traits, Traits::kFp8>(scores, query_words_, query, keys);
    wgmma::Wait<0>();
    wgmma::Settle(scores);
  }

  // output += probabilities * values.
  __device__ __forceinline__ void MultiplyValues(float (&output)[kOutputs],
                                                 const uint32_t (&probabilities)[kWords],
                                                 int stage) {
    const uint64_t values = wgmma::Advance(values_, stage * Traits::kTileBytes);
    wgmma::Fence();
    QueueOutput<Traits>(output, probabilities, values);
    wgmma::Wait<0>();
    wgmma::Settle(output);
  }

  // Over an fp8 cache queries become fp16 on their way to registers, and their place is free.
  __device__ __forceinline__ void TakeQuery(int slot) {
    const uint32_t row = thread_ / 32 * 16 + thread_ % 16;
#pragma unroll
    for (int step = 0; step < Traits::kHeadDim / 16; ++step) {
      const uint32_t at = ChunkOffset<Traits>(row, 2 * step + thread_ % 32 / 16);
      LoadMatrices(SharedAddress(shared_.query[slot]) + at, query_words_ + 4 * step);
    }
    shared_.query_ring.empty[slot].Arrive();
    if (plan_.params.query_dtype != KVT_BF16) return;
#pragma unroll
    for (uint32_t& word : query_words_) word = Fp16FromBf16(word);
  }

  // As in TileConsumer, and a member here too: called as a free function, the compiler orders both
  // kernels' instructions differently.
  __device__ float HeadScale(const kvt_scales& scales, const PrefillItem& item) const {
    if (!Traits::kFp8 || scales.values == nullptr || plan_.scales_per_token) return 1.0f;
    return scales.values[item.kv_head * scales.head_stride];
  }

  // Scales along tokens: those of keys on raw scores, those of values on probabilities.
  __device__ __forceinline__ void ApplyKeyScales(float (&scores)[kScores], int stage) const {
    if constexpr (Traits::kFp8) {
      if (plan_.scales_per_token) ScaleColumns(scores, shared_.raw.wide_key_scales[stage], thread_);
    }
  }
  __device__ __forceinline__ void ApplyValueScales(float (&scores)[kScores],
                                                   const StagePhase& place) const {
    if constexpr (Traits::kFp8) {
      if (!plan_.scales_per_token) return;
      shared_.value_ring.full[place.stage].Wait(place.parity);
      ScaleColumns(scores, shared_.raw.wide_value_scales[place.stage], thread_);
    }
  }

  // Everything between the scaled scores of the tile whose first key is `first` and the softmax.
  // `score_scale` takes them to natural logarithms.
  __device__ __forceinline__ void CapAndMask(float (&scores)[kScores], int32_t first,
                                             const VisibleKeys& visible, float score_scale) const {
    const float cap = plan_.params.soft_cap;
    if (cap > 0.0f) ApplySoftCap(scores, score_scale / cap);
    const bool whole = first + Traits::kKeys - 1 <= min(visible.last[0], visible.last[1]) &&
                       first >= max(visible.first[0], visible.first[1]);
    if (!__all_sync(0xffffffff, whole)) Mask(scores, first, visible);
  }

  // As MaskInvisible does it, in the form that is the least code here.
  __device__ __forceinline__ void Mask(float (&scores)[kScores], int32_t first,
                                       const VisibleKeys& visible) const {
    const int32_t base = first + 2 * (thread_ % 4);
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const int r = i / 2 % 2, key = base + i / 4 * 8 + i % 2;
      if (key > visible.last[r] || key < visible.first[r]) scores[i] = -INFINITY;
    }
  }

  __device__ __forceinline__ void Work(const PrefillItem& item) {
    const int32_t rows = min(kShortRows, item.query_length * plan_.group - item.first_row);
    const int32_t tiles = ShortTiles<Traits>(item);
    Sums sums;
    Accumulate(item, rows, tiles, sums);
    if (group_ == 0) {
      for (int other = 1; other < kShortGroups; ++other) Add(tiles, other, sums);
      sums_cursor_.Advance();
      MergeWithPeers(item, rows, tiles, sums);
    } else {
      SendSumsToFirst(tiles, sums);
    }
    tiles_before_ += tiles;
  }

  // This warpgroup's tiles. All their places are given back but the last one's, which will hold the
  // sums.
  __device__ __forceinline__ void Accumulate(const PrefillItem& item, int32_t rows, int32_t tiles,
                                             Sums& sums) {
    const float cap = plan_.params.soft_cap;
    const float score_scale =
        plan_.params.softmax_scale * HeadScale(plan_.params.kv.key_scales, item);
    const float value_scale = Traits::kFp8 && plan_.scales_per_token
                                  ? 1.0f / kValueScaleLift
                                  : HeadScale(plan_.params.kv.value_scales, item);
    RunningSoftmax<kScores> softmax((cap > 0.0f ? cap : score_scale) * kLog2E);
    Clear(sums.output);
    if (tiles > 0) {
      const VisibleKeys visible = Visible(item, rows);
      const int slot = query_cursor_.stage();
      shared_.query_ring.full[slot].Wait(query_cursor_.parity());
      if constexpr (Traits::kFp8) {
        TakeQuery(slot);
      } else {
        FenceAsyncProxy();
      }
#pragma unroll 1
      for (int32_t tile = group_; tile < tiles; tile += kShortGroups) {
        Process(item, tiles, tile, visible, score_scale, softmax, sums.output);
      }
      if constexpr (!Traits::kFp8) shared_.query_ring.empty[slot].Arrive();
      query_cursor_.Advance();
    }
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      softmax.Finish(r, -INFINITY, factor[r], sums.lse[r]);
      factor[r] *= value_scale;
    }
    RescaleRows(sums.output, factor);
  }

  __device__ __forceinline__ void Process(const PrefillItem& item, int32_t tiles, int32_t tile,
                                          const VisibleKeys& visible, float score_scale,
                                          RunningSoftmax<kScores>& softmax,
                                          float (&output)[kOutputs]) {
    const StagePhase place = StageOfTile(tile);
    const bool stays = tile + kShortGroups >= tiles;
    const int32_t first = item.first_tile * kShortUnitKeys + (tiles - 1 - tile) * Traits::kKeys;
    float scores[kScores];
    float correction[2];
    uint32_t probabilities[kWords];
    shared_.key_ring.full[place.stage].Wait(place.parity);
    MultiplyKeys(scores, place.stage);
    ApplyKeyScales(scores, place.stage);
    if (!stays) ReleaseTile(shared_.key_ring.empty[place.stage]);
    CapAndMask(scores, first, visible, score_scale);
    softmax.UpdateMax(scores, correction);
    softmax.Exponentiate(scores);
    ApplyValueScales(scores, place);
    PackProbabilities<Element>(scores, probabilities);
    if (NeedsRescale(correction)) RescaleRows(output, correction);
    shared_.value_ring.full[place.stage].Wait(place.parity);
    if constexpr (!Traits::kFp8) {
      const int32_t existing = min(item.kv_length, item.end_tile * kShortUnitKeys) - first;
      if (existing < Traits::kKeys) ZeroValues(place.stage, existing);
    }
    MultiplyValues(output, probabilities, place.stage);
    if (!stays) ReleaseTile(shared_.value_ring.empty[place.stage]);
  }

  // 0 times NaN is NaN: a tile's missing values must be 0, not just weightless.
  __device__ void ZeroValues(int stage, int32_t first_row) const {
    constexpr int kChunks = Traits::kHeadDim / 8;
#pragma unroll 1
    for (int32_t i = first_row * kChunks + thread_; i < Traits::kKeys * kChunks; i += 128) {
      StoreShared(
          SharedAddress(shared_.values[stage]) + ChunkOffset<Traits>(i / kChunks, i % kChunks),
          uint4{});
    }
    FenceAsyncProxy();
    Meet();
  }

  // Where this thread, and the first warpgroup's of the same number, has four of its sums in a
  // stage: half of them in the keys' place, half in the values'.
  __device__ uint32_t SumsAddress(int stage, int four) const {
    constexpr int kHalf = kOutputs / 8;
    const uint32_t half = four / kHalf * (Traits::kStages * Traits::kTileBytes);
    return SharedAddress(shared_.keys[stage]) + half + four % kHalf * (128 * 16) + thread_ * 16;
  }

  // Another warpgroup's sums to where the first one looks for them.
  __device__ __forceinline__ void SendSumsToFirst(int32_t tiles, const Sums& sums) {
    const int place = group_ - 1;
    shared_.sums_ring.empty[place].Wait(sums_cursor_.filled_parity());
    if (group_ < tiles) {
      const int stage = StageOfTile(LastTile(tiles, group_)).stage;
      Meet();  // the tensor cores have read the tile for all warps
#pragma unroll
      for (int four = 0; four < kOutputs / 4; ++four) {
        StoreShared(SumsAddress(stage, four),
                    make_uint4(__float_as_uint(sums.output[4 * four]),
                               __float_as_uint(sums.output[4 * four + 1]),
                               __float_as_uint(sums.output[4 * four + 2]),
                               __float_as_uint(sums.output[4 * four + 3])));
      }
      FenceAsyncProxy();
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (thread_ % 4 == 0) shared_.group_lse[group_][row_ + 8 * r] = sums.lse[r];
    }
    shared_.sums_ring.full[place].Arrive();
    sums_cursor_.Advance();
  }

  // Adds another warpgroup's sums to the first one's, and gives their place back.
  __device__ __forceinline__ void Add(int32_t tiles, int other, Sums& sums) {
    shared_.sums_ring.full[other - 1].Wait(sums_cursor_.parity());
    if (other < tiles) {
      const int stage = StageOfTile(LastTile(tiles, other)).stage;
      float own[2], added[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float lse = shared_.group_lse[other][row_ + 8 * r];
        const float peak = fmaxf(sums.lse[r], lse);
        own[r] = sums.lse[r] == -INFINITY ? 0.0f : Exp2((sums.lse[r] - peak) * kLog2E);
        added[r] = lse == -INFINITY ? 0.0f : Exp2((lse - peak) * kLog2E);
        const float total = own[r] + added[r];
        const float factor = total == 0.0f ? 0.0f : __fdividef(1.0f, total);
        own[r] *= factor;
        added[r] *= factor;
        sums.lse[r] = total == 0.0f ? -INFINITY : peak + __logf(total);
      }
#pragma unroll
      for (int four = 0; four < kOutputs / 4; ++four) {
        const uint4 v = LoadShared(SumsAddress(stage, four));
        float* const to = sums.output + 4 * four;
        to[0] = to[0] * own[0] + __uint_as_float(v.x) * added[0];
        to[1] = to[1] * own[0] + __uint_as_float(v.y) * added[0];
        to[2] = to[2] * own[1] + __uint_as_float(v.z) * added[1];
        to[3] = to[3] * own[1] + __uint_as_float(v.w) * added[1];
      }
      ReleaseSums(stage);
    }
    shared_.sums_ring.empty[other - 1].Arrive();
  }

  // Called by the first warpgroup, which holds the CTA's sums.
  __device__ __forceinline__ void MergeWithPeers(const PrefillItem& item, int32_t rows,
                                                 int32_t tiles, const Sums& sums) {
    const int stage = tiles > 0 ? StageOfTile(LastTile(tiles, 0)).stage : 0;
    SendSumsToPeers(rows, tiles, stage, sums);
    WaitForPeerArrivals(shared_.parts_ready);
    const RowShare share = ShareOf(rows, ctas_, static_cast<int32_t>(ClusterRank()));
    ShortMerger<Traits>(plan_, shared_, thread_).Merge(item, share, ctas_);
    ArriveAtPeers(shared_.parts_read);
    shows_ = true;
    shown_stage_ = tiles > 0 ? stage : -1;
  }

  // Called before the next item. The kernel's end does the same for the last one.
  __device__ __forceinline__ void WaitUntilPeersHaveRead() {
    if (!shows_) return;
    WaitForPeerArrivals(shared_.parts_read);
    peer_parity_ ^= 1;
    if (shown_stage_ >= 0) ReleaseSums(shown_stage_);
  }

  // The CTA's sums to where the peers look for them.
  __device__ __forceinline__ void SendSumsToPeers(int32_t rows, int32_t tiles, int stage,
                                                  const Sums& sums) {
    const uint32_t rank = ClusterRank();
    if (thread_ < ctas_) {
      StorePeer(PeerAddress(SharedAddress(&shared_.parts.stages[rank]), thread_), stage);
    }
    const int32_t share = (rows + ctas_ - 1) / ctas_;
    Meet();  // the tensor cores have read the last tile for all warps
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = row_ + 8 * r;
      if (row >= rows) continue;
      if (thread_ % 4 == 0) {
        const int owner = row / share;
        const int at = static_cast<int>(rank) * share + row - owner * share;
        StorePeer(PeerAddress(SharedAddress(&shared_.parts.lse[at]), owner),
                  __float_as_uint(sums.lse[r]));
      }
      if (tiles == 0) continue;
      const uint32_t to = SharedAddress(shared_.keys[stage]);
#pragma unroll
      for (int j = 0; j < kOutputs / 4; ++j) {
        StoreShared(to + SumsOffset<Traits>(row, 8 * j + 2 * (thread_ % 4)),
                    make_uint2(__float_as_uint(sums.output[4 * j + 2 * r]),
                               __float_as_uint(sums.output[4 * j + 2 * r + 1])));
      }
    }
    ArriveAtPeers(shared_.parts_ready);
  }

  // When all of the warpgroup's threads have come here.
  __device__ void ArriveAtPeers(const TransactionBarrier& barrier) const {
    Meet();
    if (thread_ < ctas_) ArriveAtPeer(PeerAddress(barrier.address(), thread_));
  }

  // Until all peers have arrived; what they did before is done for all of the warpgroup's threads.
  __device__ void WaitForPeerArrivals(const TransactionBarrier& barrier) const {
    if (thread_ < 32) WaitForPeers(barrier, peer_parity_);
    Meet();
  }

  // The places of a tile in which sums lay.
  __device__ void ReleaseSums(int stage) {
    FenceAsyncProxy();
    ReleaseTile(shared_.key_ring.empty[stage]);
    ReleaseTile(shared_.value_ring.empty[stage]);
  }

  const PrefillPlan& plan_;
  ShortShared<Traits>& shared_;
  int group_;
  int thread_;
  int row_;  // of the tile, the first of this thread's two
  int32_t ctas_;
  uint64_t query_;
  uint32_t query_words_[Traits::kFp8 ? Traits::kHeadDim / 4 : 1];
  uint64_t keys_;
  uint64_t values_;
  uint32_t tiles_before_ = 0;  // of earlier items
  uint32_t peer_parity_ = 0;
  bool shows_ = false;    // parts of an item, which peers may still read
  int shown_stage_ = -1;  // where, if it has sums
  RingCursor<kShortItemSlots> item_cursor_;
  RingCursor<Traits::kQuerySlots> query_cursor_;
  RingCursor<1> sums_cursor_;
};

}  // namespace kvtier::kernels
