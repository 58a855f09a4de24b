// SPDX-License-Identifier: Apache-2.0
// The order in which the disk forgets, one lane for each tenant with quotas and one for all others;
// see victim_lanes.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tiers/policy/eviction_policy.h"
#include "tiers/policy/lane_stamps.h"
#include "tiers/policy/tenant_table.h"

namespace kvtier {

// Event loop only.
class RecencyLanes {
 public:
  explicit RecencyLanes(uint32_t lanes) : stamps_(lanes > 1) {
    for (uint32_t i = 0; i < lanes; ++i) lanes_.push_back(MakeLruPolicy());
  }

  // The block is the youngest as of now. Inserts it if it is not held.
  void Touch(TenantId lane, EntryIndex entry, const BlockFacts& facts) {
    stamps_.Renew(entry);
    lanes_[lane.value]->Touch(entry, facts);
  }
  // Does nothing if the entry is not held.
  void Remove(TenantId lane, EntryIndex entry) { lanes_[lane.value]->Remove(entry); }
  [[nodiscard]] bool Contains(TenantId lane, EntryIndex entry) const {
    return lanes_[lane.value]->Contains(entry);
  }
  [[nodiscard]] size_t memory_bytes() const;

  // The entries of the lanes admitted, the coldest first. Ends with the next change to the order.
  class Walk {
   public:
    Walk(const RecencyLanes& order, const std::function<bool(TenantId)>& admits);
    // kNoEntry at the end.
    [[nodiscard]] EntryIndex Next();

   private:
    const RecencyLanes& order_;
    std::vector<EntryIndex> next_;  // by lane; kNoEntry: no more, or not admitted
  };

 private:
  std::vector<std::unique_ptr<EvictionPolicy>> lanes_;
  LaneStamps stamps_;
};

}  // namespace kvtier
