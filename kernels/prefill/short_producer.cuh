// SPDX-License-Identifier: Apache-2.0
// The warps that feed a CTA of the kernel for short queries. As many tiles as the ring holds are
// under way from the start, so a short run of keys never waits for a place.
#pragma once

#include <cstdint>

#include "kernels/prefill/prefill_producer.cuh"
#include "kernels/prefill/short_shared.cuh"

namespace kvtier::kernels {

// The blocks of an item's units of keys, looked up for 32 units at a time, each lane one's, from
// the last tile to the first.
template <typename Traits>
class ShortTable {
 public:
  __device__ ShortTable(const PrefillPlan& plan, const PrefillItem& item, int lane)
      : row_(plan.params.sequences.block_table +
             item.sequence * plan.params.sequences.table_stride),
        first_unit_(item.first_tile),
        end_unit_(item.end_tile),
        page_shift_(plan.page_shift),
        lane_(lane),
        batch_(BatchOf(ShortTiles<Traits>(item) - 1)) {
    block_ = Look(batch_);
    next_block_ = Look(batch_ - 1);
  }

  // Before the blocks of tile `tile` are used; tiles descend.
  __device__ void Reach(int32_t tile) {
    if (BatchOf(tile) == batch_) return;
    block_ = next_block_;
    next_block_ = Look(--batch_ - 1);
  }

  // Which of a tile's units this lane's block is for; it may have none.
  __device__ int32_t OwnUnit(int32_t tile) const { return lane_ - tile * Traits::kUnits % 32; }
  __device__ int32_t own_block() const { return block_; }

 private:
  __device__ static int32_t BatchOf(int32_t tile) { return tile * Traits::kUnits / 32; }
  __device__ int32_t Look(int32_t batch) const {
    const int32_t unit = first_unit_ + batch * 32 + lane_;
    if (batch < 0 || unit >= end_unit_) return 0;
    return row_[unit * kShortUnitKeys >> page_shift_];
  }

  const int32_t* row_;
  int32_t first_unit_;
  int32_t end_unit_;
  int32_t page_shift_;
  int32_t lane_;
  int32_t batch_;
  int32_t block_;
  int32_t next_block_;
};

// How long L2 should keep an item's keys: those of one tile of queries are read once.
__device__ __forceinline__ uint64_t PolicyOf(const PrefillPlan& plan, const PrefillItem& item) {
  return item.query_length * plan.group <= kShortRows ? EvictFirst() : EvictNormal();
}

// Finds the items, gives them out, and has the copy engine bring keys and values.
template <typename Traits>
class ShortCopier {
 public:
  __device__ ShortCopier(const PrefillPlan& plan, ShortShared<Traits>& shared, int lane)
      : plan_(plan), shared_(shared), lane_(lane), schedule_(plan, lane), wait_(plan) {}

  __device__ void Run() {
    const auto ctas = static_cast<int32_t>(ClusterCtas());
    const uint32_t clusters = gridDim.x / ctas;
    int64_t index = blockIdx.x / ctas;
    for (;;) {
      PrefillItem item = schedule_.Find(index);
      if (item.valid) TakeShare(item, static_cast<uint32_t>(ctas));
      PublishItem(shared_, items_, item, lane_);
      if (!item.valid) break;
      ShortTable<Traits> table(plan_, item, lane_);
      wait_.Once();
      uint32_t drawn = 0;
      if (plan_.draws_items && lane_ == 0) drawn = atomicAdd(&plan_.counters->next_item, 1);
      CopyTiles(item, table);
      index = plan_.draws_items ? clusters + __shfl_sync(0xffffffff, drawn, 0) : index + clusters;
    }
    if (!plan_.draws_items) return;
    wait_.Once();
    if (lane_ == 0) ResetCounters(*plan_.counters);
  }

 private:
  // Cuts the item to this CTA's share of its units of keys.
  __device__ static void TakeShare(PrefillItem& item, uint32_t ctas) {
    const uint32_t rank = ClusterRank();
    const int32_t first = item.first_tile;
    // So few that their number times that of the CTAs fits: a unit has as many keys.
    const auto units = static_cast<uint32_t>(item.end_tile - first);
    item.first_tile = first + static_cast<int32_t>(units * rank / ctas);
    item.end_tile = first + static_cast<int32_t>(units * (rank + 1) / ctas);
  }

  // Keys before values, in the consumers' order.
  __device__ void CopyTiles(const PrefillItem& item, ShortTable<Traits>& table) {
    const uint64_t policy = PolicyOf(plan_, item);
#pragma unroll 1
    for (int32_t tile = ShortTiles<Traits>(item) - 1; tile >= 0; --tile) {
      table.Reach(tile);
      const int stage = cursor_.stage();
      auto& places = shared_.Copied();
      CopyTile(item, tile, table, plan_.key_map, places.key_ring, places.keys[stage], policy);
      CopyTile(item, tile, table, plan_.value_map, places.value_ring, places.values[stage], policy);
      cursor_.Advance();
    }
  }

