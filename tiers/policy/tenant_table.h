// SPDX-License-Identifier: Apache-2.0
// The tenants that have quotas: what they may take, what they have taken, how long their blocks
// live. Knows bytes, not blocks.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tiers/types/cache_options.h"

namespace kvtier {

// A row of the table.
using TenantId = Strong<struct TenantIdTag, uint32_t>;
// All tenants without quotas together.
inline constexpr TenantId kOtherTenants{0};

// Event loop only. The start settles which tenants have rows, and how much is reserved for them.
class TenantTable {
 public:
  explicit TenantTable(const CacheOptions& options);

  // Takes over caps and times to live of the tenants that have rows. A cap may thereby fall below
  // what its tenant has: that must then be evicted.
  void Reconfigure(const CacheOptions& options);

  // kOtherTenants if the tenant has no quotas.
  [[nodiscard]] TenantId Find(std::string_view name) const;
  [[nodiscard]] uint32_t rows() const { return static_cast<uint32_t>(rows_.size()); }
  // Some tenant has quotas.
  [[nodiscard]] bool any() const { return rows_.size() > 1; }
  [[nodiscard]] const TenantQuota& quota(TenantId tenant) const { return At(tenant).quota; }

  // --- bytes taken ---
  // Whether the tenant may take so much more.
  [[nodiscard]] bool Fits(Tier tier, TenantId tenant, uint64_t bytes) const;
  // REQUIRES: Fits, but for blocks found at a restart (`Restore`).
  void Charge(Tier tier, TenantId tenant, uint64_t bytes);
  void Restore(Tier tier, TenantId tenant, uint64_t bytes);
  void Refund(Tier tier, TenantId tenant, uint64_t bytes);
  [[nodiscard]] uint64_t used_bytes(Tier tier, TenantId tenant) const {
    return At(tenant).tiers[static_cast<size_t>(tier)].used_bytes;
  }
  // UINT64_MAX: none.
  [[nodiscard]] uint64_t cap_bytes(Tier tier, TenantId tenant) const;
  // Whether the tenant has more than a cap that was lowered.
  [[nodiscard]] bool OverCap(Tier tier, TenantId tenant) const {
    return used_bytes(tier, tenant) > cap_bytes(tier, tenant);
  }
  // The most that the tenant can have by now: its cap, or the rest of its usage from when the cap
  // was lowered.
  [[nodiscard]] uint64_t bound_bytes(Tier tier, TenantId tenant) const;

  // --- pins ---
  // By how much more is pinned now, or (modulo 2^64) less.
  void NotePinned(TenantId tenant, uint64_t more_bytes) {
    rows_[tenant.value].pinned_bytes += more_bytes;
  }
  [[nodiscard]] uint64_t pinned_bytes(TenantId tenant) const { return At(tenant).pinned_bytes; }

  // --- host and disk: slabs ---
  // Tenants with reserved slabs have slabs to themselves (SlotClass::group); the rest share.
  [[nodiscard]] uint32_t GroupOf(Tier tier, TenantId tenant) const {
    return ReservedSlabs(tier, tenant) > 0 ? tenant.value : 0;
  }
  [[nodiscard]] uint64_t ReservedSlabs(Tier tier, TenantId tenant) const {
    return At(tenant).tiers[static_cast<size_t>(tier)].reserved_slabs;
  }

  // --- pools ---
  // The bytes that the tenant may still take of the tier's `capacity_bytes`: neither those that
  // others have, nor those reserved for others, nor more than its cap.
  [[nodiscard]] uint64_t PoolBytesLeft(TenantId tenant, uint64_t capacity_bytes) const;
  [[nodiscard]] uint64_t CapBytesLeft(Tier tier, TenantId tenant) const {
    const uint64_t cap = cap_bytes(tier, tenant);
    return cap - std::min(cap, used_bytes(tier, tenant));
  }
  // Whether the tenant keeps its reserved bytes when it gives up so many.
  [[nodiscard]] bool KeepsPoolReserve(TenantId tenant, uint64_t bytes) const {
    constexpr auto kPool = static_cast<size_t>(Tier::kPool);
    return At(tenant).tiers[kPool].used_bytes >=
           At(tenant).quota.tiers[kPool].reserved_bytes + bytes;
  }

  // --- retention ---
  [[nodiscard]] int64_t TtlMs(TenantId tenant, RetentionClass retention) const {
    return At(tenant).ttl_ms[static_cast<size_t>(retention)];
  }
  // 0: no maximum.
  [[nodiscard]] int64_t MaxAgeMs(TenantId tenant) const { return At(tenant).max_age_ms; }
  [[nodiscard]] bool AnyMaxAge() const {
    return std::ranges::any_of(rows_, [](const Row& row) { return row.max_age_ms > 0; });
  }

 private:
  struct TierUse {
    uint64_t used_bytes = 0;
    uint64_t over_bytes = 0;  // bytes in use when the cap was lowered below them, less those that
                              // left
    uint64_t reserved_slabs = 0;
  };
  struct Row {
    TenantQuota quota;
    std::array<TierUse, kTierCount> tiers;
    std::array<int64_t, 2> ttl_ms{};  // by RetentionClass
    int64_t max_age_ms = 0;
    uint64_t pinned_bytes = 0;
  };

  [[nodiscard]] const Row& At(TenantId tenant) const { return rows_[tenant.value]; }
  [[nodiscard]] TierUse& Use(Tier tier, TenantId tenant) {
    return rows_[tenant.value].tiers[static_cast<size_t>(tier)];
  }
  void TakeRetention(const CacheOptions& options);

  std::vector<Row> rows_;
};

}  // namespace kvtier
