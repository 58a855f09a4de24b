// SPDX-License-Identifier: Apache-2.0
// The shared memory of a prefill CTA, and where elements lie in its tiles.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/hopper/pipeline.cuh"
#include "kernels/prefill/prefill.h"
#include "kernels/prefill/prefill_schedule.cuh"
#include "kernels/prefill/prefill_tile.cuh"

namespace kvtier::kernels {

constexpr int kItemSlots = 4;
// So many tiles before an item's end the queries of the next one are fetched, where that does not
// happen beside the consumers' work anyway.
constexpr int kTilesAhead = 2;

// A kernel: the type of its operands, whether the cache is fp8, the head size, the rows of a tile.
template <typename ElementType, bool kFp8Cache, int kDim, int kHeight>
struct PrefillTraits {
  using Element = ElementType;
  static constexpr bool kFp8 = kFp8Cache;
  static constexpr int kHeadDim = kDim;
  static constexpr int kRows = kHeight;
  static constexpr int kKeys = TileKeys(kDim, kRows);
  static constexpr int kWarpgroups = kRows / 64;
  static constexpr int kConsumerWarps = 4 * kWarpgroups;
  static constexpr int kThreads = 128 * (kWarpgroups + 1);
  // Two warpgroups would leave the tensor cores idle between them; so each multiplies the next
  // tile's scores beside the last one's output. Three fill each other's gaps, and have no registers
  // for more than one tile.
  static constexpr bool kOverlapsTiles = kWarpgroups == 2;
  // Queries that wait in registers free their place for the next item's. Where there are none to
  // spare, a second place serves, or, beside wide heads, the next item's come late.
  static constexpr bool kQueryInRegisters = kOverlapsTiles && kDim <= 128;
  static constexpr int kQueryStages = kOverlapsTiles ? 1 : 2;
  static constexpr bool kQueriesAhead = kQueryInRegisters || kQueryStages > 1;
  // The copying warps of the producer's four: one for keys and one for values, since small pages
  // keep a warp busy; but an fp8 cache needs three warps to widen.
  static constexpr int kCopierWarps = kFp8Cache ? 1 : 2;
  static constexpr int kLoaderThreads = 128 - 32 * kCopierWarps;
  // A tile lies as atoms [row / 8][dim / 64], each 8 rows of 64 elements, swizzled.
  static constexpr int kAtomsPerGroup = kDim / 64;
  static constexpr int kGroupBytes = kAtomsPerGroup * kAtomBytes;  // 8 whole rows
  static constexpr int kTileBytes = kKeys / 8 * kGroupBytes;
  static constexpr int kQueryBytes = kRows / 8 * kGroupBytes;
  // Tiles in flight, of keys and values in the order of their use.
  static constexpr int kTileStages = kDim == 64                                    ? 8
                                     : kDim == 128 && kOverlapsTiles && !kFp8Cache ? 5
                                                                                   : 4;
  static constexpr int kRawBytes = kKeys * kDim;  // of an fp8 tile as it lies in the cache
  static constexpr int kRawStages = kDim == 256 ? 1 : 2;
  // To which producers go down and consumers up.
  static constexpr int kRegistersGiven = 56;
  static constexpr int kRegistersTaken = kWarpgroups == 3 ? 152 : 224;

