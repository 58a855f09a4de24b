// SPDX-License-Identifier: Apache-2.0
// Tiles of an fp8 cache on their way to the tensor cores: e4m3 to fp16, which holds all its values,
// from the ring of raw tiles to that of tiles.
#pragma once

#include <cstdint>

#include "kernels/hopper/math.cuh"
#include "kernels/prefill/prefill_shared.cuh"

namespace kvtier::kernels {

// Where the loader threads stand in the rings; kept from item to item.
template <typename Traits>
struct WidenerCursors {
  RingCursor<Traits::kTileStages> tiles;
  RingCursor<Traits::kRawStages> raw;
};

// The loader threads together. A thread owns one column of 8 values in every kRowsAtOnce-th row, so
// that eight threads store one line of 128 bytes.
template <typename Traits>
class TileWidener {
 public:
  __device__ TileWidener(const PrefillPlan& plan, PrefillShared<Traits>& shared, int thread,
                         WidenerCursors<Traits>& rings)
      : plan_(plan), shared_(shared), thread_(thread), rings_(rings) {
#pragma unroll
    for (int phase = 0; phase < kPhases; ++phase) {
      offset_[phase] =
          ChunkOffset<Traits>(thread / kColumns + phase * kRowsAtOnce, thread % kColumns);
    }
  }

  // Follows the copying warp's order of tiles. Calls `begin_next` when kTilesAhead of them are
  // left.
  template <typename Function>
  __device__ void Run(const PrefillItem& item, Function begin_next) {
    const int32_t tiles = item.end_tile - item.first_tile;
    ForEachTile<Traits>(tiles, [&](int32_t i, bool is_key) {
      Widen(item, TileAt(item, i), is_key);
      if (!is_key && i == max(0, tiles - kTilesAhead)) begin_next();
    });
  }

 private:
  static constexpr int kColumns = Traits::kHeadDim / 8;
  static constexpr int kRowsAtOnce = Traits::kLoaderThreads / kColumns;
  static constexpr int kSteps = (Traits::kKeys + kRowsAtOnce - 1) / kRowsAtOnce;
  // Steps after which the swizzle repeats, and by how much a row's offset has grown by then.
  static constexpr int kPhases = kRowsAtOnce % 4 == 0 ? 2 : kRowsAtOnce % 2 == 0 ? 4 : 8;
  static constexpr uint32_t kPhaseBytes = kPhases * kRowsAtOnce / 8 * Traits::kGroupBytes;
  static constexpr int kBatch = 8;
  static_assert(Traits::kLoaderThreads % kColumns == 0);

  __device__ __forceinline__ void Widen(const PrefillItem& item, int32_t tile, bool is_key) {
    const int stage = rings_.tiles.stage(), raw_stage = rings_.raw.stage();
    const int32_t existing = ExistingKeys<Traits>(item, tile);
    shared_.tile_ring.empty[stage].Wait(rings_.tiles.filled_parity());
    if (plan_.scales_per_token) {
      const kvt_paged_kv& kv = plan_.params.kv;
      LoadScales(item, tile, existing, is_key ? kv.key_scales : kv.value_scales,
                 shared_.raw.scales[stage]);
    }
    shared_.raw.ring.full[raw_stage].Wait(rings_.raw.parity());
    const uint32_t from = SharedAddress(shared_.raw.tiles[raw_stage]) + thread_ * 8;
    const uint32_t to = SharedAddress(shared_.tiles[stage]);
    if (IsWhole<Traits>(item, tile)) {
      WidenWhole(from, to);
    } else {
      WidenPart(from, to, existing);
    }
    FenceAsyncProxy();
    shared_.tile_ring.full[stage].Arrive();
    __syncwarp();
    if (thread_ % 32 == 0) shared_.raw.ring.empty[raw_stage].Arrive();
    rings_.tiles.Advance();
    rings_.raw.Advance();
  }

  // Only the last of the steps may go beyond the tile, and that not for all threads.
  __device__ __forceinline__ bool IsWithin(int step) const {
    return (step + 1) * kRowsAtOnce <= Traits::kKeys ||
           (step < kSteps && thread_ < (Traits::kKeys - step * kRowsAtOnce) * kColumns);
  }

  // All reads of a batch before its first write, so that they overlap.
  __device__ __forceinline__ void WidenWhole(uint32_t from, uint32_t to) const {
#pragma unroll
    for (int first = 0; first < kSteps; first += kBatch) {
      uint2 raw[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int step = first + i;
        if (IsWithin(step)) raw[i] = LoadSharedPair(from + step * Traits::kLoaderThreads * 8);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int step = first + i;
        if (!IsWithin(step)) continue;
        StoreWide(to + offset_[step % kPhases] + step / kPhases * kPhaseBytes, raw[i]);
      }
    }
  }

  // The last tile of a sequence. Rows that do not exist become 0.
  __device__ void WidenPart(uint32_t from, uint32_t to, int32_t existing) const {
    for (int row = thread_ / kColumns; row < Traits::kKeys; row += kRowsAtOnce) {
      const uint2 raw = row < existing ? LoadSharedPair(from) : uint2{};
      StoreWide(to + ChunkOffset<Traits>(row, thread_ % kColumns), raw);
      from += Traits::kLoaderThreads * 8;
    }
  }

  __device__ void LoadScales(const PrefillItem& item, int32_t tile, int32_t existing,
                             const kvt_scales& scales, float (&to)[Traits::kKeys]) const {
    const kvt_sequences& s = plan_.params.sequences;
    for (int row = thread_; row < Traits::kKeys; row += Traits::kLoaderThreads) {
      float scale = scales.values == nullptr ? 1.0f : 0.0f;
      if (row < existing && scales.values != nullptr) {
        const int32_t token = tile * Traits::kKeys + row;
        const int64_t block =
            s.block_table[item.sequence * s.table_stride + (token >> plan_.page_shift)];
        scale = scales.values[block * scales.block_stride +
                              (token & (plan_.params.kv.page_tokens - 1)) * scales.token_stride +
                              item.kv_head * scales.head_stride];
      }
      to[row] = scale;
    }
  }

  const PrefillPlan& plan_;
  PrefillShared<Traits>& shared_;
  int thread_;
  WidenerCursors<Traits>& rings_;
  uint32_t offset_[kPhases];
};

}  // namespace kvtier::kernels
