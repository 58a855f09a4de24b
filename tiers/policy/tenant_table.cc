// SPDX-License-Identifier: Apache-2.0
#include "tiers/policy/tenant_table.h"

#include <algorithm>

#include "base/result.h"

namespace kvtier {
namespace {

constexpr uint64_t kNoCap = UINT64_MAX;

int64_t OrElse(int64_t own, int64_t common) { return own > 0 ? own : common; }

}  // namespace

TenantTable::TenantTable(const CacheOptions& options) : rows_(1 + options.tenants.size()) {
  for (size_t i = 0; i < options.tenants.size(); ++i) {
    Row& row = rows_[i + 1];
    row.quota = options.tenants[i];
    for (const Tier tier : {Tier::kHost, Tier::kDisk}) {
      const auto at = static_cast<size_t>(tier);
      const uint64_t reserved = row.quota.tiers[at].reserved_bytes;
      row.tiers[at].reserved_slabs = (reserved + options.slab_bytes - 1) / options.slab_bytes;
    }
  }
  TakeRetention(options);
}

void TenantTable::TakeRetention(const CacheOptions& options) {
  for (Row& row : rows_) {
    row.ttl_ms = {OrElse(row.quota.memory_ttl_ms, options.memory_ttl_ms),
                  OrElse(row.quota.extended_ttl_ms, options.extended_ttl_ms)};
    row.max_age_ms = OrElse(row.quota.max_age_ms, options.max_age_ms);
  }
}

// Reservations stay as they were at the start, because memory and disk were divided by them then. A
// tenant above its new cap keeps its blocks, but gets nothing more; see Fits.
void TenantTable::Reconfigure(const CacheOptions& options) {
  for (const TenantQuota& wanted : options.tenants) {
    const TenantId tenant = Find(wanted.name);
    if (tenant == kOtherTenants) continue;
    Row& row = rows_[tenant.value];
    TenantQuota taken = wanted;
    for (size_t tier = 0; tier < kTierCount; ++tier) {
      taken.tiers[tier].reserved_bytes = row.quota.tiers[tier].reserved_bytes;
      row.tiers[tier].over_bytes = row.tiers[tier].used_bytes;
    }
    row.quota = std::move(taken);
  }
  TakeRetention(options);
}

TenantId TenantTable::Find(std::string_view name) const {
  for (uint32_t i = 1; i < rows_.size(); ++i) {
    if (rows_[i].quota.name == name) return TenantId(i);
  }
  return kOtherTenants;
}

uint64_t TenantTable::cap_bytes(Tier tier, TenantId tenant) const {
  const uint64_t max_bytes = At(tenant).quota.tiers[static_cast<size_t>(tier)].max_bytes;
  return max_bytes == 0 ? kNoCap : max_bytes;
}

uint64_t TenantTable::bound_bytes(Tier tier, TenantId tenant) const {
  return std::max(cap_bytes(tier, tenant), At(tenant).tiers[static_cast<size_t>(tier)].over_bytes);
}

// A tenant above a lowered cap gets nothing until it is below it again.
bool TenantTable::Fits(Tier tier, TenantId tenant, uint64_t bytes) const {
  const uint64_t cap = cap_bytes(tier, tenant);
  const uint64_t used = used_bytes(tier, tenant);
  return used <= cap && bytes <= cap - used;
}

void TenantTable::Charge(Tier tier, TenantId tenant, uint64_t bytes) {
  KVT_CHECK(Fits(tier, tenant, bytes));
  Use(tier, tenant).used_bytes += bytes;
}

// Blocks found on disk at a start are charged even above the cap: they exist, and the trimming that
// follows evicts the excess.
void TenantTable::Restore(Tier tier, TenantId tenant, uint64_t bytes) {
  TierUse& use = Use(tier, tenant);
  use.used_bytes += bytes;
  use.over_bytes = use.used_bytes;
}

void TenantTable::Refund(Tier tier, TenantId tenant, uint64_t bytes) {
  TierUse& use = Use(tier, tenant);
  KVT_CHECK(use.used_bytes >= bytes);
  use.used_bytes -= bytes;
  use.over_bytes = std::min(use.over_bytes, use.used_bytes);
}

// Bytes reserved for others count as taken, whether they use them or not.
uint64_t TenantTable::PoolBytesLeft(TenantId tenant, uint64_t capacity_bytes) const {
  constexpr auto kPool = static_cast<size_t>(Tier::kPool);
  uint64_t taken = 0;
  for (uint32_t i = 0; i < rows_.size(); ++i) {
    const uint64_t used = rows_[i].tiers[kPool].used_bytes;
    const bool other = TenantId(i) != tenant;
    taken += other ? std::max(used, rows_[i].quota.tiers[kPool].reserved_bytes) : used;
  }
  const uint64_t left = capacity_bytes - std::min(capacity_bytes, taken);
  return std::min(left, CapBytesLeft(Tier::kPool, tenant));
}

}  // namespace kvtier
