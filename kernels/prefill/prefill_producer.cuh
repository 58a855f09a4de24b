// SPDX-License-Identifier: Apache-2.0
// The producer warpgroup: warp 0 draws items; it and, for a 16-bit cache, warp 1 have the copy
// engine bring pages of keys and values, tile by tile; the other warps bring the queries and, for
// an fp8 cache, widen the tiles.
#pragma once

#include <cstdint>

#include "kernels/hopper/launch.cuh"
#include "kernels/hopper/math.cuh"
#include "kernels/prefill/prefill_shared.cuh"
#include "kernels/prefill/prefill_widen.cuh"

namespace kvtier::kernels {

// The wait for earlier launches, where it comes after the look at the tables.
class DeferredGridWait {
 public:
  __device__ explicit DeferredGridWait(const PrefillPlan& plan) : due_(plan.tables_first != 0) {}
  __device__ void Once() {
    if (!due_) return;
    WaitOnDependentGrids();
    due_ = false;
  }

 private:
  bool due_;
};

template <typename Traits>
class TileCopier {
 public:
  __device__ TileCopier(const PrefillPlan& plan, PrefillShared<Traits>& shared, int lane)
      : plan_(plan), shared_(shared), lane_(lane), schedule_(plan, lane), wait_(plan) {}

  // Warp 0: draws items and gives them out; copies keys, and values too if no other warp does.
  __device__ void Run() {
    PrefillItem item = schedule_.Find(blockIdx.x);
    PublishItem(shared_, items_, item, lane_);
    while (item.valid) {
      const int32_t block = BlockOf(item, TileAt(item, 0));
      wait_.Once();
      item = CopyTiles(item, block, Draw(), /*keys=*/true, /*values=*/Traits::kCopierWarps == 1);
    }
  }

  // The warp for values, where there is one.
  __device__ void RunValues() {
    for (;;) {
      const PrefillItem item = ReceiveItem(shared_, items_);
      if (!item.valid) return;
      const int32_t block = BlockOf(item, TileAt(item, 0));
      wait_.Once();
      CopyTiles(item, block, 0, /*keys=*/false, /*values=*/true);
    }
  }

 private:
  // The number of the next item, to be used once it has arrived.
  __device__ uint32_t Draw() { return lane_ == 0 ? atomicAdd(&plan_.counters->next_item, 1) : 0; }

  __device__ PrefillItem PublishNext(uint32_t drawn) {
    const PrefillItem next = schedule_.Find(int64_t{gridDim.x} + __shfl_sync(0xffffffff, drawn, 0));
    PublishItem(shared_, items_, next, lane_);
    return next;
  }

  // The warp of the keys gives out the next item and returns it: over an fp8 cache so early that
  // its queries can be fetched beside the last tiles, else when nothing waits for its copies.
  // `block` holds this lane's box of the first tile; later ones are looked up a tile ahead.
  __device__ __forceinline__ PrefillItem CopyTiles(const PrefillItem& item, int32_t block,
                                                   uint32_t drawn, bool keys, bool values) {
    const int32_t tiles = item.end_tile - item.first_tile;
    const auto column = static_cast<int32_t>(item.kv_head * plan_.params.kv.head_stride);
    PrefillItem next;
    int32_t newest = 0, block_before = 0, block_ahead = block;
    ForEachTile<Traits>(tiles, [&](int32_t i, bool is_key) {
      if (is_key) {
        newest = i;
        block_before = block;
        block = block_ahead;
        block_ahead = i + 1 < tiles ? BlockOf(item, TileAt(item, i + 1)) : 0;
        if (Traits::kFp8 && i == max(0, tiles - kTilesAhead - 1)) next = PublishNext(drawn);
      }
      if (is_key ? keys : values) {
        CopyTile(item, TileAt(item, i), column, i == newest ? block : block_before, is_key);
      }
      tiles_.Advance();
    });
    if (!Traits::kFp8 && keys) next = PublishNext(drawn);
    return next;
  }

  __device__ int32_t Boxes(int32_t existing) const {
    return (existing + plan_.box_tokens - 1) >> plan_.box_shift;
  }

  // The block that holds this lane's box of the tile.
  __device__ int32_t BlockOf(const PrefillItem& item, int32_t tile) const {
    if (lane_ >= Boxes(ExistingKeys<Traits>(item, tile))) return 0;
    const kvt_sequences& s = plan_.params.sequences;
    const int32_t token = tile * Traits::kKeys + (lane_ << plan_.box_shift);
    return s.block_table[item.sequence * s.table_stride + (token >> plan_.page_shift)];
  }