  // How the work is cut: rows of queries and keys of a tile, bytes of one key of one head.
  struct Items {
    static constexpr int kRows = kHeight;
    static constexpr int kTileKeys = kKeys;
    static constexpr int kKeyBytes = kDim * (kFp8Cache ? 1 : 2);
    // From the last tile to the first, the zeroing of what does not exist, which only the last one
    // needs, overlaps with the first multiplications. But wide heads leave so few keys to a tile
    // that CTAs had better read the same ones, and these begin together.
    static constexpr bool kAscends = kDim == 256 && !kFp8Cache;
    // The consumers' pipeline has no way around its first tile.
    static constexpr bool kNeverEmpty = true;
  };
};

// The i-th tile of keys that an item works on.
__device__ __forceinline__ int32_t TileAt(const PrefillItem& item, int32_t i) {
  return item.ascends ? item.first_tile + i : item.end_tile - 1 - i;
}

// The order in which tiles of keys and values come and go: calls `next` with an item's tile,
// counted as TileAt does, and whether its keys or its values are meant.
template <typename Traits, typename Function>
__device__ __forceinline__ void ForEachTile(int32_t tiles, Function next) {
  for (int32_t i = 0; i < tiles; ++i) {
    next(i, /*is_key=*/true);
    if constexpr (Traits::kOverlapsTiles) {
      if (i > 0) next(i - 1, /*is_key=*/false);
    } else {
      next(i, /*is_key=*/false);
    }
  }
  if constexpr (Traits::kOverlapsTiles) next(tiles - 1, /*is_key=*/false);
}

// How many of a tile's keys exist. Only the last tile of a sequence has fewer than all; what lies
// behind them in its pages was never written and may be NaN.
template <typename Traits>
__device__ __forceinline__ int32_t ExistingKeys(const PrefillItem& item, int32_t tile) {
  return max(0, min(Traits::kKeys, item.kv_length - tile * Traits::kKeys));
}

// Whether all of them do. Not to be asked as ExistingKeys == kKeys: ptxas 13.0 makes one
// instruction of the two bounds and the comparison whose predicate came out wrong on the device.
template <typename Traits>
__device__ __forceinline__ bool IsWhole(const PrefillItem& item, int32_t tile) {
  return (tile + 1) * Traits::kKeys <= item.kv_length;
}

constexpr int kOutputStageBytes = 16 * 128;  // 16 rows of 64 elements, for each consumer warp

struct NoRawTiles {};

template <typename Traits>
struct RawTiles {
  alignas(128) char tiles[Traits::kRawStages][Traits::kRawBytes];
  Ring<Traits::kRawStages> ring;
  float scales[Traits::kTileStages][Traits::kKeys];
};

struct NoOutputStages {};

template <typename Traits>
struct OutputStages {
  alignas(128) char rows[Traits::kConsumerWarps][kOutputStageBytes];
};

template <typename Traits>
struct alignas(kAtomBytes) PrefillShared {
  alignas(kAtomBytes) char query[Traits::kQueryStages][Traits::kQueryBytes];
  alignas(kAtomBytes) char tiles[Traits::kTileStages][Traits::kTileBytes];
  // Where queries wait twice, output takes the place of the item's own.
  std::conditional_t<Traits::kQueryStages == 1, OutputStages<Traits>, NoOutputStages> output;
  std::conditional_t<Traits::kFp8, RawTiles<Traits>, NoRawTiles> raw;
  Ring<Traits::kTileStages> tile_ring;
  Ring<Traits::kQueryStages> query_ring;
  Ring<kItemSlots> item_ring;
  TransactionBarrier tail;  // the copies of a tile whose end must be zeroed before it is given out
  PrefillItem items[kItemSlots];

  // By one thread, before any other touches the barriers. `scales_per_token`: every consumer thread
  // reads scales beside the tiles, and gives both back itself.
  __device__ void InitBarriers(bool scales_per_token) {
    const uint32_t emptiers =
        Traits::kFp8 && scales_per_token ? 32 * Traits::kConsumerWarps : Traits::kConsumerWarps;
    // Converted tiles are given out by the loader threads, copied ones by the copying thread.
    const uint32_t fillers = Traits::kFp8 ? Traits::kLoaderThreads : 1;
    tile_ring.Init(fillers, emptiers);
    // Each thread gives back itself the stages that it reads itself.
    query_ring.Init(Traits::kLoaderThreads, 32 * Traits::kConsumerWarps);
    item_ring.Init(1, 32 * (Traits::kConsumerWarps + 3));  // all warps but the one that draws
    tail.Init(1);
    if constexpr (Traits::kFp8) raw.ring.Init(1, Traits::kLoaderThreads / 32);
  }
};

// Receives the next item of a CTA whose shared memory has items with their item_ring, for the
// calling thread.
template <typename Shared, int kSlots>
__device__ __forceinline__ PrefillItem ReceiveItem(Shared& shared, RingCursor<kSlots>& cursor) {
  shared.item_ring.full[cursor.stage()].Wait(cursor.parity());
  const PrefillItem item = shared.items[cursor.stage()];
  shared.item_ring.empty[cursor.stage()].Arrive();
  cursor.Advance();
  return item;
}

// An item to all that take them, by one whole warp.
template <typename Shared, int kSlots>
__device__ __forceinline__ void PublishItem(Shared& shared, RingCursor<kSlots>& cursor,
                                            const PrefillItem& item, int lane) {
  const int slot = cursor.stage();
  shared.item_ring.empty[slot].Wait(cursor.filled_parity());
  if (lane == 0) {
    shared.items[slot] = item;
    shared.item_ring.full[slot].Arrive();
  }
  cursor.Advance();
}

}  // namespace kvtier::kernels
