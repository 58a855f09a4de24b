// Tiles of an fp8 cache on their way to the tensor cores: e4m3 to fp16, which holds all its values,
// from the ring of raw tiles to those of keys and values.
#pragma once

#include <cstdint>

#include "kernels/append/append_shared.cuh"
#include "kernels/append/fp16_pair.cuh"

namespace kvtier::kernels {

// Where the loader threads stand in the rings; kept from item to item.
template <typename Traits>
struct WidenerCursors {
  RingCursor<Traits::kKeyStages> keys;
  RingCursor<Traits::kValueStages> values;
  RingCursor<Traits::kRawStages> raw;
};

// The loader threads together. A thread owns one column of 16 values in every kRowsAtOnce-th row.
template <typename Traits>
class TileWidener {
 public:
  __device__ TileWidener(const AppendPlan& plan, AppendShared<Traits>& shared, int thread,
                         WidenerCursors<Traits>& rings)
      : plan_(plan), shared_(shared), thread_(thread), rings_(rings) {
    const int column = thread % kColumns, row = thread / kColumns;
    // Threads of the upper half of a 128-byte line store their two chunks in the other order, else
    // both halves would meet in the same banks.
    swap_ = column % 8 >= 4;
#pragma unroll
    for (int phase = 0; phase < kPhases; ++phase) {
      offset_[phase] = ChunkOffset<Traits>(row + phase * kRowsAtOnce, 2 * column + (swap_ ? 1 : 0));
    }
  }

  // Follows the copying warp's order of tiles.
  __device__ void Run(const AppendItem& item) {
    for (int32_t tile = item.end_tile - 1; tile >= item.first_tile; --tile) {
      WidenKeys(item, tile);
      if (tile + 1 < item.end_tile) WidenValues(item, tile + 1);
    }
    WidenValues(item, item.first_tile);
  }

 private:
  static constexpr int kColumns = Traits::kHeadDim / 16;
  static constexpr int kRowsAtOnce = Traits::kLoaderThreads / kColumns;
  static constexpr int kSteps = (Traits::kKeys + kRowsAtOnce - 1) / kRowsAtOnce;
  // Steps after which the swizzle repeats, and by how much a row's offset has grown by then.
  static constexpr int kPhases = kRowsAtOnce % 8 == 0 ? 1 : kRowsAtOnce % 4 == 0 ? 2 : 4;
  static constexpr uint32_t kPhaseBytes = kPhases * kRowsAtOnce / 8 * Traits::kGroupBytes;
  static constexpr int kBatch = 4;
  static_assert(Traits::kLoaderThreads % kColumns == 0 && kRowsAtOnce % 2 == 0);

  __device__ void WidenKeys(const AppendItem& item, int32_t tile) {
    Widen(item, tile, rings_.keys, shared_.key_ring, shared_.keys, plan_.params.kv.key_scales,
          shared_.raw.key_scales);
  }

  __device__ void WidenValues(const AppendItem& item, int32_t tile) {
    Widen(item, tile, rings_.values, shared_.value_ring, shared_.values,
          plan_.params.kv.value_scales, shared_.raw.value_scales);
  }

  template <int kStages, size_t kBytes>
  __device__ __forceinline__ void Widen(const AppendItem& item, int32_t tile,
                                        RingCursor<kStages>& cursor, Ring<kStages>& ring,
                                        char (&tiles)[kStages][kBytes], const kvt_scales& scales,
                                        float (&shared_scales)[kStages][Traits::kKeys]) {
    const int stage = cursor.stage(), raw_stage = rings_.raw.stage();
    const int32_t existing = ExistingKeys<Traits>(item, tile);
    ring.empty[stage].Wait(cursor.filled_parity());
    if (plan_.scales_per_token) LoadScales(item, tile, existing, scales, shared_scales[stage]);
    shared_.raw.ring.full[raw_stage].Wait(rings_.raw.parity());
    const uint32_t from = SharedAddress(shared_.raw.tiles[raw_stage]) + thread_ * 16;
    const uint32_t to = SharedAddress(tiles[stage]);
#pragma unroll
    for (int first = 0; first < kSteps; first += kBatch) WidenBatch(from, to, first, existing);
    FenceAsyncProxy();
    ring.full[stage].Arrive();
    __syncwarp();
    if (thread_ % 32 == 0) shared_.raw.ring.empty[raw_stage].Arrive();
    cursor.Advance();
    rings_.raw.Advance();
  }

  // All reads before the first write, so that they overlap. Rows that do not exist become 0.
  __device__ __forceinline__ void WidenBatch(uint32_t from, uint32_t to, int first,
                                             int32_t existing) const {
    const int row = thread_ / kColumns;
    uint4 raw[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int step = first + i;
      if (step >= kSteps) continue;
      raw[i] = uint4{};
      if (row + step * kRowsAtOnce < existing) {
        raw[i] = LoadShared(from + step * Traits::kLoaderThreads * 16);
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int step = first + i;
      if (step >= kSteps || row + step * kRowsAtOnce >= Traits::kKeys) continue;
      const uint32_t at = to + offset_[step % kPhases] + step / kPhases * kPhaseBytes;
      const uint2 low = make_uint2(raw[i].x, raw[i].y), high = make_uint2(raw[i].z, raw[i].w);
      StoreWide(at, swap_ ? high : low);
      StoreWide(at ^ 16, swap_ ? low : high);
    }
  }

  __device__ void LoadScales(const AppendItem& item, int32_t tile, int32_t existing,
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

  const AppendPlan& plan_;
  AppendShared<Traits>& shared_;
  int thread_;
  WidenerCursors<Traits>& rings_;
  bool swap_;
  uint32_t offset_[kPhases];
};

}  // namespace kvtier::kernels
