// Append for short suffixes: the sizes of its kernels, and a CTA's shared memory.
//
// A cluster of CTAs works on one item, a tile of 64 rows of queries of one KV head: each CTA takes
// an equal run of the keys, and they merge their parts through each other's shared memory.
#pragma once

#include <cstdint>

#include "kernels/append/append_schedule.cuh"
#include "kernels/append/append_shared.cuh"
#include "kernels/append/cluster.cuh"
#include "kernels/append/pipeline.cuh"
#include "kernels/append/short_plan.h"

namespace kvtier::kernels {

// Warpgroups that compute, each on every kShortGroups-th tile: one alone cannot keep up with the
// memory, since it idles while its scores are multiplied and its softmax waits for itself.
constexpr int kShortGroups = 2;
constexpr int kShortConsumers = 128 * kShortGroups;
constexpr int kShortConsumerWarps = kShortConsumers / 32;
constexpr int kQueryWarps = 3;
// And one warp that has the copy engine bring keys and values.
constexpr int kShortThreads = kShortConsumers + 32 * (1 + kQueryWarps);
constexpr int kShortItemSlots = 4;

template <typename ElementType, int kDim>
struct ShortTraits {
  using Element = ElementType;
  static constexpr int kHeadDim = kDim;
  static constexpr int kKeys = 64;
  static constexpr int kTileBytes = kKeys * kDim * 2;  // of keys, or of values
  static constexpr int kUnitBytes = kShortUnitKeys * kDim * 2;
  static constexpr int kUnits = kKeys / kShortUnitKeys;  // of a tile
  // 192 KB: a short run of keys is under way as a whole from the start.
  static constexpr int kStages = kDim == 64 ? 12 : 6;
  static constexpr int kAtomsPerGroup = kDim / 64;
  static constexpr int kGroupBytes = kAtomsPerGroup * kAtomBytes;  // 8 whole rows
  static constexpr int kQueryBytes = kShortRows / 8 * kGroupBytes;
  static constexpr int kQuerySlots = 16 * 1024 / kQueryBytes;

  // How the work is cut, in units: parts of it may well be empty.
  struct Items {
    static constexpr int kRows = kShortRows;
    static constexpr int kTileKeys = kShortUnitKeys;
    static constexpr int kKeyBytes = kDim * 2;
    static constexpr bool kAscends = false;
    static constexpr bool kNeverEmpty = false;
  };
};

// How many tiles an item's units make. They are worked off from the last, which may be a part of
// one and must be zeroed behind the sequence's end while the next ones come, to the first.
template <typename Traits>
__device__ __forceinline__ int32_t ShortTiles(const AppendItem& item) {
  return (item.end_tile - item.first_tile + Traits::kUnits - 1) / Traits::kUnits;
}

// What the cluster's CTAs tell this one of their parts of an item.
struct ShortParts {
  float lse[kShortRows];             // [CTA, row of this one's share]; -infinity: no sums
  uint32_t stages[kMaxClusterCtas];  // where each has its sums: in the places of a tile
};

template <typename Traits>
struct alignas(kAtomBytes) ShortShared {
  alignas(kAtomBytes) char keys[Traits::kStages][Traits::kTileBytes];
  alignas(kAtomBytes) char values[Traits::kStages][Traits::kTileBytes];
  alignas(kAtomBytes) char query[Traits::kQuerySlots][Traits::kQueryBytes];
  ShortParts parts;
  float group_lse[kShortGroups][kShortRows];
  Ring<Traits::kStages> key_ring;
  Ring<Traits::kStages> value_ring;
  Ring<Traits::kQuerySlots> query_ring;
  Ring<kShortItemSlots> item_ring;
  Ring<kShortGroups - 1> sums_ring;  // of the warpgroups but the first: shown to it, added up
  TransactionBarrier parts_ready;  // all peers show their parts of the item
  TransactionBarrier parts_read;   // all peers have read this CTA's
  AppendItem items[kShortItemSlots];

  // By one thread, before any other touches the barriers.
  __device__ void InitBarriers() {
    key_ring.Init(1, 4);
    value_ring.Init(1, 4);
    query_ring.Init(32 * kQueryWarps, kShortConsumerWarps);
    item_ring.Init(1, kShortConsumerWarps + kQueryWarps);
    // By every thread: what one thread shows, another one adds up.
    sums_ring.Init(128, 128);
    parts_ready.Init(ClusterCtas());
    parts_read.Init(ClusterCtas());
  }

  // The next item, read by a whole warp.
  __device__ __forceinline__ AppendItem TakeItem(RingCursor<kShortItemSlots>& cursor, int lane) {
    item_ring.full[cursor.stage()].Wait(cursor.parity());
    const AppendItem item = items[cursor.stage()];
    __syncwarp();
    if (lane == 0) item_ring.empty[cursor.stage()].Arrive();
    cursor.Advance();
    return item;
  }
};

}  // namespace kvtier::kernels
