// A consumer warpgroup: 64 rows of queries against one tile of keys after another. The scores of a
// tile and the output of the tile before are multiplied in one turn at the tensor cores; the two
// warpgroups take turns, so that one's exponentials hide behind the other's multiplications.
#pragma once

#include <cstdint>

#include "kernels/append/append_shared.cuh"
#include "kernels/append/append_softmax.cuh"
#include "kernels/append/pack_pair.cuh"
#include "kernels/append/wgmma.cuh"

namespace kvtier::kernels {

template <typename Traits>
class TileConsumer {
 public:
  // `thread`: 0 to 127 within warpgroup `group`.
  __device__ TileConsumer(const AppendPlan& plan, AppendShared<Traits>& shared, int group,
                          int thread)
      : plan_(plan),
        shared_(shared),
        group_(group),
        warp_(thread / 32),
        lane_(thread % 32),
        row_(group * 64 + thread / 32 * 16 + thread % 32 / 4) {
    query_ = wgmma::Descriptor(SharedAddress(shared.query) + group * 8 * Traits::kGroupBytes, 0,
                               Traits::kGroupBytes);
    keys_ = wgmma::Descriptor(SharedAddress(shared.keys[0]), 0, Traits::kGroupBytes);
    values_ = wgmma::Descriptor(SharedAddress(shared.values[0]), kAtomBytes, Traits::kGroupBytes);
  }

  __device__ void Run() {
    if (group_ == 1) PassTurn();
    WorkOff();
  }

 private:
  using Element = typename Traits::Element;
  static constexpr int kScores = Traits::kKeys / 2;
  static constexpr int kOutputs = Traits::kHeadDim / 2;
  static constexpr int kWords = Traits::kKeys / 4;  // a thread's probabilities in pairs
  static constexpr int kTurnBarrier = 1;            // and the next
  // Lifts probabilities times scales of values out of the range where fp16 loses digits.
  static constexpr float kValueScaleLift = 64.0f;

  // What a row may see: keys [first, last].
  struct Sight {
    int32_t first[2];
    int32_t last[2];
    // Every row of the warp sees the whole of tiles [first_whole, end_whole).
    int32_t first_whole;
    int32_t end_whole;
  };

  __device__ void TakeTurn() { NamedBarrierSync(kTurnBarrier + group_, 256); }
  __device__ void PassTurn() { NamedBarrierArrive(kTurnBarrier + (group_ ^ 1), 256); }

  __device__ __forceinline__ void Release(TransactionBarrier& barrier) {
    __syncwarp();
    if (lane_ == 0) barrier.Arrive();
  }

  // Of keys or values, as AppendShared counts them.
  __device__ __forceinline__ void ReleaseTile(TransactionBarrier& barrier) {
    if (Traits::kFp8 && plan_.scales_per_token) {
      barrier.Arrive();
    } else {
      Release(barrier);
    }
  }

  __device__ Sight SightOf(const AppendItem& item) const {
    Sight sight;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // Rows behind the last one are computed, though never written, as if they were it.
      const int32_t rows = item.query_length * plan_.group - item.first_row;
      const int32_t token = PlaceOf(plan_, item, min(row_ + 8 * r, rows - 1)).token;
      sight.last[r] = LastKey(plan_.params, item, token);
      sight.first[r] = FirstKey(plan_.params, item, token, sight.last[r]);
    }
    const int32_t first = __reduce_max_sync(0xffffffff, max(sight.first[0], sight.first[1]));
    const int32_t last = __reduce_min_sync(0xffffffff, min(sight.last[0], sight.last[1]));
    sight.first_whole = (first + Traits::kKeys - 1) / Traits::kKeys;
    sight.end_whole = (last + 1) / Traits::kKeys;
    return sight;
  }

  // What takes raw scores to natural logarithms, without the soft cap and scales along tokens.
  __device__ float ScoreScale(const AppendItem& item) const {
    return plan_.params.softmax_scale * HeadScale(plan_.params.kv.key_scales, item);
  }

  __device__ float HeadScale(const kvt_scales& scales, const AppendItem& item) const {
    if (!Traits::kFp8 || scales.values == nullptr || plan_.scales_per_token) return 1.0f;
    return scales.values[item.kv_head * scales.head_stride];
  }

