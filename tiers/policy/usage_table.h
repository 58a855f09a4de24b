// SPDX-License-Identifier: Apache-2.0
// Each tenant's bytes in the tiers and how long it has had them, and the pins that it asked for:
// what an operator charges it for. Quotas are TenantTable's affair.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "tiers/policy/age_clock.h"
#include "tiers/policy/tenant_queues.h"
#include "tiers/types/cache_stats.h"

namespace kvtier {

// Event loop only. Counts from the start of the process, as all counters do.
class UsageTable {
 public:
  // So many tenants are told apart; those that came later share the next row.
  static constexpr uint32_t kMostTenants = 256;

  // `clock` is borrowed and outlives this.
  explicit UsageTable(const AgeClock* clock) : clock_(*clock) {}

  // The tenant has so many bytes more from now on. On disk it has them until the block is dropped,
  // though the slot can be used again only when that is durable.
  void Take(TenantLine tenant, Tier tier, uint64_t bytes) { UpToNow(tenant, tier).bytes += bytes; }
  void GiveBack(TenantLine tenant, Tier tier, uint64_t bytes) {
    UpToNow(tenant, tier).bytes -= bytes;
  }
  // By how much more is pinned now, or (modulo 2^64) less.
  void NotePinned(TenantLine tenant, uint64_t more_bytes) {
    RowOf(tenant).pinned_bytes += more_bytes;
  }
  void CountPins(TenantLine tenant, PinOutcome outcome, uint64_t blocks) {
    RowOf(tenant).pins[static_cast<size_t>(outcome)] += blocks;
  }

  [[nodiscard]] static bool IsToldApart(TenantLine tenant) { return tenant.value < kMostTenants; }
  // Without its name. One that is not told apart: that of all of these.
  [[nodiscard]] TenantUsage Of(TenantLine tenant) const {
    TenantUsage usage;
    const size_t at = std::min(tenant.value, kMostTenants);
    if (at >= rows_.size()) return usage;
    const Row& row = rows_[at];
    for (size_t tier = 0; tier < kTierCount; ++tier) {
      usage.held_bytes[tier] = row.held[tier].bytes;
      usage.byte_seconds[tier] = static_cast<double>(ByteMs(row.held[tier])) / 1000;
    }
    usage.pinned_bytes = row.pinned_bytes;
    usage.pins = row.pins;
    return usage;
  }

 private:
  // A pebibyte for a week is more byte milliseconds than 64 bits count.
  __extension__ using Wide = unsigned __int128;
  struct Held {
    uint64_t bytes = 0;
    int64_t since_ms = 0;
    Wide byte_ms = 0;  // until then
  };
  struct Row {
    std::array<Held, kTierCount> held;
    uint64_t pinned_bytes = 0;
    std::array<uint64_t, kPinOutcomeCount> pins{};
  };

  [[nodiscard]] Row& RowOf(TenantLine tenant) {
    const size_t at = std::min(tenant.value, kMostTenants);
    if (at >= rows_.size()) rows_.resize(at + 1);
    return rows_[at];
  }
  [[nodiscard]] Held& UpToNow(TenantLine tenant, Tier tier) {
    Held& held = RowOf(tenant).held[static_cast<size_t>(tier)];
    held.byte_ms = ByteMs(held);
    held.since_ms = clock_.NowMs();
    return held;
  }
  [[nodiscard]] Wide ByteMs(const Held& held) const {
    return held.byte_ms + Wide{held.bytes} * static_cast<uint64_t>(clock_.NowMs() - held.since_ms);
  }

  const AgeClock& clock_;
  std::vector<Row> rows_;
};

}  // namespace kvtier
