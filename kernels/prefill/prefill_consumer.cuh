// SPDX-License-Identifier: Apache-2.0
// A consumer warpgroup: 64 rows of queries against one tile of keys after another.
//
// With two warpgroups each multiplies the scores of a tile and the output of the tile before in one
// turn at the tensor cores, so that one's exponentials hide behind the other's multiplications.
// Three multiply, exponentiate and multiply again, one after the other and each on its own.
#pragma once

#include <cstdint>

#include "kernels/attention/online_softmax.cuh"
#include "kernels/attention/score_tile.cuh"
#include "kernels/hopper/math.cuh"
#include "kernels/hopper/wgmma.cuh"
#include "kernels/prefill/prefill_output.cuh"
#include "kernels/prefill/prefill_shared.cuh"
#include "kernels/prefill/prefill_tile.cuh"

namespace kvtier::kernels {

template <typename Traits>
class TileConsumer {
 public:
  // `thread`: 0 to 127 within warpgroup `group`.
  __device__ TileConsumer(const PrefillPlan& plan, PrefillShared<Traits>& shared, int group,
                          int thread)
      : plan_(plan), shared_(shared), group_(group), warp_(thread / 32), lane_(thread % 32) {
    const uint32_t tiles = SharedAddress(shared.tiles[0]);
    query_ = wgmma::Descriptor(SharedAddress(shared.query[0]) + group * 8 * Traits::kGroupBytes, 0,
                               Traits::kGroupBytes);
    keys_ = wgmma::Descriptor(tiles, 0, Traits::kGroupBytes);
    values_ = wgmma::Descriptor(tiles, kAtomBytes, Traits::kGroupBytes);
  }

  __device__ void Run() {
    if (group_ == Traits::kWarpgroups - 1) SchedulerBarrierArrive();
    if constexpr (Traits::kOverlapsTiles) {
      WorkOverlapping();
    } else {
      WorkInSteps();
    }
  }

 private:
  using Element = typename Traits::Element;
  static constexpr int kScores = Traits::kKeys / 2;
  static constexpr int kOutputs = Traits::kHeadDim / 2;
  static constexpr int kWords = Traits::kKeys / 4;  // a thread's probabilities in pairs
  static constexpr int kSchedulerBarrier = 1;       // and one for each further warpgroup
  static constexpr int kGroupBarrier = kSchedulerBarrier + Traits::kWarpgroups;

  // Every row of the warp sees the whole of tiles [first, end).
  struct WholeTiles {
    int32_t first;
    int32_t end;
  };

  // The scheduler barrier: warpgroups take the tensor cores in turn, so that one's softmax runs
  // beside another's multiplications. Each waits for its own named barrier, at which the warpgroup
  // before it arrives when its multiplications are queued.
  __device__ void SchedulerBarrierSync() { NamedBarrierSync(kSchedulerBarrier + group_, 256); }
  __device__ void SchedulerBarrierArrive() {
    NamedBarrierArrive(kSchedulerBarrier + (group_ + 1) % Traits::kWarpgroups, 256);
  }

  // The ring's stage in which a tile lies, or will, once its barrier has passed the phase of this
  // parity.
  struct StagePhase {
    int stage;
    uint32_t parity;
  };

  // The stage of the next tile in the order of ForEachTile.
  __device__ __forceinline__ StagePhase NextTile() {
    const StagePhase place = {tile_cursor_.stage(), tile_cursor_.parity()};
    tile_cursor_.Advance();
    return place;
  }

  __device__ __forceinline__ void WaitFor(const StagePhase& place) {
    shared_.tile_ring.full[place.stage].Wait(place.parity);
  }

  __device__ __forceinline__ int TakeTile() {
    const StagePhase place = NextTile();
    WaitFor(place);
    return place.stage;
  }

  // Arrives as often as PrefillShared::InitBarriers expects: for each thread where threads read
  // scales beside the tile themselves, else once for each warp.
  __device__ __forceinline__ void ReleaseTile(int stage) {
    if (Traits::kFp8 && plan_.scales_per_token) {
      shared_.tile_ring.empty[stage].Arrive();
    } else {
      ArriveOncePerWarp(shared_.tile_ring.empty[stage], lane_);
    }
  }

  __device__ VisibleKeys Visible(const PrefillItem& item) const {
    return VisibleKeysOf(plan_, item, group_ * 64 + warp_ * 16 + lane_ / 4,
                         item.query_length * plan_.group - item.first_row);
  }