  __device__ __forceinline__ void CopyTile(const PrefillItem& item, int32_t tile, int32_t column,
                                           int32_t block, bool is_key) {
    const int32_t boxes = Boxes(ExistingKeys<Traits>(item, tile));
    if constexpr (Traits::kFp8) {
      const int stage = raw_.stage();
      const Box box = BoxOf(tile, column, block, SharedAddress(shared_.raw.tiles[stage]));
      shared_.raw.ring.empty[stage].Wait(raw_.filled_parity());
      CopyBoxes(box, boxes, is_key, shared_.raw.ring.full[stage]);
      raw_.Advance();
    } else {
      const int stage = tiles_.stage();
      const Box box = BoxOf(tile, column, block, SharedAddress(shared_.tiles[stage]));
      shared_.tile_ring.empty[stage].Wait(tiles_.filled_parity());
      if (is_key || IsWhole<Traits>(item, tile)) {
        CopyBoxes(box, boxes, is_key, shared_.tile_ring.full[stage]);
      } else {
        CopyBoxes(box, boxes, is_key, shared_.tail);
        ZeroBehind(shared_.tiles[stage], ExistingKeys<Traits>(item, tile));
        if (lane_ == 0) shared_.tile_ring.full[stage].Arrive();
      }
    }
  }

  // A lane's copy: its source, and its place in shared memory.
  struct Box {
    int32_t column;
    int32_t group_in_page;  // of 8 tokens
    int32_t block;
    uint32_t to;
  };

  static constexpr int kRowBytes = Traits::kHeadDim * (Traits::kFp8 ? 1 : 2);

  __device__ Box BoxOf(int32_t tile, int32_t column, int32_t block, uint32_t to) const {
    const int32_t first = lane_ << plan_.box_shift;
    const int32_t in_page = (tile * Traits::kKeys + first) & (plan_.params.kv.page_tokens - 1);
    return {column, in_page / 8, block, to + first * kRowBytes};
  }

  __device__ __forceinline__ void CopyBoxes(const Box& box, int32_t boxes, bool is_key,
                                            TransactionBarrier& barrier) {
    if (lane_ == 0) barrier.ArriveAndExpectBytes((boxes << plan_.box_shift) * kRowBytes);
    __syncwarp();
    if (lane_ >= boxes) return;
    CopyTensor(box.to, is_key ? plan_.key_map : plan_.value_map, box.column, 0, 0,
               box.group_in_page, box.block, barrier);
  }

  // Once the values at a sequence's end have come.
  __device__ void ZeroBehind(char* tile, int32_t existing) {
    shared_.tail.Wait(partial_parity_);
    partial_parity_ ^= 1;
    ZeroRows(tile, existing);
    FenceAsyncProxy();
    __syncwarp();
  }

  // 0 times NaN is NaN: values that do not exist must be 0, not just weightless.
  __device__ void ZeroRows(char* tile, int32_t first_row) const {
    constexpr int kChunks = Traits::kHeadDim / 8;
    for (int32_t i = first_row * kChunks + lane_; i < Traits::kKeys * kChunks; i += 32) {
      *reinterpret_cast<uint4*>(tile + ChunkOffset<Traits>(i / kChunks, i % kChunks)) = uint4{};
    }
  }

  const PrefillPlan& plan_;
  PrefillShared<Traits>& shared_;
  int lane_;
  PrefillSchedule<typename Traits::Items> schedule_;
  RingCursor<kItemSlots> items_;
  RingCursor<Traits::kTileStages> tiles_;
  RingCursor<Traits::kRawStages> raw_;
  uint32_t partial_parity_ = 0;
  DeferredGridWait wait_;
};

// The warps that do not copy.
template <typename Traits>
class TileLoader {
 public:
  __device__ TileLoader(const PrefillPlan& plan, PrefillShared<Traits>& shared, int thread)
      : plan_(plan), shared_(shared), thread_(thread), wait_(plan) {}

