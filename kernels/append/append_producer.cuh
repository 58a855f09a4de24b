// The producer warpgroup: warp 0 draws items; it and, for a 16-bit cache, warp 1 have the copy
// engine bring pages of keys and values, tile by tile; the other warps bring the queries and, for
// an fp8 cache, widen the tiles.
#pragma once

#include <cstdint>

#include "kernels/append/append_shared.cuh"
#include "kernels/append/append_widen.cuh"
#include "kernels/append/fp16_pair.cuh"
#include "kernels/blocks/overlapped_launch.cuh"

namespace kvtier::kernels {

// The wait for earlier launches, where it comes after the look at the tables.
class TablesFirst {
 public:
  __device__ explicit TablesFirst(const AppendPlan& plan) : due_(plan.tables_first != 0) {}
  __device__ void Once() {
    if (!due_) return;
    WaitForEarlierGrids();
    due_ = false;
  }

 private:
  bool due_;
};

template <typename Traits>
class TileCopier {
 public:
  __device__ TileCopier(const AppendPlan& plan, AppendShared<Traits>& shared, int lane)
      : plan_(plan), shared_(shared), lane_(lane), schedule_(plan, lane), wait_(plan) {}

  // Warp 0: draws items and gives them out; copies keys, and values too if no other warp does.
  __device__ void Run() {
    AppendItem item = schedule_.Find(blockIdx.x);
    GiveOut(item);
    while (item.valid) {
      const int32_t block = FirstBlock(item);
      wait_.Once();
      const uint32_t drawn = Draw();
      if constexpr (Traits::kFp8) {
        item = CopyInterleaved(item, block, drawn);
      } else {
        CopyTiles(item, block, /*is_key=*/true);
        item = GiveOutNext(drawn);
      }
    }
  }

  // The warp for values, where there is one.
  __device__ void RunValues() {
    for (;;) {
      const AppendItem item = TakeItem(shared_, items_, lane_);
      if (!item.valid) return;
      const int32_t block = FirstBlock(item);
      wait_.Once();
      CopyTiles(item, block, /*is_key=*/false);
    }
  }

 private:
  // The number of the next item, to be used once it has arrived.
  __device__ uint32_t Draw() { return lane_ == 0 ? atomicAdd(&plan_.counters->next_item, 1) : 0; }

  __device__ AppendItem GiveOutNext(uint32_t drawn) {
    const AppendItem next = schedule_.Find(int64_t{gridDim.x} + __shfl_sync(0xffffffff, drawn, 0));
    GiveOut(next);
    return next;
  }

  __device__ void GiveOut(const AppendItem& item) {
    const int slot = items_.stage();
    shared_.item_ring.empty[slot].Wait(items_.filled_parity());
    if (lane_ == 0) {
      shared_.items[slot] = item;
      shared_.item_ring.full[slot].Arrive();
    }
    items_.Advance();
  }

  // The block that holds this lane's box of the tile that comes first.
  __device__ int32_t FirstBlock(const AppendItem& item) const {
    return BlockOf(item, TileAt(item, 0));
  }

  // In the order in which the consumers take them.
  __device__ void CopyTiles(const AppendItem& item, int32_t block, bool is_key) {
    const int32_t tiles = item.end_tile - item.first_tile;
    for (int32_t i = 0; i < tiles; ++i) {
      const int32_t tile = TileAt(item, i);
      const int32_t next_block = i + 1 < tiles ? BlockOf(item, TileAt(item, i + 1)) : 0;
      if (is_key) {
        CopyTile(item, tile, block, is_key, keys_, shared_.key_ring, shared_.keys);
      } else {
        CopyTile(item, tile, block, is_key, values_, shared_.value_ring, shared_.values);
      }
      block = next_block;
    }
  }

  // Keys and values through the one ring of raw tiles, in the order of their use: a tile's values
  // after the keys of the tile that follows. Gives out the next item so early that its queries can
  // be fetched beside the last tiles, and returns it.
  __device__ AppendItem CopyInterleaved(const AppendItem& item, int32_t block, uint32_t drawn) {
    const int32_t tiles = item.end_tile - item.first_tile;
    AppendItem next;
    int32_t values_block = 0;
    for (int32_t i = 0; i < tiles; ++i) {
      const int32_t next_block = i + 1 < tiles ? BlockOf(item, TileAt(item, i + 1)) : 0;
      CopyRaw(item, TileAt(item, i), block, /*is_key=*/true);
      if (i > 0) CopyRaw(item, TileAt(item, i - 1), values_block, /*is_key=*/false);
      if (i == max(0, tiles - kTilesAhead - 1)) next = GiveOutNext(drawn);
      values_block = block;
      block = next_block;
    }
    CopyRaw(item, TileAt(item, tiles - 1), values_block, /*is_key=*/false);
    return next;
  }

