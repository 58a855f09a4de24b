// SPDX-License-Identifier: Apache-2.0
#include "tiers/space/disk_room.h"

#include <algorithm>
#include <cmath>

namespace kvtier {

SlotClass DiskRoom::ClassOf(const Namespace& name_space) const {
  return {name_space.slot_bytes, state_.tenants.GroupOf(Tier::kDisk, name_space.tenant)};
}

bool DiskRoom::EvictableForOthers(TenantId tenant) const {
  const uint64_t reserved = state_.tenants.ReservedSlabs(Tier::kDisk, tenant);
  return reserved == 0 || allocator_.GroupSlabs(tenant.value) > reserved;
}

uint64_t DiskRoom::ComingSlots(const SlotClass& slots) const {
  return allocator_.FreeSlots(slots) + leaving_.Of(slots) +
         allocator_.closing_slabs() * allocator_.SlotsPerSlab(slots.slot_bytes);
}

// A tenant with slabs of its own keeps a share of these free, not of the whole tier.
uint64_t DiskRoom::WantedSlots(const SlotClass& slots) const {
  const uint64_t total = slots.group == 0 ? allocator_.TotalSlots(slots.slot_bytes)
                                          : allocator_.GroupSlabs(slots.group) *
                                                allocator_.SlotsPerSlab(slots.slot_bytes);
  return static_cast<uint64_t>(
      std::ceil(state_.options.disk_free_fraction * static_cast<double>(total)));
}

uint64_t DiskRoom::SpareBytes(const SlotClass& slots) const {
  const uint64_t coming = ComingSlots(slots);
  return (coming - std::min(coming, WantedSlots(slots))) * slots.slot_bytes;
}

uint64_t DiskRoom::SpareBytes(TenantId tenant) const {
  const uint64_t allowed = AllowedBytes(tenant, 0);
  return allowed - std::min(allowed, StayingBytes(tenant));
}

uint64_t DiskRoom::AllowedBytes(TenantId tenant, uint64_t bytes) const {
  const uint64_t cap = state_.tenants.cap_bytes(Tier::kDisk, tenant);
  if (cap == UINT64_MAX) return cap;
  const auto share =
      static_cast<uint64_t>(state_.options.disk_free_fraction * static_cast<double>(cap));
  return cap - std::min(cap, std::max(bytes, share));
}

uint64_t DiskRoom::StayingBytes(TenantId tenant) const {
  return state_.tenants.used_bytes(Tier::kDisk, tenant) - leaving_.bytes(tenant);
}

}  // namespace kvtier
