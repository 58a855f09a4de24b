// SPDX-License-Identifier: Apache-2.0
// Slots of the disk that are no block's any more and whose deletion is not durable yet: they still
// take their tenant's bytes, and none is written anew before.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "tiers/memory/slab_allocator.h"
#include "tiers/policy/tenant_table.h"
#include "tiers/types/block_key.h"

namespace kvtier {

// Event loop only.
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

}  // namespace kvtier