  __device__ int32_t Boxes(int32_t existing) const {
    return (existing + plan_.box_tokens - 1) / plan_.box_tokens;
  }

  // The block that holds this lane's box of the tile.
  __device__ int32_t BlockOf(const AppendItem& item, int32_t tile) const {
    if (lane_ >= Boxes(ExistingKeys<Traits>(item, tile))) return 0;
    const kvt_sequences& s = plan_.params.sequences;
    const int32_t token = tile * Traits::kKeys + lane_ * plan_.box_tokens;
    return s.block_table[item.sequence * s.table_stride + (token >> plan_.page_shift)];
  }

  __device__ void CopyRaw(const AppendItem& item, int32_t tile, int32_t block, bool is_key) {
    if constexpr (Traits::kFp8) {
      const int stage = raw_.stage();
      shared_.raw.ring.empty[stage].Wait(raw_.filled_parity());
      CopyBoxes(item, tile, block, is_key, SharedAddress(shared_.raw.tiles[stage]),
                shared_.raw.ring.full[stage]);
      raw_.Advance();
    }
  }

  template <int kStages, size_t kBytes>
  __device__ void CopyTile(const AppendItem& item, int32_t tile, int32_t block, bool is_key,
                           RingCursor<kStages>& cursor, Ring<kStages>& ring,
                           char (&tiles)[kStages][kBytes]) {
    const int stage = cursor.stage();
    ring.empty[stage].Wait(cursor.filled_parity());
    const int32_t existing = ExistingKeys<Traits>(item, tile);
    const uint32_t to = SharedAddress(tiles[stage]);
    if (is_key || IsWhole<Traits>(item, tile)) {
      CopyBoxes(item, tile, block, is_key, to, ring.full[stage]);
    } else {
      CopyBoxes(item, tile, block, is_key, to, shared_.tail);
      shared_.tail.Wait(tail_parity_);
      tail_parity_ ^= 1;
      ZeroRows(tiles[stage], existing);
      FenceAsyncProxy();
      __syncwarp();
      if (lane_ == 0) ring.full[stage].Arrive();
    }
    cursor.Advance();
  }

  __device__ void CopyBoxes(const AppendItem& item, int32_t tile, int32_t block, bool is_key,
                            uint32_t to, TransactionBarrier& barrier) {
    constexpr int kRowBytes = Traits::kFp8 ? Traits::kHeadDim : Traits::kHeadDim * 2;
    const int32_t boxes = Boxes(ExistingKeys<Traits>(item, tile));
    const int32_t box_bytes = plan_.box_tokens * kRowBytes;
    if (lane_ == 0) barrier.ArriveExpecting(boxes * box_bytes);
    __syncwarp();
    if (lane_ >= boxes) return;
    const kvt_paged_kv& kv = plan_.params.kv;
    const int32_t token = tile * Traits::kKeys + lane_ * plan_.box_tokens;
    const int32_t in_page = token & (kv.page_tokens - 1);
    CopyTensor(to + lane_ * box_bytes, is_key ? plan_.key_map : plan_.value_map,
               static_cast<int32_t>(item.kv_head * kv.head_stride), 0, 0, in_page / 8, block,
               barrier);
  }

  // 0 times NaN is NaN: values that do not exist must be 0, not just weightless.
  __device__ void ZeroRows(char* tile, int32_t first_row) const {
    constexpr int kChunks = Traits::kHeadDim / 8;
    for (int32_t i = first_row * kChunks + lane_; i < Traits::kKeys * kChunks; i += 32) {
      *reinterpret_cast<uint4*>(tile + ChunkOffset<Traits>(i / kChunks, i % kChunks)) = uint4{};
    }
  }