  __device__ WholeTiles WholeTilesOf(const PrefillItem& item) const {
    const VisibleKeys visible = Visible(item);
    const int32_t first = __reduce_max_sync(0xffffffff, max(visible.first[0], visible.first[1]));
    const int32_t last = __reduce_min_sync(0xffffffff, min(visible.last[0], visible.last[1]));
    return {(first + Traits::kKeys - 1) / Traits::kKeys, (last + 1) / Traits::kKeys};
  }

  // The factor from raw scores to natural logarithms, without the soft cap and scales along tokens.
  __device__ float ScoreScale(const PrefillItem& item) const {
    return plan_.params.softmax_scale * HeadScale(plan_.params.kv.key_scales, item);
  }

  // The scale of the item's KV head, for an fp8 cache whose scales do not differ along tokens.
  __device__ float HeadScale(const kvt_scales& scales, const PrefillItem& item) const {
    if (!Traits::kFp8 || scales.values == nullptr || plan_.scales_per_token) return 1.0f;
    return scales.values[item.kv_head * scales.head_stride];
  }

  __device__ RunningSoftmax<kScores> NewSoftmax(const PrefillItem& item) const {
    const float cap = plan_.params.soft_cap;
    return RunningSoftmax<kScores>((cap > 0.0f ? cap : ScoreScale(item)) * kLog2E);
  }

  __device__ __forceinline__ void QueueScores(float (&scores)[kScores], int stage) {
    const uint64_t keys = wgmma::Advance(keys_, stage * Traits::kTileBytes);
    const uint64_t query = wgmma::Advance(query_, query_cursor_.stage() * Traits::kQueryBytes);
    kernels::QueueScores<Traits, Traits::kQueryInRegisters>(scores, query_words_, query, keys);
  }

  __device__ __forceinline__ void QueueOutput(float (&output)[kOutputs],
                                              const uint32_t (&probabilities)[kWords], int stage) {
    const uint64_t values = wgmma::Advance(values_, stage * Traits::kTileBytes);
    kernels::QueueOutput<Traits>(output, probabilities, values);
  }

  // Everything between the raw scores of a tile and the softmax: scales along tokens, soft cap,
  // mask. Releases the tile's keys, which the multiplication has read.
  __device__ __forceinline__ void CapAndMask(float (&scores)[kScores], const PrefillItem& item,
                                             int32_t tile, int stage, const WholeTiles& whole) {
    if constexpr (Traits::kFp8) {
      if (plan_.scales_per_token) ScaleColumns(scores, shared_.raw.scales[stage], lane_);
    }
    ReleaseTile(stage);
    const float cap = plan_.params.soft_cap;
    if (__builtin_expect(cap > 0.0f, 0)) {
      ApplySoftCap(scores, ScoreScale(item) / cap);
    }
    // The visible range is computed again: few tiles need it, and registers are scarce.
    if (tile < whole.first || tile >= whole.end) {
      MaskInvisible(scores, tile * Traits::kKeys, lane_, Visible(item));
    }
  }

  // The scales of a tile's values ride on its probabilities.
  __device__ __forceinline__ void ApplyValueScales(float (&scores)[kScores],
                                                   const StagePhase& values) {
    if constexpr (Traits::kFp8) {
      if (!plan_.scales_per_token) return;
      WaitFor(values);
      ScaleColumns(scores, shared_.raw.scales[values.stage], lane_, kValueScaleLift);
    }
  }

  // The queries of an item; where there is room into registers, which frees their place in shared
  // memory for the next.
  __device__ __forceinline__ void LoadQuery() {
    shared_.query_ring.full[query_cursor_.stage()].Wait(query_cursor_.parity());
    if constexpr (Traits::kQueryInRegisters) {
      const uint32_t row = group_ * 64 + warp_ * 16 + lane_ % 16;
#pragma unroll
      for (int step = 0; step < Traits::kHeadDim / 16; ++step) {
        const uint32_t at = ChunkOffset<Traits>(row, 2 * step + lane_ / 16);
        LoadMatrices(SharedAddress(shared_.query[0]) + at, query_words_ + 4 * step);
      }
      ReleaseQuery();
    }
  }

  __device__ __forceinline__ void ReleaseQuery() {
    shared_.query_ring.empty[query_cursor_.stage()].Arrive();
    query_cursor_.Advance();
  }

