// SPDX-License-Identifier: Apache-2.0
// How much of the disk is free, is being freed, and is to be kept free.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "tiers/memory/slab_allocator.h"
#include "tiers/policy/tenant_table.h"
#include "tiers/space/drive_health.h"
#include "tiers/state/cache_state.h"
#include "tiers/types/block_key.h"

namespace kvtier {

// Slots of the disk that are no block's any more and whose deletion is not durable yet: they still
// take their tenant's bytes, and none is written anew before. Event loop only.
class LeavingSlots {
 public:
  // Both are borrowed.
  LeavingSlots(TenantTable* tenants, const SlabAllocator* allocator)
      : tenants_(*tenants), allocator_(*allocator), bytes_(tenants->rows()) {}

  void Begin(TenantId tenant, DiskLocation location) {
    const SlotClass slots = allocator_.ClassAt(location.offset);
    if (!allocator_.Closing(location.offset)) {
      ++freeing_[slots];
      coming_.insert(location.offset);
    }
    bytes_[tenant.value] += slots.slot_bytes;
    if (tenant != kOtherTenants) whose_[location.offset] = tenant;
  }
  // Gives the tenant its bytes back. REQUIRES: begun; the slot is not free yet.
  void End(DiskLocation location) {
    const SlotClass slots = allocator_.ClassAt(location.offset);
    if (coming_.erase(location.offset) > 0) --freeing_[slots];
    TenantId tenant = kOtherTenants;
    if (const auto whose = whose_.extract(location.offset)) tenant = whose.mapped();
    bytes_[tenant.value] -= slots.slot_bytes;
    tenants_.Refund(Tier::kDisk, tenant, slots.slot_bytes);
  }

  // Slots in slabs that leave will be free for none.
  void Forget() {
    std::erase_if(coming_, [&](uint64_t offset) {
      if (!allocator_.Leaving(offset)) return false;
      --freeing_[allocator_.ClassAt(offset)];
      return true;
    });
  }

  // Slots that will be free for blocks of the class.
  [[nodiscard]] uint64_t Of(const SlotClass& slots) const {
    const auto found = freeing_.find(slots);
    return found == freeing_.end() ? 0 : found->second;
  }
  [[nodiscard]] uint64_t bytes(TenantId tenant) const { return bytes_[tenant.value]; }

 private:
  TenantTable& tenants_;
  const SlabAllocator& allocator_;
  std::unordered_map<SlotClass, uint64_t, SlotClassHash> freeing_;
  std::unordered_set<uint64_t> coming_;           // by offset; those that `freeing_` counts
  std::vector<uint64_t> bytes_;                   // by tenant
  std::unordered_map<uint64_t, TenantId> whose_;  // by offset; kOtherTenants if not here
};

// Slots of the disk that are no block's and whose bytes or headers are not to be trusted: none is
// used again before a restart, unless its place is cut off the file. Event loop only.
class QuarantinedSlots {
 public:
  // All are borrowed.
  QuarantinedSlots(CacheState* state, SlabAllocator* allocator, const DriveHealth* health)
      : state_(*state), allocator_(*allocator), health_(*health) {}

  // REQUIRES: the slot is allocated, and has no owner.
  void Add(DiskLocation location) {
    ++state_.stats.slots_quarantined;
    if (!FreeIfLeaving(location)) offsets_.insert(location.offset);
  }
  // Slabs leave: theirs hold up no file that is to be cut.
  void FreeLeaving() {
    std::erase_if(offsets_,
                  [this](uint64_t offset) { return FreeIfLeaving(DiskLocation{offset}); });
  }

 private:
  bool FreeIfLeaving(DiskLocation location) {
    if (!allocator_.Leaving(location.offset) || health_.Failed(location)) return false;
    allocator_.Free(location.offset);
    return true;
  }

  CacheState& state_;
  SlabAllocator& allocator_;
  const DriveHealth& health_;
  std::unordered_set<uint64_t> offsets_;
};

// For each class of slots, and for each tenant that has a cap. Event loop only.
class DiskRoom {
 public:
  // All are borrowed.
  DiskRoom(const CacheState* state, const SlabAllocator* allocator, const LeavingSlots* leaving)
      : state_(*state), allocator_(*allocator), leaving_(*leaving) {}

  [[nodiscard]] SlotClass ClassOf(const Namespace& name_space) const;
  // Whether the tenant's blocks may be evicted for others.
  [[nodiscard]] bool EvictableForOthers(TenantId tenant) const;
  // Slots of the class that are free or being freed.
  [[nodiscard]] uint64_t ComingSlots(const SlotClass& slots) const;
  // Slots of the class that should be.
  [[nodiscard]] uint64_t WantedSlots(const SlotClass& slots) const;
  // The bytes that may come before blocks of the class are evicted, or the tenant's for its cap.
  [[nodiscard]] uint64_t SpareBytes(const SlotClass& slots) const;
  [[nodiscard]] uint64_t SpareBytes(TenantId tenant) const;
  // The bytes that the tenant may have of its cap, so that the wanted share of it and `bytes` stay
  // free; and the bytes that it will have.
  [[nodiscard]] uint64_t AllowedBytes(TenantId tenant, uint64_t bytes) const;
  [[nodiscard]] uint64_t StayingBytes(TenantId tenant) const;

 private:
  const CacheState& state_;
  const SlabAllocator& allocator_;
  const LeavingSlots& leaving_;
};

}  // namespace kvtier
