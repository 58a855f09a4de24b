// SPDX-License-Identifier: Apache-2.0
#include "tiers/orders/orders.h"

#include <utility>

namespace kvtier {

Orders::Orders(uint32_t tenants, Tiers tiers, TenantVictims::Spares host_spares,
               const TenantVictims::Bytes& host_bytes)
    : by_age(size_t{2} * tenants),
      disk(tenants),
      host(tenants, std::move(host_spares), host_bytes),
      tiers_(tiers) {}

void Orders::RefileOnDisk(TenantId tenant, EntryIndex index, const BlockEntry& entry) {
  if (!StandsOnDisk(entry)) {
    disk.Remove(tenant, index);
  } else if (!disk.Contains(tenant, index)) {
    disk.Touch(tenant, index);
  }
}

void Orders::RefileInHost(TenantId tenant, EntryIndex index, const BlockEntry& entry) {
  if (!StandsInHost(entry)) {
    host.Remove(tenant, index);
  } else if (!host.Contains(tenant, index)) {
    host.Touch(tenant, index);
  }
}

void Orders::EnterColdLine(EntryIndex index, const BlockEntry& entry) {
  // With a disk, an idle block comes to host for its sake.
  const bool may_go_down = entry.in_host() || entry.on_disk() || (!tiers_.disk && entry.in_pool());
  if (!may_go_down || entry.retention != RetentionClass::kExtended) return;
  if (!cold_line.Contains(index)) cold_line.PushHot(index);
}

bool Orders::QueueIfUndecided(EntryIndex index, const BlockEntry& entry, EntryIndex hotter) {
  if (!Undecided(entry) || unpersisted.Contains(index)) return false;
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
  if (tiers_.disk && entry.BelongsOnDisk() && !entry.on_disk()) return;
  host.LeaveFirst(tenant, index);
}

}  // namespace kvtier
