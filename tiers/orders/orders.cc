// SPDX-License-Identifier: Apache-2.0
#include "tiers/orders/orders.h"

#include <utility>

namespace kvtier {

Orders::Orders(uint32_t tenants, bool has_disk, TenantVictims::Spares host_spares)
    : by_age(size_t{2} * tenants),
      disk(tenants),
      host(tenants, std::move(host_spares)),
      has_disk_(has_disk) {}

void Orders::RefileOnDisk(TenantId tenant, EntryIndex index, const BlockEntry& entry) {
  if (!entry.StandsOnDisk()) {
    disk.Remove(tenant, index);
  } else if (!disk.Contains(tenant, index)) {
    disk.Touch(tenant, index);
  }
}

void Orders::RefileInHost(TenantId tenant, EntryIndex index, const BlockEntry& entry) {
  if (!entry.StandsInHost()) {
    host.Remove(tenant, index);
  } else if (!host.Contains(tenant, index)) {
    host.Touch(tenant, index);
  }
}

bool Orders::QueueIfUndecided(EntryIndex index, const BlockEntry& entry, EntryIndex hotter) {
  if (!entry.Undecided(has_disk_) || unpersisted.Contains(index)) return false;
  unpersisted.PushColderThan(hotter, index);
  return true;
}

void Orders::ReorderInHost(TenantId tenant, EntryIndex index, const BlockEntry& entry) {
  if (entry.LeavesFirst()) {
    host.LeaveFirst(tenant, index);
  } else {
    host.Touch(tenant, index);
  }
}

void Orders::GiveUpFirst(TenantId tenant, EntryIndex index, const BlockEntry& entry) {
  if (!entry.in_host() || entry.loading() || entry.pinned()) return;
  const bool belongs_on_disk =
      has_disk_ && !entry.LeavesFirst() && entry.retention == RetentionClass::kExtended;
  if (belongs_on_disk && !entry.on_disk()) return;
  host.LeaveFirst(tenant, index);
}

}  // namespace kvtier
