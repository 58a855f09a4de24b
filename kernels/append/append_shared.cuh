// The shared memory of an append CTA, and where elements lie in its tiles.
#pragma once

#include <cstdint>

#include "kernels/append/append_plan.h"
#include "kernels/append/append_schedule.cuh"
#include "kernels/append/pipeline.cuh"

namespace kvtier::kernels {

constexpr int kConsumerWarpgroups = 2;
constexpr int kConsumerWarps = 4 * kConsumerWarpgroups;
constexpr int kAppendThreads = 128 * (kConsumerWarpgroups + 1);
constexpr int kItemSlots = 4;
// So many tiles before an item's end the queries of the next one are fetched, where that does not
// happen beside the consumers' work anyway.
constexpr int kTilesAhead = 2;
constexpr int kAtomBytes = 1024;  // 8 rows of 128 bytes

// A kernel: the type of its operands, whether the cache is fp8, and the head size.
template <typename ElementType, bool kFp8Cache, int kDim>
struct AppendTraits {
  using Element = ElementType;
  static constexpr bool kFp8 = kFp8Cache;
  static constexpr int kHeadDim = kDim;
  static constexpr int kKeys = TileKeys(kDim);
  static constexpr int kRows = kTileRows;
  static constexpr bool kNeedsTile = true;
  // Queries wait in registers, which frees their place for the next item's. Wide heads leave no
  // room.
  static constexpr bool kQueryInRegisters = kDim <= 128;
  // Tiles in flight. Keys are asked for first and waited for longest.
  static constexpr int kKeyStages = kDim == 64 ? 4 : kDim == 128 && !kFp8Cache ? 3 : 2;
  static constexpr int kValueStages = kDim == 64 ? 4 : 2;
  // Of the producer's four warps, those that copy: one for keys and one for values, so that neither
  // waits for the other's place; but an fp8 cache needs three warps to widen.
  static constexpr int kCopierWarps = kFp8Cache ? 1 : 2;
  static constexpr int kLoaderThreads = 128 - 32 * kCopierWarps;
  // A tile lies as atoms [row / 8][dim / 64], each 8 rows of 64 elements, swizzled.
  static constexpr int kAtomsPerGroup = kDim / 64;
  static constexpr int kGroupBytes = kAtomsPerGroup * kAtomBytes;  // 8 whole rows
  static constexpr int kTileBytes = kKeys / 8 * kGroupBytes;
  static constexpr int kQueryBytes = kTileRows / 8 * kGroupBytes;
  static constexpr int kRawBytes = kKeys * kDim;  // of an fp8 tile as it lies in the cache
  static constexpr int kRawStages = kDim == 256 ? 1 : 2;
  static constexpr int kRegistersGiven = kFp8Cache ? 56 : 40;    // to which producers go down
  static constexpr int kRegistersTaken = kFp8Cache ? 224 : 232;  // to which consumers go up
};

// Byte offset of 16-byte chunk `chunk` of row `row` in a tile.
template <typename Traits>
__device__ __forceinline__ uint32_t ChunkOffset(uint32_t row, uint32_t chunk) {
  return row / 8 * Traits::kGroupBytes + chunk / 8 * kAtomBytes + row % 8 * 128 +
         ((chunk % 8) ^ (row % 8)) * 16;
}

// The i-th tile of keys that an item works on.
__device__ __forceinline__ int32_t TileAt(const AppendItem& item, int32_t i) {
  return item.ascends ? item.first_tile + i : item.end_tile - 1 - i;
}

// How many of a tile's keys exist. Only the last tile of a sequence has fewer than all; what lies
// behind them in its pages was never written and may be NaN.
template <typename Traits>
__device__ __forceinline__ int32_t ExistingKeys(const AppendItem& item, int32_t tile) {
  return max(0, min(Traits::kKeys, item.kv_length - tile * Traits::kKeys));
}

// Whether all of them do. Not to be asked as ExistingKeys == kKeys: ptxas 13.0 makes one
// instruction of the two bounds and the comparison whose predicate came out wrong on the device.
template <typename Traits>
__device__ __forceinline__ bool IsWhole(const AppendItem& item, int32_t tile) {
  return (tile + 1) * Traits::kKeys <= item.kv_length;
}

constexpr int kOutputStageBytes = 16 * 128;  // 16 rows of 64 elements, for each consumer warp

struct NoRawTiles {};

template <typename Traits>
struct RawTiles {
  alignas(128) char tiles[Traits::kRawStages][Traits::kRawBytes];
  Ring<Traits::kRawStages> ring;
  float key_scales[Traits::kKeyStages][Traits::kKeys];
  float value_scales[Traits::kValueStages][Traits::kKeys];
};

template <bool kFp8, typename Traits>
struct RawTilesIf {
  using Type = NoRawTiles;
};
template <typename Traits>
struct RawTilesIf<true, Traits> {
  using Type = RawTiles<Traits>;
};

template <typename Traits>
struct alignas(kAtomBytes) AppendShared {
  alignas(kAtomBytes) char query[Traits::kQueryBytes];
  alignas(kAtomBytes) char keys[Traits::kKeyStages][Traits::kTileBytes];
  alignas(kAtomBytes) char values[Traits::kValueStages][Traits::kTileBytes];
  alignas(128) char output[kConsumerWarps][kOutputStageBytes];
  typename RawTilesIf<Traits::kFp8, Traits>::Type raw;
  Ring<Traits::kKeyStages> key_ring;
  Ring<Traits::kValueStages> value_ring;
  Ring<1> query_ring;
  Ring<kItemSlots> item_ring;
  TransactionBarrier tail;  // the copies of a tile whose end must be zeroed before it is given out
  AppendItem items[kItemSlots];

  // By one thread, before any other touches the barriers. `scales_per_token`: every consumer thread
  // reads scales beside the tiles, and gives both back itself.
  __device__ void InitBarriers(bool scales_per_token) {
    const uint32_t emptiers =
        Traits::kFp8 && scales_per_token ? 32 * kConsumerWarps : kConsumerWarps;
    // Converted tiles are given out by the loader threads, copied ones by the copying thread.
    const uint32_t fillers = Traits::kFp8 ? Traits::kLoaderThreads : 1;
    key_ring.Init(fillers, emptiers);
    value_ring.Init(fillers, emptiers);
    query_ring.Init(Traits::kLoaderThreads, kConsumerWarps);
    item_ring.Init(1, kConsumerWarps + 3);  // all warps but the one that draws
    tail.Init(1);
    if constexpr (Traits::kFp8) raw.ring.Init(1, Traits::kLoaderThreads / 32);
  }
};

// The next item, read by a whole warp from the ring.
template <typename Traits>
__device__ __forceinline__ AppendItem TakeItem(AppendShared<Traits>& shared,
                                               RingCursor<kItemSlots>& cursor, int lane) {
  shared.item_ring.full[cursor.stage()].Wait(cursor.parity());
  const AppendItem item = shared.items[cursor.stage()];
  __syncwarp();
  if (lane == 0) shared.item_ring.empty[cursor.stage()].Arrive();
  cursor.Advance();
  return item;
}

}  // namespace kvtier::kernels
