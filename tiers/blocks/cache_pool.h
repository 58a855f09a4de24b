// SPDX-License-Identifier: Apache-2.0
// A pool or region as the cache knows it, and the space of names that its blocks belong to.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "gpu/device.h"
#include "tiers/directory/pool_blocks.h"
#include "tiers/policy/tenant_orders.h"
#include "tiers/policy/tenant_table.h"
#include "tiers/types/cache_requests.h"

namespace kvtier {

struct CachePool;

struct Namespace {
  NamespaceIdentity identity;
  uint64_t slot_bytes = 0;  // header and payload, a multiple of the I/O alignment
  TenantId tenant;
  std::array<CachePool*, kMaxPoolSlots> pools{};  // by PoolSlot; null: none there
  bool indexed = false;  // the index knows what the space's number stands for
  // Its tenant's number among those of which token ids are kept.
  static constexpr uint32_t kNoTokenShare = UINT32_MAX;
  uint32_t token_share = kNoTokenShare;
};

// How a region's blocks end their loads. Event loop only; RegionTransfers implements it.
class RegionEvents {
 public:
  virtual ~RegionEvents() = default;
  // The blocks have their bytes.
  virtual void OnLoaded(CachePool* pool, std::span<const EntryIndex> entries) = 0;
  // The block will not arrive. It is no longer loading, and still the entry's.
  virtual void OnLoadFailed(CachePool* pool, EntryIndex entry, MissReason reason) = 0;
};

struct CachePool {
  PoolId id;
  NamespaceId namespace_id;
  DeviceIndex device;  // none of a region in host memory
  PoolSlot slot;
  uint64_t generation = 0;
  uint64_t block_bytes = 0;
  Device* copier = nullptr;  // copies between `memory` and host
  std::unique_ptr<DevicePool> memory;
  PoolBlocks blocks;
  VictimQueue victims;  // cached blocks: committed, loaded, unreferenced; of a region none
  // The parts of a region's block, in the order of its payload; none: blocks lie one after the
  // other.
  std::vector<RegionPiece> pieces;
  RegionEvents* region = nullptr;  // null: not a region
  uint32_t sessions = 0;           // that use it (SessionTable::UsePool)
  uint32_t ended_sessions = 0;     // that did, and hold blocks or may still write to them
  uint32_t operations = 0;         // acquires under way
  // When the last of its sessions ended; none of a pool that is used, or never was.
  std::optional<int64_t> unused_since_ms;
  uint32_t next_to_close = 0;  // the block at which PoolSpace goes on to empty the pool

  // Calls `visit(offset in the memory, offset in the payload, bytes)` for each contiguous part of
  // the given part of a block's payload.
  template <typename Visit>
  void ForEachPart(BlockIndex block, uint64_t offset, uint64_t bytes, Visit visit) const {
    if (pieces.empty()) return visit(block.value * block_bytes + offset, offset, bytes);
    uint64_t begin = 0;  // of the piece, in the payload
    for (const RegionPiece& piece : pieces) {
      const uint64_t first = std::max(begin, offset);
      const uint64_t end = std::min(begin + piece.bytes, offset + bytes);
      if (first < end) {
        visit(piece.offset + block.value * piece.block_stride + (first - begin), first,
              end - first);
      }
      begin += piece.bytes;
    }
  }
};

// Names one pool's block of an entry.
[[nodiscard]] inline uint64_t ArrivalKey(const CachePool& pool, EntryIndex entry) {
  return uint64_t{pool.id.value} << 32 | entry.value;
}

}  // namespace kvtier
