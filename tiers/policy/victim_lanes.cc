// SPDX-License-Identifier: Apache-2.0
#include "tiers/policy/victim_lanes.h"

namespace kvtier {

VictimQueue* VictimLanes::ColdestLane(const Admits& admits,
                                      EntryIndex (VictimQueue::*choose)() const) {
  VictimQueue* coldest = nullptr;
  uint64_t oldest = UINT64_MAX;
  for (uint32_t i = 0; i < lanes_.size(); ++i) {
    const EntryIndex candidate = (lanes_[i].*choose)();
    if (candidate == kNoEntry || !admits(TenantId(i))) continue;
    if (lanes_.size() == 1) return lanes_.data();
    if (stamps_.Of(candidate) >= oldest) continue;
    oldest = stamps_.Of(candidate);
    coldest = &lanes_[i];
  }
  return coldest;
}

EntryIndex VictimLanes::Front(const Admits& admits, const Prepare& prepare) {
  VictimQueue* const lane = ColdestLane(admits, &VictimQueue::Coldest);
  if (lane == nullptr) return kNoEntry;
  lane->Prepare(1, prepare);
  return lane->Front();
}

void VictimLanes::PrepareColdest(size_t target, const Admits& admits, const Prepare& prepare) {
  size_t prepared = 0;
  for (uint32_t i = 0; i < lanes_.size(); ++i) {
    if (admits(TenantId(i))) prepared += lanes_[i].prepared();
  }
  for (; prepared < target; ++prepared) {
    VictimQueue* const lane = ColdestLane(admits, &VictimQueue::ColdestUnprepared);
    if (lane == nullptr) return;
    lane->Prepare(lane->prepared() + 1, prepare);
  }
}

size_t VictimLanes::size(const Admits& admits) const {
  size_t total = 0;
  for (uint32_t i = 0; i < lanes_.size(); ++i) {
    if (admits(TenantId(i))) total += lanes_[i].size();
  }
  return total;
}

size_t VictimLanes::memory_bytes() const {
  size_t total = stamps_.memory_bytes();
  for (const VictimQueue& lane : lanes_) total += lane.memory_bytes();
  return total;
}

}  // namespace kvtier