  // scores = queries * keys^T, queued.
  __device__ __forceinline__ void QueueScores(float (&scores)[kScores], int stage) {
    const uint64_t keys = wgmma::Advance(keys_, stage * Traits::kTileBytes);
#pragma unroll
    for (int step = 0; step < Traits::kHeadDim / 16; ++step) {
      const uint32_t offset = step / 4 * kAtomBytes + step % 4 * 32;
      if constexpr (Traits::kQueryInRegisters) {
        wgmma::FromRegisters<Element, 0>(scores, query_words_ + 4 * step,
                                         wgmma::Advance(keys, offset), step > 0);
      } else {
        wgmma::FromShared<Element>(scores, wgmma::Advance(query_, offset),
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
  __device__ __forceinline__ void Shape(float (&scores)[kScores], int32_t tile, int stage,
                                        const Sight& sight, float score_scale) {
    if constexpr (Traits::kFp8) {
      if (plan_.scales_per_token) {
        ScaleColumns(scores, shared_.raw.key_scales[stage], 1.0f);
      }
    }
    ReleaseTile(shared_.key_ring.empty[stage]);
    key_cursor_.Advance();
    const float cap = plan_.params.soft_cap;
    if (__builtin_expect(cap > 0.0f, 0)) {
      const float factor = score_scale / cap;
#pragma unroll
      for (int i = 0; i < kScores; ++i) scores[i] = Tanh(scores[i] * factor);
    }
    if (tile < sight.first_whole || tile >= sight.end_whole) Mask(scores, tile, sight);
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
  __device__ __forceinline__ void ApplyValueScales(float (&scores)[kScores]) {
    if constexpr (Traits::kFp8) {
      if (!plan_.scales_per_token) return;
      const int stage = value_cursor_.stage();
      shared_.value_ring.full[stage].Wait(value_cursor_.parity());
      ScaleColumns(scores, shared_.raw.value_scales[stage], kValueScaleLift);
    }
  }

  // The queries of an item into registers, whose place in shared memory is then free for the next.
  __device__ __forceinline__ void LoadQuery() {
    shared_.query_ring.full[0].Wait(query_cursor_.parity());
    if constexpr (Traits::kQueryInRegisters) {
      const uint32_t row = group_ * 64 + warp_ * 16 + lane_ % 16;
#pragma unroll
      for (int step = 0; step < Traits::kHeadDim / 16; ++step) {
        const uint32_t at = ChunkOffset<Traits>(row, 2 * step + lane_ / 16);
        LoadMatrices(SharedAddress(shared_.query) + at, query_words_ + 4 * step);
      }
      ReleaseQuery();
    }
  }

  __device__ __forceinline__ void ReleaseQuery() {
    Release(shared_.query_ring.empty[0]);
    query_cursor_.Advance();
  }

  __device__ __forceinline__ void WaitForKeys() {
    shared_.key_ring.full[key_cursor_.stage()].Wait(key_cursor_.parity());
  }

  // The scores of an item's first tile, when nothing else is under way.
  __device__ __forceinline__ void FirstScores(float (&scores)[kScores]) {
    LoadQuery();
    WaitForKeys();
    wgmma::Fence();
    QueueScores(scores, key_cursor_.stage());
    wgmma::Wait<0>();
    wgmma::Settle(scores);
  }

  // Items one after another. The scores of an item's first tile are multiplied beside the output of
  // the last tile of the item before, so that storing the one hides behind the other.
  __device__ __forceinline__ void WorkOff() {
    AppendItem item = TakeItem(shared_, item_cursor_, lane_);
    if (!item.valid) return;
    float scores[kScores];
    float output[kOutputs];
    FirstScores(scores);
    for (;;) {
      const float score_scale = ScoreScale(item);
      const float cap = plan_.params.soft_cap;
      RunningSoftmax<kScores> softmax((cap > 0.0f ? cap : score_scale) * kLog2E);
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) output[i] = 0.0f;
      const AppendItem next = Accumulate(item, score_scale, softmax, scores, output);
      Finish(item, softmax, output);
      if constexpr (Traits::kQueryInRegisters) {
        wgmma::Wait<0>();
        wgmma::Settle(scores);
      }
      if (!next.valid) return;
      if constexpr (!Traits::kQueryInRegisters) FirstScores(scores);
      item = next;
    }
  }

  // From the scores of the item's first tile on. Returns the next item; if there is one, the scores
  // of its first tile are queued.
  __device__ __forceinline__ AppendItem Accumulate(const AppendItem& item, float score_scale,
                                                   RunningSoftmax<kScores>& softmax,
                                                   float (&scores)[kScores],
                                                   float (&output)[kOutputs]) {
    const Sight sight = SightOf(item);
    float correction[2];
    uint32_t probabilities[kWords];
    // From lane 0, so that the compiler keeps descriptors in registers that the warp shares.
    const int32_t tiles = __shfl_sync(0xffffffff, item.end_tile - item.first_tile, 0);
    for (int32_t i = 0;;) {
      Shape(scores, TileAt(item, i), key_cursor_.stage(), sight, score_scale);
      const bool raises = __any_sync(0xffffffff, softmax.Exceeds(scores));
      if (raises) softmax.Raise(scores, correction);
      softmax.Exponentiate(scores);
      // The output of the tile before.
      wgmma::Wait<0>();
      wgmma::Settle(output);
      if (i > 0) {
        ReleaseTile(shared_.value_ring.empty[value_cursor_.stage()]);
        value_cursor_.Advance();
      }
      ApplyValueScales(scores);
      Pack(scores, probabilities);
      if (raises && i > 0) Rescale(output, correction);
      if (++i == tiles) break;
      const int key_stage = key_cursor_.stage(), value_stage = value_cursor_.stage();
      shared_.key_ring.full[key_stage].Wait(key_cursor_.parity());
      TakeTurn();
      wgmma::Fence();
      QueueScores(scores, key_stage);
      shared_.value_ring.full[value_stage].Wait(value_cursor_.parity());
      wgmma::Fence();
      QueueOutput(output, probabilities, value_stage);
      PassTurn();
      wgmma::Wait<1>();
      wgmma::Settle(scores);
    }
    if constexpr (!Traits::kQueryInRegisters) ReleaseQuery();
    const AppendItem next = TakeItem(shared_, item_cursor_, lane_);
    const int key_stage = key_cursor_.stage(), value_stage = value_cursor_.stage();
    if (Traits::kQueryInRegisters && next.valid) {
      LoadQuery();
      WaitForKeys();
    }
    shared_.value_ring.full[value_stage].Wait(value_cursor_.parity());
    TakeTurn();
    wgmma::Fence();
    QueueOutput(output, probabilities, value_stage);
    if constexpr (Traits::kQueryInRegisters) QueueScores(scores, key_stage);
    PassTurn();
    wgmma::Wait<Traits::kQueryInRegisters ? 1 : 0>();
    wgmma::Settle(output);
    ReleaseTile(shared_.value_ring.empty[value_stage]);
    value_cursor_.Advance();
    return next;
  }

  __device__ __forceinline__ void Rescale(float (&output)[kOutputs],
                                          const float (&factor)[2]) const {
#pragma unroll
    for (int i = 0; i < kOutputs; i += 4) {
      output[i] *= factor[0];
      output[i + 1] *= factor[0];
      output[i + 2] *= factor[1];
      output[i + 3] *= factor[1];
    }
  }

  __device__ __forceinline__ void Finish(const AppendItem& item, RunningSoftmax<kScores>& softmax,
                                         float (&output)[kOutputs]) {
    const kvt_append_params& p = plan_.params;
    const float value_scale = Traits::kFp8 && plan_.scales_per_token
                                  ? 1.0f / kValueScaleLift
                                  : HeadScale(p.kv.value_scales, item);
    const int32_t rows = item.query_length * plan_.group - item.first_row;
    float factor[2], lse[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sink = -INFINITY;
      if (p.sinks != nullptr && item.split == 0 && row_ + 8 * r < rows) {
        sink = p.sinks[PlaceOf(plan_, item, row_ + 8 * r).head];
      }
      softmax.Finish(r, sink, factor[r], lse[r]);
      factor[r] *= value_scale;
    }
    StoreLse(item, rows, lse);
    Rescale(output, factor);
    if (plan_.splits > 1) {
      StorePartial(item, rows, output);
    } else {
      StoreOutput(item, rows, output);
    }
  }

  __device__ __forceinline__ void StoreLse(const AppendItem& item, int32_t rows,
                                           const float (&lse)[2]) const {
    const kvt_append_params& p = plan_.params;
    const bool is_part = plan_.splits > 1;
    if (!is_part && p.lse == nullptr) return;
    float* to =
        is_part ? plan_.partial_lse + int64_t{item.split} * p.query_tokens * p.q_heads : p.lse;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (lane_ % 4 != 0 || row_ + 8 * r >= rows) continue;
      const RowPlace place = PlaceOf(plan_, item, row_ + 8 * r);
      to[(int64_t{item.query_start} + place.token) * p.q_heads + place.head] = lse[r];
    }
  }

  __device__ __forceinline__ void StorePartial(const AppendItem& item, int32_t rows,
                                               const float (&output)[kOutputs]) const {
    const kvt_append_params& p = plan_.params;
    // The LSE of a part without keys tells that nothing is there, unless a sink gave it one.
    if (ExistingKeys<Traits>(item, item.first_tile) == 0 && p.sinks == nullptr) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (row_ + 8 * r >= rows) continue;
      const RowPlace place = PlaceOf(plan_, item, row_ + 8 * r);
      const int64_t token = item.split * int64_t{p.query_tokens} + item.query_start + place.token;
      float* to = plan_.partial_output + (token * p.q_heads + place.head) * Traits::kHeadDim +
                  2 * (lane_ % 4);
#pragma unroll
      for (int j = 0; j < kOutputs / 4; ++j) {
        *reinterpret_cast<float2*>(to + 8 * j) =
            make_float2(output[4 * j + 2 * r], output[4 * j + 2 * r + 1]);
      }
    }
  }

  // Where a row of this warp's 16 goes, or null behind the sequence's last one.
  __device__ uint16_t* RowAddress(const AppendItem& item, int32_t rows, int32_t row) const {
    const kvt_append_params& p = plan_.params;
    const int32_t tile_row = group_ * 64 + warp_ * 16 + row;
    if (tile_row >= rows) return nullptr;
    const RowPlace place = PlaceOf(plan_, item, tile_row);
    return static_cast<uint16_t*>(p.output) +
           (int64_t{item.query_start} + place.token) * p.output_token_stride +
           place.head * p.output_head_stride;
  }

  // Through shared memory, 64 columns at a time, so that rows leave in whole 128-byte lines.
  __device__ __forceinline__ void StoreOutput(const AppendItem& item, int32_t rows,
                                              const float (&output)[kOutputs]) {
    const bool bf16 = Traits::kFp8 ? plan_.params.query_dtype == KVT_BF16 : wgmma::kIsBf16<Element>;
    const uint32_t stage = SharedAddress(shared_.output[group_ * 4 + warp_]);
    const auto address = reinterpret_cast<uint64_t>(RowAddress(item, rows, lane_ % 16));
    // Matrix m of four: rows from 8 * (m % 2) on, and of two columns of matrices the one m / 2.
    const uint32_t matrix_row = stage + lane_ % 16 * 128;
#pragma unroll
    for (int part = 0; part < Traits::kHeadDim / 64; ++part) {
      __syncwarp();
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        const float* d = output + 32 * part + 4 * j;
        StoreMatrices(matrix_row + (((j + lane_ / 16) ^ (lane_ % 8)) * 16),
                      {PackPair(d[0], d[1], bf16), PackPair(d[2], d[3], bf16),
                       PackPair(d[4], d[5], bf16), PackPair(d[6], d[7], bf16)});
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = i * 4 + lane_ / 8, chunk = lane_ % 8;
        auto* to = reinterpret_cast<uint16_t*>(__shfl_sync(0xffffffff, address, row));
        if (to == nullptr) continue;
        __stcg(reinterpret_cast<uint4*>(to + part * 64 + chunk * 8),
               LoadShared(stage + row * 128 + ((chunk ^ (row % 8)) * 16)));
      }
    }
  }

  const AppendPlan& plan_;
  AppendShared<Traits>& shared_;
  int group_;
  int warp_;
  int lane_;
  int row_;  // of the tile, the first of this thread's two
  uint64_t query_;
  uint32_t query_words_[Traits::kQueryInRegisters ? Traits::kHeadDim / 4 : 1];
  uint64_t keys_;
  uint64_t values_;
  RingCursor<kItemSlots> item_cursor_;
  RingCursor<1> query_cursor_;
  RingCursor<Traits::kKeyStages> key_cursor_;
  RingCursor<Traits::kValueStages> value_cursor_;
};

}  // namespace kvtier::kernels
