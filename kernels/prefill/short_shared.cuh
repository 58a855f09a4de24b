// SPDX-License-Identifier: Apache-2.0
// Prefill for short queries: the sizes of its kernels, and a CTA's shared memory.
//
// A cluster of CTAs works on one item, a tile of 64 rows of queries of one KV head: each CTA takes
// an equal run of the keys, and they merge their parts through each other's shared memory.
#pragma once

#include <cstdint>

#include "kernels/hopper/pipeline.cuh"
#include "kernels/prefill/prefill.h"
#include "kernels/prefill/prefill_schedule.cuh"
#include "kernels/prefill/prefill_shared.cuh"

namespace kvtier::kernels {

// Warpgroups that compute, each on every kShortGroups-th tile: one alone cannot keep up with the
// memory, since it idles while its scores are multiplied and its softmax waits for itself.
constexpr int kShortGroups = 2;
constexpr int kShortConsumers = 128 * kShortGroups;
constexpr int kShortConsumerWarps = kShortConsumers / 32;
constexpr int kQueryWarps = 3;
// Beside one warp that has the copy engine bring keys and values.
constexpr int kShortFeeders = 32 * (1 + kQueryWarps);
constexpr int kShortItemSlots = 4;

// The type of the operands, whether the cache is fp8, and the head size.
template <typename ElementType, bool kFp8Cache, int kDim>
struct ShortTraits {
  using Element = ElementType;
  static constexpr bool kFp8 = kFp8Cache;
  static constexpr int kHeadDim = kDim;
  // An fp8 cache needs a warpgroup that widens its tiles to those that are multiplied.
  static constexpr int kWideners = kFp8Cache ? 128 : 0;
  static constexpr int kThreads = kShortConsumers + kShortFeeders + kWideners;
  // Which leaves too few registers to each: producers go down to so many, and consumers up.
  static constexpr int kRegistersGiven = 56;
  static constexpr int kRegistersTaken = 200;
  static constexpr int kKeys = 64;
  static constexpr int kTileBytes = kKeys * kDim * 2;    // of keys, or of values
  static constexpr int kUnits = kKeys / kShortUnitKeys;  // of a tile
  static constexpr int kUnitBytes = kTileBytes / kUnits;
  // 192 KB, a third of them raw tiles if there are such: a short run of keys is under way as a
  // whole from the start.
  static constexpr int kStages = (kFp8Cache ? 4 : 6) * 128 / kDim;
  static constexpr int kRawStages = kFp8Cache ? 4 * 128 / kDim : 0;
  static constexpr int kRawTileBytes = kKeys * kDim;
  // The stages and tiles that the copy engine fills.
  static constexpr int kCopyStages = kFp8Cache ? kRawStages : kStages;
  static constexpr int kCopyTileBytes = kFp8Cache ? kRawTileBytes : kTileBytes;
  static constexpr int kCopyUnitBytes = kCopyTileBytes / kUnits;
  // Arrivals that fill a tile's place, and that empty it. Every thread arrives that writes or reads
  // data not only for the copy engine and the tensor cores: widened tiles, scales and sums.
  static constexpr int kTileFillers = kFp8Cache ? kWideners : 1;
  static constexpr int kTileEmptiers = kFp8Cache ? 128 : 4;
  static constexpr int kAtomsPerGroup = kDim / 64;
  static constexpr int kGroupBytes = kAtomsPerGroup * kAtomBytes;  // 8 whole rows
  static constexpr int kQueryBytes = kShortRows / 8 * kGroupBytes;
  static constexpr int kQuerySlots = 16 * 1024 / kQueryBytes;

