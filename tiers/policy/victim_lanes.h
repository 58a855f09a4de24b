// SPDX-License-Identifier: Apache-2.0
// A tier's order of eviction, one lane for each tenant with quotas and one for all others: the
// coldest of one tenant is found as fast as the coldest of all, and a tenant whose blocks must stay
// is passed over at once. The cost of a choice grows with the tenants that have quotas, not with
// blocks.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "tiers/policy/lane_stamps.h"
#include "tiers/policy/tenant_table.h"
#include "tiers/policy/victim_queue.h"

namespace kvtier {

// Event loop only.
class VictimLanes {
 public:
  // Whether the blocks of the tenant may be chosen.
  using Admits = std::function<bool(TenantId)>;
  using Prepare = std::function<void(EntryIndex)>;

  explicit VictimLanes(uint32_t lanes) : stamps_(lanes > 1) {
    for (uint32_t i = 0; i < lanes; ++i) lanes_.emplace_back(MakeLruPolicy());
  }

  // The block is the youngest as of now.
  void Touch(TenantId lane, EntryIndex entry, const BlockFacts& facts) {
    stamps_.Renew(entry);
    lanes_[lane.value].Touch(entry, facts);
  }
  // Does nothing if the entry is not held.
  void Remove(TenantId lane, EntryIndex entry) { lanes_[lane.value].Remove(entry); }
  [[nodiscard]] bool Contains(TenantId lane, EntryIndex entry) const {
    return lanes_[lane.value].Contains(entry);
  }

  // The coldest of the lanes admitted, prepared if it was not; kNoEntry if there is none.
  [[nodiscard]] EntryIndex Front(const Admits& admits, const Prepare& prepare);
  // Prepares the coldest of the lanes admitted until these hold `target` prepared blocks.
  void PrepareColdest(size_t target, const Admits& admits, const Prepare& prepare);
  // Prepares the lane's coldest until it holds `target` prepared blocks.
  void PrepareLane(TenantId lane, size_t target, const Prepare& prepare) {
    lanes_[lane.value].Prepare(target, prepare);
  }

  // Of the lanes admitted.
  [[nodiscard]] size_t size(const Admits& admits) const;
  [[nodiscard]] size_t memory_bytes() const;

 private:
  // The lane admitted whose block by `choose` is the coldest; null if none has one.
  [[nodiscard]] VictimQueue* ColdestLane(const Admits& admits,
                                         EntryIndex (VictimQueue::*choose)() const);

  std::vector<VictimQueue> lanes_;
  LaneStamps stamps_;
};

}  // namespace kvtier