  // Three warpgroups: items one after another, and of each its tiles. Between two scheduler
  // barriers a warpgroup multiplies the output of one tile and the scores of the next.
  __device__ __forceinline__ void WorkInSteps() {
    for (;;) {
      // Stays in shared memory, since registers are dear.
      const int slot = item_cursor_.stage();
      shared_.item_ring.full[slot].Wait(item_cursor_.parity());
      const PrefillItem& item = shared_.items[slot];
      if (!item.valid) return;
      LoadQuery();
      if (item.query_length * plan_.group - item.first_row > group_ * 64) {
        WorkOnItem(item);
      } else {
        PassOver(item);
      }
      ReleaseQuery();
      shared_.item_ring.empty[slot].Arrive();
      item_cursor_.Advance();
    }
  }

  __device__ __forceinline__ void WorkOnItem(const PrefillItem& item) {
    float output[kOutputs];
    uint32_t probabilities[kWords];
    RunningSoftmax<kScores> softmax = NewSoftmax(item);
    const WholeTiles whole = WholeTilesOf(item);
    // From lane 0, so that the compiler keeps descriptors in registers that the warp shares.
    const int32_t tiles = __shfl_sync(0xffffffff, item.end_tile - item.first_tile, 0);
    const int32_t step = item.ascends ? 1 : -1;
    int32_t tile = TileAt(item, 0);
    Clear(output);
    float scores[kScores];
    int keys = TakeTile();
    SchedulerBarrierSync();
    wgmma::Fence();
    QueueScores(scores, keys);
    SchedulerBarrierArrive();
    for (int32_t i = 0;;) {
      wgmma::Wait<0>();
      wgmma::Settle(scores);
      CapAndMask(scores, item, tile, keys, whole);
      float correction[2];
      const bool max_grows = __any_sync(0xffffffff, softmax.ExceedsMax(scores));
      if (max_grows) softmax.UpdateMax(scores, correction);
      softmax.Exponentiate(scores);
      const StagePhase values = NextTile();
      ApplyValueScales(scores, values);
      PackProbabilities<Element>(scores, probabilities);
      if (max_grows && i > 0) RescaleRows(output, correction);
      tile += step;
      WaitFor(values);
      const bool is_last = ++i == tiles;
      if (!is_last) keys = TakeTile();
      SchedulerBarrierSync();
      wgmma::Fence();
      QueueOutput(output, probabilities, values.stage);
      wgmma::Wait<0>();
      wgmma::Settle(output);
      ReleaseTile(values.stage);
      if (is_last) break;
      wgmma::Fence();
      QueueScores(scores, keys);
      SchedulerBarrierArrive();
    }
    SchedulerBarrierArrive();
    Finish(item, softmax, output);
  }

  // Skips an item that ends before this warpgroup's rows: passes the scheduler barrier as often as
  // the other warpgroups, which wait for it there, and releases every tile.
  __device__ __forceinline__ void PassOver(const PrefillItem& item) {
    const int32_t tiles = item.end_tile - item.first_tile;
    SchedulerBarrierSync();
    SchedulerBarrierArrive();
    for (int32_t i = 0; i < tiles; ++i) {
      ReleaseTile(TakeTile());
      ReleaseTile(TakeTile());
      SchedulerBarrierSync();
      SchedulerBarrierArrive();
    }
  }

  // Shared memory through which this warp's output leaves: where there is no room of its own, that
  // of the item's queries, once the whole warpgroup is done with them.
  __device__ __forceinline__ uint32_t OutputStage() {
    const int warp = group_ * 4 + warp_;
    if constexpr (Traits::kQueryStages == 1) {
      return SharedAddress(shared_.output.rows[warp]);
    } else {
      NamedBarrierSync(kGroupBarrier + group_, 128);
      return SharedAddress(shared_.query[query_cursor_.stage()]) + warp * 2 * Traits::kGroupBytes;
    }
  }

  __device__ __forceinline__ void Finish(const PrefillItem& item, RunningSoftmax<kScores>& softmax,
                                         float (&output)[kOutputs]) {
    const float value_scale = Traits::kFp8 && plan_.scales_per_token
                                  ? 1.0f / kValueScaleLift
                                  : HeadScale(plan_.params.kv.value_scales, item);
    OutputWriter<Traits>(plan_, group_ * 64 + warp_ * 16, lane_)
        .Finish(item, value_scale, softmax, output, OutputStage());
  }

