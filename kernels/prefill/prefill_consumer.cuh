// SPDX-License-Identifier: Apache-2.0
// A consumer warpgroup: 64 rows of queries against one tile of keys after another.
//
// Of two warpgroups each multiplies the scores of a tile and the output of the tile before in one
// turn at the tensor cores, so that one's exponentials hide behind the other's multiplications.
// Three multiply, exponentiate and multiply again, one after the other and each on its own.
#pragma once

#include <cstdint>

#include "kernels/hopper/pack_pair.cuh"
#include "kernels/hopper/wgmma.cuh"
#include "kernels/prefill/prefill_output.cuh"
#include "kernels/prefill/prefill_shared.cuh"
#include "kernels/prefill/prefill_softmax.cuh"

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
    if (group_ == Traits::kWarpgroups - 1) PassTurn();
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
  static constexpr int kTurnBarrier = 1;            // and one for each further warpgroup
  static constexpr int kGroupBarrier = kTurnBarrier + Traits::kWarpgroups;
  // Lifts probabilities times scales of values out of the range where fp16 loses digits.
  static constexpr float kValueScaleLift = 64.0f;

  // What a thread's two rows may see: keys [first, last].
  struct Sight {
    int32_t first[2];
    int32_t last[2];
  };

  // Every row of the warp sees the whole of tiles [first, end).
  struct WholeTiles {
    int32_t first;
    int32_t end;
  };

  __device__ void TakeTurn() { NamedBarrierSync(kTurnBarrier + group_, 256); }
  __device__ void PassTurn() {
    NamedBarrierArrive(kTurnBarrier + (group_ + 1) % Traits::kWarpgroups, 256);
  }

  __device__ __forceinline__ void Release(TransactionBarrier& barrier) {
    __syncwarp();
    if (lane_ == 0) barrier.Arrive();
  }

  // Where a tile lies, or will, once its barrier has passed the phase of this parity.
  struct Place {
    int stage;
    uint32_t parity;
  };

  // Of the tile whose turn it is.
  __device__ __forceinline__ Place NextTile() {
    const Place place = {tile_cursor_.stage(), tile_cursor_.parity()};
    tile_cursor_.Advance();
    return place;
  }

  __device__ __forceinline__ void WaitFor(const Place& place) {
    shared_.tile_ring.full[place.stage].Wait(place.parity);
  }

  __device__ __forceinline__ int TakeTile() {
    const Place place = NextTile();
    WaitFor(place);
    return place.stage;
  }

  // As PrefillShared counts them.
  __device__ __forceinline__ void ReleaseTile(int stage) {
    if (Traits::kFp8 && plan_.scales_per_token) {
      shared_.tile_ring.empty[stage].Arrive();
    } else {
      Release(shared_.tile_ring.empty[stage]);
    }
  }

  __device__ Sight SightOf(const PrefillItem& item) const {
    Sight sight;
    const int32_t row = group_ * 64 + warp_ * 16 + lane_ / 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // Rows behind the last one are computed, though never written, as if they were it.
      const int32_t rows = item.query_length * plan_.group - item.first_row;
      const int32_t token = PlaceOf(plan_, item, min(row + 8 * r, rows - 1)).token;
      sight.last[r] = LastKey(plan_.params, item, token);
      sight.first[r] = FirstKey(plan_.params, item, token, sight.last[r]);
    }
    return sight;
  }

  __device__ WholeTiles WholeTilesOf(const PrefillItem& item) const {
    const Sight sight = SightOf(item);
    const int32_t first = __reduce_max_sync(0xffffffff, max(sight.first[0], sight.first[1]));
    const int32_t last = __reduce_min_sync(0xffffffff, min(sight.last[0], sight.last[1]));
    return {(first + Traits::kKeys - 1) / Traits::kKeys, (last + 1) / Traits::kKeys};
  }

  // What takes raw scores to natural logarithms, without the soft cap and scales along tokens.
  __device__ float ScoreScale(const PrefillItem& item) const {
    return plan_.params.softmax_scale * HeadScale(plan_.params.kv.key_scales, item);
  }

  __device__ float HeadScale(const kvt_scales& scales, const PrefillItem& item) const {
    if (!Traits::kFp8 || scales.values == nullptr || plan_.scales_per_token) return 1.0f;
    return scales.values[item.kv_head * scales.head_stride];
  }

  __device__ RunningSoftmax<kScores> NewSoftmax(const PrefillItem& item) const {
    const float cap = plan_.params.soft_cap;
    return RunningSoftmax<kScores>((cap > 0.0f ? cap : ScoreScale(item)) * kLog2E);
  }

  // scores = queries * keys^T, queued.
  __device__ __forceinline__ void QueueScores(float (&scores)[kScores], int stage) {
    const uint64_t keys = wgmma::Advance(keys_, stage * Traits::kTileBytes);
    const uint64_t query = wgmma::Advance(query_, query_cursor_.stage() * Traits::kQueryBytes);
#pragma unroll
    for (int step = 0; step < Traits::kHeadDim / 16; ++step) {
      const uint32_t offset = step / 4 * kAtomBytes + step % 4 * 32;
      if constexpr (Traits::kQueryInRegisters) {
        wgmma::FromRegisters<Element, 0>(scores, query_words_ + 4 * step,
                                         wgmma::Advance(keys, offset), step > 0);
      } else {
        wgmma::FromShared<Element>(scores, wgmma::Advance(query, offset),
                                   wgmma::Advance(keys, offset), step > 0);
      }
    }
    wgmma::Commit();
  }

  // output += probabilities * values, queued.
  __device__ __forceinline__ void QueueOutput(float (&output)[kOutputs],
                                              const uint32_t (&probabilities)[kWords], int stage) {
    const uint64_t values = wgmma::Advance(values_, stage * Traits::kTileBytes);
#pragma unroll
    for (int step = 0; step < Traits::kKeys / 16; ++step) {
      wgmma::FromRegisters<Element, 1>(output, probabilities + 4 * step,
                                       wgmma::Advance(values, step * 2 * Traits::kGroupBytes), 1);
    }
    wgmma::Commit();
  }

  // Everything between the raw scores of a tile and the softmax. Gives the tile's keys back.
  __device__ __forceinline__ void Shape(float (&scores)[kScores], const PrefillItem& item,
                                        int32_t tile, int stage, const WholeTiles& whole) {
    if constexpr (Traits::kFp8) {
      if (plan_.scales_per_token) ScaleColumns(scores, shared_.raw.scales[stage], 1.0f);
    }
    ReleaseTile(stage);
    const float cap = plan_.params.soft_cap;
    if (__builtin_expect(cap > 0.0f, 0)) {
      const float factor = ScoreScale(item) / cap;
#pragma unroll
      for (int i = 0; i < kScores; ++i) scores[i] = Tanh(scores[i] * factor);
    }
    // Where the sight ends is looked up again: few tiles need it, and registers are dear.
    if (tile < whole.first || tile >= whole.end) Mask(scores, tile, SightOf(item));
  }

  __device__ __forceinline__ void Mask(float (&scores)[kScores], int32_t tile,
                                       const Sight& sight) const {
    const int32_t base = tile * Traits::kKeys + 2 * (lane_ % 4);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int32_t last = sight.last[r] - base, first = sight.first[r] - base;
#pragma unroll
      for (int j = 0; j < kScores / 4; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int column = 8 * j + e;
          if (column > last || column < first) scores[4 * j + 2 * r + e] = -INFINITY;
        }
      }
    }
  }

  __device__ __forceinline__ void ScaleColumns(float (&scores)[kScores], const float* scales,
                                               float lift) const {
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j) {
      const float2 pair = *reinterpret_cast<const float2*>(scales + 8 * j + 2 * (lane_ % 4));
      scores[4 * j] *= pair.x * lift;
      scores[4 * j + 1] *= pair.y * lift;
      scores[4 * j + 2] *= pair.x * lift;
      scores[4 * j + 3] *= pair.y * lift;
    }
  }

  // Scores, by now probabilities, as the operand of the second multiplication.
  __device__ __forceinline__ void Pack(const float (&scores)[kScores],
                                       uint32_t (&probabilities)[kWords]) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      probabilities[i] = PackPair(scores[2 * i], scores[2 * i + 1], wgmma::kIsBf16<Element>);
    }
  }

  // The scales of a tile's values ride on its probabilities.
  __device__ __forceinline__ void ApplyValueScales(float (&scores)[kScores], const Place& values) {
    if constexpr (Traits::kFp8) {
      if (!plan_.scales_per_token) return;
      WaitFor(values);
      ScaleColumns(scores, shared_.raw.scales[values.stage], kValueScaleLift);
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

  // Three warpgroups: items one after another, and of each its tiles. A turn is the output of one
  // tile and the scores of the next.
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
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) output[i] = 0.0f;
    float scores[kScores];
    int keys = TakeTile();
    TakeTurn();
    wgmma::Fence();
    QueueScores(scores, keys);
    PassTurn();
    for (int32_t i = 0;;) {
      wgmma::Wait<0>();
      wgmma::Settle(scores);
      Shape(scores, item, tile, keys, whole);
      float correction[2];
      const bool raises = __any_sync(0xffffffff, softmax.Exceeds(scores));
      if (raises) softmax.Raise(scores, correction);
      softmax.Exponentiate(scores);
      const Place values = NextTile();
      ApplyValueScales(scores, values);
      Pack(scores, probabilities);
      if (raises && i > 0) RescaleRows(output, correction);
      tile += step;
      WaitFor(values);
      const bool is_last = ++i == tiles;
      if (!is_last) keys = TakeTile();
      TakeTurn();
      wgmma::Fence();
      QueueOutput(output, probabilities, values.stage);
      wgmma::Wait<0>();
      wgmma::Settle(output);
      ReleaseTile(values.stage);
      if (is_last) break;
      wgmma::Fence();
      QueueScores(scores, keys);
      PassTurn();
    }
    PassTurn();
    Finish(item, softmax, output);
  }

  // Of an item that ends before this warpgroup's rows: takes as many turns as the others.
  __device__ __forceinline__ void PassOver(const PrefillItem& item) {
    const int32_t tiles = item.end_tile - item.first_tile;
    TakeTurn();
    PassTurn();
    for (int32_t i = 0; i < tiles; ++i) {
      ReleaseTile(TakeTile());
      ReleaseTile(TakeTile());
      TakeTurn();
      PassTurn();
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
    PrefillItem item = TakeItem(shared_, item_cursor_);
    if (!item.valid) return;
    float scores[kScores];
    float output[kOutputs];
    int keys = FirstScores(scores);
    for (;;) {
      RunningSoftmax<kScores> softmax = NewSoftmax(item);
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) output[i] = 0.0f;
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
    Place values = {};
    const int32_t tiles = __shfl_sync(0xffffffff, item.end_tile - item.first_tile, 0);
    for (int32_t i = 0;;) {
      Shape(scores, item, TileAt(item, i), keys, whole);
      const bool raises = __any_sync(0xffffffff, softmax.Exceeds(scores));
      if (raises) softmax.Raise(scores, correction);
      softmax.Exponentiate(scores);
      // The output of the tile before.
      wgmma::Wait<0>();
      wgmma::Settle(output);
      if (i > 0) ReleaseTile(values.stage);
      const bool is_last = i + 1 == tiles;
      Place next_keys = {};
      if (!is_last) next_keys = NextTile();
      values = NextTile();
      ApplyValueScales(scores, values);
      Pack(scores, probabilities);
      if (raises && i > 0) RescaleRows(output, correction);
      if (is_last) break;
      ++i;
      keys = next_keys.stage;
      WaitFor(next_keys);
      TakeTurn();
      wgmma::Fence();
      QueueScores(scores, keys);
      WaitFor(values);
      wgmma::Fence();
      QueueOutput(output, probabilities, values.stage);
      PassTurn();
      wgmma::Wait<1>();
      wgmma::Settle(scores);
    }
    if constexpr (!Traits::kQueryInRegisters) ReleaseQuery();
    const PrefillItem next = TakeItem(shared_, item_cursor_);
    if (Traits::kQueryInRegisters && next.valid) {
      LoadQuery();
      keys = TakeTile();
    }
    WaitFor(values);
    TakeTurn();
    wgmma::Fence();
    QueueOutput(output, probabilities, values.stage);
    if constexpr (Traits::kQueryInRegisters) QueueScores(scores, keys);
    PassTurn();
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
