// SPDX-License-Identifier: Apache-2.0
#include "tiers/policy/tenant_orders.h"

namespace kvtier {

TenantVictims::TenantVictims(uint32_t lanes, Spares spares, const Bytes& bytes)
    : stamps_(lanes > 1) {
  const VictimQueue::Spares put_back =
      [this, spares = std::move(spares)](EntryIndex entry) -> std::optional<BlockFacts> {
    if (!spares(entry)) return std::nullopt;
    stamps_.Renew(entry);
    return BlockFacts{};
  };
  for (uint32_t i = 0; i < lanes; ++i) lanes_.emplace_back(MakeLruPolicy(), put_back, bytes);
}

// Compares one block of each tenant. Stamps are kept only where there are several orders.
VictimQueue* TenantVictims::ColdestTenant(const Admits& admits,
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

EntryIndex TenantVictims::Front(const Admits& admits, const Prepare& prepare) {
  VictimQueue* const lane = ColdestTenant(admits, &VictimQueue::Coldest);
  if (lane == nullptr) return kNoEntry;
  lane->Prepare(1, prepare);
  return lane->Front();
}

void TenantVictims::PrepareColdest(uint64_t bytes, const Admits& admits, const Prepare& prepare,
                                   uint64_t* steps) {
  if (bytes == 0) return;
  uint64_t prepared = 0;
  for (uint32_t i = 0; i < lanes_.size(); ++i) {
    if (admits(TenantId(i))) prepared += lanes_[i].prepared();
  }
  while (*steps > 0 && prepared < bytes) {
    VictimQueue* const lane = ColdestTenant(admits, &VictimQueue::ColdestUnprepared);
    if (lane == nullptr) return;
    const uint64_t before = lane->prepared();
    lane->Prepare(before + 1, prepare, steps);
    prepared += lane->prepared() - before;
  }
}

size_t TenantVictims::size(const Admits& admits) const {
  size_t total = 0;
  for (uint32_t i = 0; i < lanes_.size(); ++i) {
    if (admits(TenantId(i))) total += lanes_[i].size();
  }
  return total;
}

size_t TenantVictims::memory_bytes() const {
  size_t total = stamps_.memory_bytes();
  for (const VictimQueue& lane : lanes_) total += lane.memory_bytes();
  return total;
}

TenantRecency::Walk::Walk(const TenantRecency& order, const std::function<bool(TenantId)>& admits)
    : order_(order), next_(order.lanes_.size(), kNoEntry) {
  for (uint32_t i = 0; i < next_.size(); ++i) {
    if (admits(TenantId(i))) next_[i] = order_.lanes_[i].coldest();
  }
}

// A merge of the tenants' orders.
EntryIndex TenantRecency::Walk::Next() {
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
  if (entry != kNoEntry) next_[lane] = order_.lanes_[lane].Hotter(entry);
  return entry;
}

size_t TenantRecency::memory_bytes() const {
  size_t total = stamps_.memory_bytes();
  for (const EntryList& lane : lanes_) total += lane.memory_bytes();
  return total;
}

}  // namespace kvtier