  const AppendPlan& plan_;
  AppendShared<Traits>& shared_;
  int lane_;
  AppendSchedule<Traits> schedule_;
  RingCursor<kItemSlots> items_;
  RingCursor<Traits::kKeyStages> keys_;
  RingCursor<Traits::kValueStages> values_;
  RingCursor<Traits::kFp8 ? Traits::kRawStages : 1> raw_;
  uint32_t tail_parity_ = 0;
  TablesFirst wait_;
};

// The warps that do not copy.
template <typename Traits>
class TileLoader {
 public:
  __device__ TileLoader(const AppendPlan& plan, AppendShared<Traits>& shared, int thread)
      : plan_(plan), shared_(shared), thread_(thread), wait_(plan) {}

  __device__ void Run() {
    AppendItem item = TakeItem(shared_, items_, thread_ % 32);
    if (item.valid) {
      wait_.Once();
      BeginQueries(item);
      EndQueries(item);
    }
    while (item.valid) {
      AppendItem next;
      const auto begin_next = [&] {
        next = TakeItem(shared_, items_, thread_ % 32);
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
  __device__ const uint16_t* RowAddress(const AppendItem& item, int row) const {
    const kvt_append_params& p = plan_.params;
    if (item.first_row + row >= item.query_length * plan_.group) return nullptr;
    const RowPlace place = PlaceOf(plan_, item, row);
    return static_cast<const uint16_t*>(p.query) +
           (int64_t{item.query_start} + place.token) * p.query_token_stride +
           place.head * p.query_head_stride;
  }

  // Into L2, while the consumers still hold the last item's queries.
  __device__ void PrefetchQueries(const AppendItem& item) const {
    for (int row = thread_; row < kTileRows; row += Traits::kLoaderThreads) {
      const uint16_t* from = RowAddress(item, row);
#pragma unroll
      for (int line = 0; line < Traits::kHeadDim / 64; ++line) {
        if (from != nullptr) PrefetchL2(from + line * 64);
      }
    }
  }

  // Queries that consumers keep in registers leave their place at once, others only at an item's
  // end.
  __device__ void BeginQueries(const AppendItem& item) {
    if constexpr (Traits::kQueryInRegisters) {
      CopyQueries(item);
    } else {
      PrefetchQueries(item);
    }
  }

  __device__ void EndQueries(const AppendItem& item) {
    if constexpr (!Traits::kQueryInRegisters) CopyQueries(item);
    WaitForChunks();
    if constexpr (Traits::kFp8) {
      if (plan_.params.query_dtype == KVT_BF16) NarrowQueries();
    }
    FenceAsyncProxy();
    shared_.query_ring.full[0].Arrive();
    query_.Advance();
  }

  __device__ void CopyQueries(const AppendItem& item) {
    shared_.query_ring.empty[0].Wait(query_.filled_parity());
    const int parity = thread_ % 2;
    for (int row = thread_ / 2; row < kTileRows; row += kRowsAtOnce) {
      const uint16_t* from = RowAddress(item, row);
      const bool valid = from != nullptr;
      if (!valid) from = static_cast<const uint16_t*>(plan_.params.query);
      const uint32_t to = SharedAddress(shared_.query) + ChunkOffset<Traits>(row, parity);
#pragma unroll
      for (int chunk = 0; chunk < kChunks; chunk += 2) {
        CopyChunk((to ^ (chunk % 8 * 16)) + chunk / 8 * kAtomBytes, from + (chunk + parity) * 8,
                  valid);
      }
    }
  }

  // bf16 to fp16 in place, each thread the chunks that it copied.
  __device__ void NarrowQueries() {
    const int parity = thread_ % 2;
    for (int row = thread_ / 2; row < kTileRows; row += kRowsAtOnce) {
#pragma unroll 4
      for (int chunk = parity; chunk < kChunks; chunk += 2) {
        auto* words = reinterpret_cast<uint4*>(shared_.query + ChunkOffset<Traits>(row, chunk));
        const uint4 wide = *words;
        *words = make_uint4(Fp16FromBf16(wide.x), Fp16FromBf16(wide.y), Fp16FromBf16(wide.z),
                            Fp16FromBf16(wide.w));
      }
    }
  }

  const AppendPlan& plan_;
  AppendShared<Traits>& shared_;
  int thread_;  // 0 to kLoaderThreads
  RingCursor<kItemSlots> items_;
  RingCursor<1> query_;
  WidenerCursors<Traits> rings_;
  TablesFirst wait_;
};

}  // namespace kvtier::kernels