  __device__ __forceinline__ void CopyTile(const PrefillItem& item, int32_t tile,
                                           const ShortTable<Traits>& table, const CUtensorMap& map,
                                           Ring<Traits::kCopyStages>& ring,
                                           char (&to)[Traits::kCopyTileBytes], uint64_t policy) {
    const int stage = cursor_.stage();
    const int32_t unit = item.first_tile + tile * Traits::kUnits;
    const int32_t units = min(Traits::kUnits, item.end_tile - unit);
    const int32_t own = table.OwnUnit(tile);
    ring.empty[stage].Wait(cursor_.filled_parity());
    if (lane_ == 0) ring.full[stage].ArriveAndExpectBytes(units * Traits::kCopyUnitBytes);
    __syncwarp();
    if (own < 0 || own >= units) return;
    const kvt_paged_kv& kv = plan_.params.kv;
    const int32_t in_page = (unit + own) * kShortUnitKeys & (kv.page_tokens - 1);
    CopyTensor(SharedAddress(to) + own * Traits::kCopyUnitBytes, map,
               static_cast<int32_t>(item.kv_head * kv.head_stride), 0, 0, in_page / 8,
               table.own_block(), ring.full[stage], policy);
  }

  const PrefillPlan& plan_;
  ShortShared<Traits>& shared_;
  int lane_;
  PrefillSchedule<typename Traits::Items> schedule_;
  RingCursor<kShortItemSlots> items_;
  RingCursor<Traits::kCopyStages> cursor_;
  DeferredGridWait wait_;
};

// Brings the queries and, where they differ along tokens, an fp8 cache's scales.
template <typename Traits>
class ShortQueryLoader {
 public:
  // `thread`: of those that load.
  __device__ ShortQueryLoader(const PrefillPlan& plan, ShortShared<Traits>& shared, int thread)
      : plan_(plan),
        shared_(shared),
        thread_(thread),
        chunk_(thread % kChunks),
        row_(thread / kChunks),
        wait_(plan) {}

  __device__ void Run() {
    for (;;) {
      const PrefillItem item = ReceiveItem(shared_, items_);
      if (!item.valid) return;
      if (item.first_tile >= item.end_tile) continue;
      wait_.Once();
      Load(item);
      if (Traits::kFp8 && plan_.scales_per_token) LoadScales(item);
    }
  }

 private:
  static constexpr int kChunks = Traits::kHeadDim / 8;  // of 16 bytes in a row
  static constexpr int kRowsAtOnce = 32 * kQueryWarps / kChunks;

  // Rows that do not exist keep their old contents: any result of them stays in them.
  __device__ void Load(const PrefillItem& item) {
    const kvt_prefill_params& p = plan_.params;
    const int slot = cursor_.stage();
    shared_.query_ring.empty[slot].Wait(cursor_.filled_parity());
    const int rows = min(kShortRows, item.query_length * plan_.group - item.first_row);
    const uint32_t to = SharedAddress(shared_.query[slot]);
    const auto* from = static_cast<const uint16_t*>(p.query) +
                       item.query_start * p.query_token_stride + chunk_ * 8;
#pragma unroll 4
    for (int row = row_; row < rows; row += kRowsAtOnce) {
      const RowPosition place = PositionOf(plan_, item, row);
      CopyAsync16(to + ChunkOffset<Traits>(row, chunk_),
                  from + place.token * p.query_token_stride + place.head * p.query_head_stride,
                  true);
    }
    ArriveOnCopies(shared_.query_ring.full[slot]);
    cursor_.Advance();
  }

  // Loads the scales of all of the item's tiles, beside the copy engine's tiles.
  __device__ void LoadScales(const PrefillItem& item) {
    if constexpr (Traits::kFp8) {
      const int32_t begin = item.first_tile * kShortUnitKeys;
      const int32_t end = min(item.kv_length, item.end_tile * kShortUnitKeys);
      for (int32_t tile = ShortTiles<Traits>(item) - 1; tile >= 0; --tile) {
        LoadScales(item, begin + tile * Traits::kKeys + thread_, end);
        raw_cursor_.Advance();
      }
    }
  }

  // Loads the scales of a token's key and value; threads behind the tile's last token have none.
  __device__ void LoadScales(const PrefillItem& item, int32_t token, int32_t end) {
    auto& raw = shared_.raw;
    const kvt_prefill_params& p = plan_.params;
    const int stage = raw_cursor_.stage();
    const bool exists = token < end;
    int64_t block = 0;
    if (exists) {
      block =
          p.sequences
              .block_table[item.sequence * p.sequences.table_stride + (token >> plan_.page_shift)];
    }
    raw.key_ring.empty[stage].Wait(raw_cursor_.filled_parity());
    raw.value_ring.empty[stage].Wait(raw_cursor_.filled_parity());
    if (thread_ < Traits::kKeys) {
      const int32_t in_page = token & (p.kv.page_tokens - 1);
      LoadScale(p.kv.key_scales, block, in_page, item.kv_head, exists,
                raw.key_scales[stage][thread_]);
      LoadScale(p.kv.value_scales, block, in_page, item.kv_head, exists,
                raw.value_scales[stage][thread_]);
    }
    ArriveOnCopies(raw.key_ring.full[stage]);
    ArriveOnCopies(raw.value_ring.full[stage]);
  }

  __device__ static void LoadScale(const kvt_scales& scales, int64_t block, int32_t in_page,
                                   int32_t kv_head, bool exists, float& to) {
    if (scales.values == nullptr) return;
    CopyAsync4(SharedAddress(&to),
               scales.values + block * scales.block_stride + in_page * scales.token_stride +
                   kv_head * scales.head_stride,
               exists);
  }

  const PrefillPlan& plan_;
  ShortShared<Traits>& shared_;
  int thread_;
  int chunk_;
  int row_;
  RingCursor<kShortItemSlots> items_;
  RingCursor<Traits::kQuerySlots> cursor_;
  RingCursor<Traits::kCopyStages> raw_cursor_;
  DeferredGridWait wait_;
};

}  // namespace kvtier::kernels
