// SPDX-License-Identifier: Apache-2.0
#include "tiers/policy/recency_lanes.h"

namespace kvtier {

RecencyLanes::Walk::Walk(const RecencyLanes& order, const std::function<bool(TenantId)>& admits)
    : order_(order), next_(order.lanes_.size(), kNoEntry) {
  for (uint32_t i = 0; i < next_.size(); ++i) {
    if (admits(TenantId(i))) next_[i] = order_.lanes_[i]->Victim();
  }
}

EntryIndex RecencyLanes::Walk::Next() {
  size_t lane = 0;
  if (next_.size() > 1) {
    uint64_t oldest = UINT64_MAX;
    for (size_t i = 0; i < next_.size(); ++i) {
      if (next_[i] == kNoEntry || order_.stamps_.Of(next_[i]) >= oldest) continue;
      oldest = order_.stamps_.Of(next_[i]);
      lane = i;
    }
  }
  const EntryIndex entry = next_[lane];
  if (entry != kNoEntry) next_[lane] = order_.lanes_[lane]->VictimAfter(entry);
  return entry;
}

size_t RecencyLanes::memory_bytes() const {
  size_t total = stamps_.memory_bytes();
  for (const auto& lane : lanes_) total += lane->memory_bytes();
  return total;
}

}  // namespace kvtier