  // The scores of an item's first tile, when nothing else is under way. Returns where its keys lie.
  __device__ __forceinline__ int FirstScores(float (&scores)[kScores]) {
    LoadQuery();
    const int keys = TakeTile();
    wgmma::Fence();
    QueueScores(scores, keys);
    wgmma::Wait<0>();
    wgmma::Settle(scores);
    return keys;
  }

  // Two warpgroups: items one after another. The scores of an item's first tile are multiplied
  // beside the output of the last tile of the item before, so that storing the one hides behind the
  // other.
  __device__ __forceinline__ void WorkOverlapping() {
    PrefillItem item = ReceiveItem(shared_, item_cursor_);
    if (!item.valid) return;
    float scores[kScores];
    float output[kOutputs];
    int keys = FirstScores(scores);
    for (;;) {
      RunningSoftmax<kScores> softmax = NewSoftmax(item);
      Clear(output);
      const PrefillItem next = Accumulate(item, softmax, scores, output, keys);
      Finish(item, softmax, output);
      if constexpr (Traits::kQueryInRegisters) {
        wgmma::Wait<0>();
        wgmma::Settle(scores);
      }
      if (!next.valid) return;
      if constexpr (!Traits::kQueryInRegisters) keys = FirstScores(scores);
      item = next;
    }
  }

  // From the scores of the item's first tile on, whose keys lie in stage `keys`. Returns the next
  // item; if there is one and queries are in registers, the scores of its first tile are queued,
  // and `keys` is theirs.
  __device__ __forceinline__ PrefillItem Accumulate(const PrefillItem& item,
                                                    RunningSoftmax<kScores>& softmax,
                                                    float (&scores)[kScores],
                                                    float (&output)[kOutputs], int& keys) {
    const WholeTiles whole = WholeTilesOf(item);
    float correction[2];
    uint32_t probabilities[kWords];
    StagePhase values = {};
    const int32_t tiles = __shfl_sync(0xffffffff, item.end_tile - item.first_tile, 0);
    for (int32_t i = 0;;) {
      CapAndMask(scores, item, TileAt(item, i), keys, whole);
      const bool max_grows = __any_sync(0xffffffff, softmax.ExceedsMax(scores));
      if (max_grows) softmax.UpdateMax(scores, correction);
      softmax.Exponentiate(scores);
      // The output of the tile before.
      wgmma::Wait<0>();
      wgmma::Settle(output);
      if (i > 0) ReleaseTile(values.stage);
      const bool is_last = i + 1 == tiles;
      StagePhase next_keys = {};
      if (!is_last) next_keys = NextTile();
      values = NextTile();
      ApplyValueScales(scores, values);
      PackProbabilities<Element>(scores, probabilities);
      if (max_grows && i > 0) RescaleRows(output, correction);
      if (is_last) break;
      ++i;
      keys = next_keys.stage;
      WaitFor(next_keys);
      SchedulerBarrierSync();
      wgmma::Fence();
      QueueScores(scores, keys);
      WaitFor(values);
      wgmma::Fence();
      QueueOutput(output, probabilities, values.stage);
      SchedulerBarrierArrive();
      wgmma::Wait<1>();
      wgmma::Settle(scores);
    }
    if constexpr (!Traits::kQueryInRegisters) ReleaseQuery();
    const PrefillItem next = ReceiveItem(shared_, item_cursor_);
    if (Traits::kQueryInRegisters && next.valid) {
      LoadQuery();
      keys = TakeTile();
    }
    WaitFor(values);
    SchedulerBarrierSync();
    wgmma::Fence();
    QueueOutput(output, probabilities, values.stage);
    if constexpr (Traits::kQueryInRegisters) QueueScores(scores, keys);
    SchedulerBarrierArrive();
    wgmma::Wait<Traits::kQueryInRegisters ? 1 : 0>();
    wgmma::Settle(output);
    ReleaseTile(values.stage);
    return next;
  }

  const PrefillPlan& plan_;
  PrefillShared<Traits>& shared_;
  int group_;
  int warp_;
  int lane_;
  uint64_t query_;
  uint32_t query_words_[Traits::kQueryInRegisters ? Traits::kHeadDim / 4 : 1];
  uint64_t keys_;
  uint64_t values_;
  RingCursor<kItemSlots> item_cursor_;
  RingCursor<Traits::kQueryStages> query_cursor_;
  RingCursor<Traits::kTileStages> tile_cursor_;
};

}  // namespace kvtier::kernels