  __device__ void Run() {
    PrefillItem item = ReceiveItem(shared_, items_);
    if (item.valid) {
      wait_.Once();
      BeginQueries(item);
      EndQueries(item);
    }
    while (item.valid) {
      PrefillItem next;
      const auto begin_next = [&] {
        next = ReceiveItem(shared_, items_);
        if (next.valid) BeginQueries(next);
      };
      if constexpr (Traits::kFp8) {
        TileWidener<Traits>(plan_, shared_, thread_, rings_).Run(item, begin_next);
      } else {
        begin_next();
      }
      if (next.valid) EndQueries(next);
      item = next;
    }
  }

 private:
  static constexpr int kChunks = Traits::kHeadDim / 8;  // of 16 bytes in a row
  // Two threads share a row, one its even chunks and one its odd ones.
  static constexpr int kRowsAtOnce = Traits::kLoaderThreads / 2;

  // Where a row of the tile lies, or null behind the sequence's last one.
  __device__ const uint16_t* RowAddress(const PrefillItem& item, int row) const {
    const kvt_prefill_params& p = plan_.params;
    if (item.first_row + row >= item.query_length * plan_.group) return nullptr;
    const RowPosition place = PositionOf(plan_, item, row);
    return static_cast<const uint16_t*>(p.query) +
           (int64_t{item.query_start} + place.token) * p.query_token_stride +
           place.head * p.query_head_stride;
  }

  // Into L2, while the consumers still hold the last item's queries.
  __device__ void PrefetchQueries(const PrefillItem& item) const {
    for (int row = thread_; row < Traits::kRows; row += Traits::kLoaderThreads) {
      const uint16_t* from = RowAddress(item, row);
#pragma unroll
      for (int line = 0; line < Traits::kHeadDim / 64; ++line) {
        if (from != nullptr) PrefetchL2(from + line * 64);
      }
    }
  }

  // Queries that consumers keep in registers leave their place at once, others only at an item's
  // end.
  __device__ void BeginQueries(const PrefillItem& item) {
    if constexpr (Traits::kQueriesAhead) {
      CopyQueries(item);
    } else {
      PrefetchQueries(item);
    }
  }

  __device__ void EndQueries(const PrefillItem& item) {
    if constexpr (!Traits::kQueriesAhead) CopyQueries(item);
    WaitForAllCopies();
    if constexpr (Traits::kFp8) {
      if (plan_.params.query_dtype == KVT_BF16) NarrowQueries();
    }
    FenceAsyncProxy();
    shared_.query_ring.full[query_.stage()].Arrive();
    query_.Advance();
  }

  __device__ void CopyQueries(const PrefillItem& item) {
    shared_.query_ring.empty[query_.stage()].Wait(query_.filled_parity());
    const int parity = thread_ % 2;
    for (int row = thread_ / 2; row < Traits::kRows; row += kRowsAtOnce) {
      const uint16_t* from = RowAddress(item, row);
      const bool valid = from != nullptr;
      if (!valid) from = static_cast<const uint16_t*>(plan_.params.query);
      const uint32_t to =
          SharedAddress(shared_.query[query_.stage()]) + ChunkOffset<Traits>(row, parity);
#pragma unroll
      for (int chunk = 0; chunk < kChunks; chunk += 2) {
        CopyAsync16((to ^ (chunk % 8 * 16)) + chunk / 8 * kAtomBytes, from + (chunk + parity) * 8,
                    valid);
      }
    }
  }

  // bf16 to fp16 in place, each thread the chunks that it copied.
  __device__ void NarrowQueries() {
    const int parity = thread_ % 2;
    for (int row = thread_ / 2; row < Traits::kRows; row += kRowsAtOnce) {
#pragma unroll 4
      for (int chunk = parity; chunk < kChunks; chunk += 2) {
        auto* words = reinterpret_cast<uint4*>(shared_.query[query_.stage()] +
                                               ChunkOffset<Traits>(row, chunk));
        const uint4 wide = *words;
        *words = make_uint4(Fp16FromBf16(wide.x), Fp16FromBf16(wide.y), Fp16FromBf16(wide.z),
                            Fp16FromBf16(wide.w));
      }
    }
  }

  const PrefillPlan& plan_;
  PrefillShared<Traits>& shared_;
  int thread_;  // 0 to kLoaderThreads
  RingCursor<kItemSlots> items_;
  RingCursor<Traits::kQueryStages> query_;
  WidenerCursors<Traits> rings_;
  DeferredGridWait wait_;
};

}  // namespace kvtier::kernels
