// SPDX-License-Identifier: Apache-2.0
// What one tenant may take of each tier, and how long its blocks live.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/ids.h"

namespace kvtier {

struct TierQuota {
  // The tenant never takes more; 0: no cap of its own.
  uint64_t max_bytes = 0;
  // What the tenant has, up to this much, is not taken for others; 0: nothing. Host and disk
  // reserve whole slabs: the next multiple of CacheOptions::slab_bytes.
  uint64_t reserved_bytes = 0;
};

struct TenantQuota {
  std::string name;
  std::array<TierQuota, kTierCount> tiers;  // by Tier
  // In place of those of all tenants; 0: the same as all.
  int64_t memory_ttl_ms = 0;
  int64_t extended_ttl_ms = 0;
  int64_t max_age_ms = 0;
};

}  // namespace kvtier
