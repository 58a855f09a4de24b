// SPDX-License-Identifier: Apache-2.0
// Space in the pools, and for pools: which cached block leaves to make a free one, and which unused
// pool is closed to make another.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "base/gate.h"
#include "base/tenant_budget.h"
#include "tiers/space/offload_queue.h"
#include "tiers/state/cache_state.h"

namespace kvtier {

// Event loop only.
class PoolSpace {
 public:
  // Pools of all tenants, each of which has mappings, a descriptor and a thread at its start; a
  // tenant alone may have half (TenantBudget). All models of a host have fewer groups.
  static constexpr uint32_t kMostPools = 8192;
  PoolSpace(CacheState* state, OffloadQueue* to_host) : state_(*state), to_host_(*to_host) {}

  // The pool of the namespace on a device, created on first use. See Cache::AttachPool.
  [[nodiscard]] Result<CachePool*> Attach(NamespaceId namespace_id, DeviceIndex device,
                                          uint64_t pool_bytes, uint32_t shares, uint32_t groups);

  // A pool of an earlier daemon, with all blocks free; what its table says is as it was. Errors,
  // after which the memory is given back: kResourceExhausted "size_changed" (the device or the
  // tenant has less left), kCorrupt "duplicate", and those of CacheState::InternNamespace.
  [[nodiscard]] Result<CachePool*> Adopt(LeftPool left);

  // Blocks that are free or could become free by eviction.
  [[nodiscard]] static uint64_t Obtainable(const CachePool& pool) {
    return pool.blocks.free() + pool.victims.size();
  }
  // Evicts clean blocks, coldest first, until `blocks` are free. False if it has to wait for copies
  // to host; those are then on their way.
  [[nodiscard]] bool EnsureFree(CachePool* pool, uint64_t blocks);
  // Evicts dirty blocks too, except those being copied right now. False if even that is not enough;
  // nothing if there is more to look at, in an event of its own. `*passed` counts the blocks that
  // could not leave, as yet in vain.
  [[nodiscard]] std::optional<bool> ForceFree(CachePool* pool, uint64_t blocks, uint64_t* passed);

  // The block leaves one pool, or all. REQUIRES: cached, no pins.
  void Drop(CachePool* pool, EntryIndex entry, DropReason reason);
  void DropAll(EntryIndex entry, DropReason reason);

  // Readies the coldest of each pool that has changed to be dropped at no cost.
  void Prepare();
  // So many of the pool's blocks should be ready, as far as it has them.
  [[nodiscard]] uint64_t ToBeReady(const CachePool& pool) const;

  // The cap of all pools of a device together, and what they take of it, with the memory of closed
  // pools that has not returned yet.
  [[nodiscard]] uint64_t capacity_bytes(DeviceIndex device) const;
  [[nodiscard]] uint64_t capacity_bytes() const;  // of all devices
  [[nodiscard]] uint64_t used_bytes(DeviceIndex device) const { return used_bytes_[device.value]; }
  [[nodiscard]] uint64_t returning_bytes(DeviceIndex device) const;

 private:
  // Memory of a closed pool that the device does not have back yet. It stays charged until then.
  struct Returning {
    TenantId tenant;
    TenantLine line;
    DeviceIndex device;
    uint64_t bytes = 0;
  };

  // A pool of this memory, charged to its tenant.
  CachePool* Add(NamespaceId namespace_id, DeviceIndex device, std::unique_ptr<DevicePool> memory,
                 uint32_t blocks, uint64_t generation);
  // Has a new pool's memory outlive the process, where something keeps it.
  void Keep(CachePool* pool);
  // The order of eviction of a new pool.
  [[nodiscard]] std::unique_ptr<EvictionPolicy> MakeOrder(const Namespace& name_space,
                                                          uint64_t blocks) const;
  // The bytes of a device that are left to the tenant.
  [[nodiscard]] uint64_t BytesLeft(TenantId tenant, DeviceIndex device) const;
  // For a tenant that has as many pools as it may: closes the one that no session has used for the
  // longest time. Returns kUnavailable "pool_bytes_returning" until that is done, or kLimitExceeded
  // "too_many_pools".
  [[nodiscard]] Error MakePlace(TenantLine line);
  // Closes pools that no session uses until so many bytes are left, or as many as can be if `any`.
  // Nothing is closed if that would not do. Errors: kUnavailable "pool_bytes_returning" until then.
  [[nodiscard]] Status MakeRoom(TenantId tenant, DeviceIndex device, uint64_t wanted, bool any);
  // The unused pools of the device whose closing leaves the tenant `wanted` bytes, and how many
  // bytes that will be.
  struct Plan {
    std::vector<CachePool*> pools;
    uint64_t bytes_left = 0;
  };
  [[nodiscard]] Plan PlanToClose(TenantId tenant, DeviceIndex device, uint64_t wanted) const;
  // Whether something besides the cache reads the pool.
  [[nodiscard]] bool IsRead(const CachePool& pool) const {
    return state_.env.owner != nullptr && state_.env.owner->ReadsPool(pool.id);
  }
  // Whether that, or a process that may still write to it, keeps an unused pool from being closed.
  [[nodiscard]] bool IsHeld(const CachePool& pool) const {
    return pool.ended_sessions > 0 || IsRead(pool);
  }
  // Drops some of the blocks; the pool is closed when all are free.
  void Empty(CachePool* pool);
  void Close(CachePool* pool);
  [[nodiscard]] bool MayLeave(const BlockEntry& entry) const;
  // A pinned block that has no other copy may not leave: it goes to the hot end, so that the next
  // one is looked at. False if that has to wait for an event of its own, or none is left.
  [[nodiscard]] bool PassOver(CachePool* pool, EntryIndex entry);
  // The reason to count when the block leaves a pool that some tier or other pool could outlive.
  [[nodiscard]] DropReason ReasonFor(const BlockEntry& entry, DropReason last_copy) const;
  // Ahead of need every block goes to host. When room is needed now, blocks on disk do not wait for
  // that.
  enum class Need : uint8_t { kLater, kNow };
  void PrepareVictims(CachePool* pool, uint64_t target, Need need);

  CacheState& state_;
  OffloadQueue& to_host_;
  std::array<uint64_t, kMaxDevices> used_bytes_{};
  uint32_t created_ = 0;             // pools so far
  TenantBudget places_{kMostPools};  // a pool has its own until its memory has gone back
  std::list<Returning> returning_;
  // Memory may return when this is gone.
  Gate gate_;
};

}  // namespace kvtier
