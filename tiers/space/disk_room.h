// SPDX-License-Identifier: Apache-2.0
// How much of the disk is free, is being freed, and is to be kept free: for each class of slots,
// and for each tenant that has a cap.
#pragma once

#include <cstdint>

#include "tiers/memory/slab_allocator.h"
#include "tiers/state/cache_state.h"

namespace kvtier {

class LeavingSlots;

// Event loop only.
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