  // How the work is cut, in units: parts of it may well be empty.
  struct Items {
    static constexpr int kRows = kShortRows;
    static constexpr int kTileKeys = kShortUnitKeys;
    static constexpr int kKeyBytes = kDim * (kFp8Cache ? 1 : 2);
    static constexpr bool kAscends = false;
    static constexpr bool kNeverEmpty = false;
  };
};

// How many tiles an item's units make. They are worked off from the last, which may be a part of
// one and must be zeroed behind the sequence's end while the next ones come, to the first.
template <typename Traits>
__device__ __forceinline__ int32_t ShortTiles(const PrefillItem& item) {
  return (item.end_tile - item.first_tile + Traits::kUnits - 1) / Traits::kUnits;
}

// The messages of the cluster's CTAs to this one about their parts of an item.
struct ShortParts {
  // [CTA, row of this one's share], -infinity: no sums; shares are rounded up
  float lse[kShortRows + kMaxClusterCtas];
  uint32_t stages[kMaxClusterCtas];  // where each has its sums: in the places of a tile
};

struct NoRawShortTiles {};

// Tiles of an fp8 cache as they lie there and, where scales differ along tokens, those that belong
// to them and to the widened ones. Widening lifts the scales of values.
template <typename Traits>
struct RawShortTiles {
  alignas(128) char keys[Traits::kRawStages][Traits::kRawTileBytes];
  alignas(128) char values[Traits::kRawStages][Traits::kRawTileBytes];
  Ring<Traits::kRawStages> key_ring;
  Ring<Traits::kRawStages> value_ring;
  float key_scales[Traits::kRawStages][Traits::kKeys];
  float value_scales[Traits::kRawStages][Traits::kKeys];
  float wide_key_scales[Traits::kStages][Traits::kKeys];
  float wide_value_scales[Traits::kStages][Traits::kKeys];
};

template <bool kFp8, typename Traits>
struct RawShortTilesIf {
  using Type = NoRawShortTiles;
};
template <typename Traits>
struct RawShortTilesIf<true, Traits> {
  using Type = RawShortTiles<Traits>;
};

template <typename Traits>
struct alignas(kAtomBytes) ShortShared {
  alignas(kAtomBytes) char keys[Traits::kStages][Traits::kTileBytes];
  alignas(kAtomBytes) char values[Traits::kStages][Traits::kTileBytes];
  alignas(kAtomBytes) char query[Traits::kQuerySlots][Traits::kQueryBytes];
  typename RawShortTilesIf<Traits::kFp8, Traits>::Type raw;
  ShortParts parts;
  float group_lse[kShortGroups][kShortRows];
  Ring<Traits::kStages> key_ring;
  Ring<Traits::kStages> value_ring;
  Ring<Traits::kQuerySlots> query_ring;
  Ring<kShortItemSlots> item_ring;
  Ring<kShortGroups - 1> sums_ring;  // of the warpgroups but the first: shown to it, added up
  TransactionBarrier parts_ready;    // all peers show their parts of the item
  TransactionBarrier parts_read;     // all peers have read this CTA's
  PrefillItem items[kShortItemSlots];

  // By one thread, before any other touches the barriers. `scales_per_token`: those who load
  // queries bring scales beside raw tiles.
  __device__ void InitBarriers(bool scales_per_token) {
    constexpr int kWidenWarps = Traits::kWideners / 32;
    if constexpr (Traits::kFp8) {
      const int fillers = scales_per_token ? 1 + 32 * kQueryWarps : 1;
      raw.key_ring.Init(fillers, kWidenWarps);
      raw.value_ring.Init(fillers, kWidenWarps);
    }
    key_ring.Init(Traits::kTileFillers, Traits::kTileEmptiers);
    value_ring.Init(Traits::kTileFillers, Traits::kTileEmptiers);
    // Each thread gives back itself the stages that it reads itself.
    query_ring.Init(32 * kQueryWarps, kShortConsumers);
    item_ring.Init(1, 32 * (kShortConsumerWarps + kQueryWarps + kWidenWarps));
    // By every thread: what one thread shows, another one adds up.
    sums_ring.Init(128, 128);
    parts_ready.Init(ClusterCtas());
    parts_read.Init(ClusterCtas());
  }

  // Where the copy engine brings tiles, with the rings of the places.
  __device__ __forceinline__ auto& Copied() {
    if constexpr (Traits::kFp8) {
      return raw;
    } else {
      return *this;
    }
  }
};

}  // namespace kvtier::kernels
