// SPDX-License-Identifier: Apache-2.0
#include "tiers/space/write_admission.h"

#include <algorithm>

namespace kvtier {
namespace {

// Some of more children than these are taken to be written: such a block is shared by many.
constexpr size_t kMostChildren = 64;

}  // namespace

bool WriteAdmission::Admits(EntryIndex index) const {
  const BlockEntry& entry = state_[index];
  if (!state_.Admits() || entry.pinned() || ChildIsWritten(index)) return true;
  const double least = std::max(state_.options.disk_admission, state_.write_budget.least_chance());
  return ParentsCanBeWritten(index) && ChanceOfUse(index) >= least;
}

bool WriteAdmission::ChildIsWritten(EntryIndex index) const {
  size_t left = kMostChildren;
  for (EntryIndex child = state_.blocks.lineage.FirstChildOf(index); child != kNoEntry;
       child = state_.blocks.lineage.NextSiblingOf(child)) {
    if (left-- == 0 || IsOrWillBeOnDisk(state_[child])) return true;
  }
  return false;
}

// Nothing is decided here for a parent that no tier has: it may come back, as when it is computed
// anew, and if it does not, its followers are dropped (CacheOptions::keep_unusable_ms).
bool WriteAdmission::ParentsCanBeWritten(EntryIndex index) const {
  uint64_t left = state_.options.search_part_blocks;
  for (EntryIndex parent = state_.blocks.lineage.ParentOf(index);
       parent != kNoEntry && !state_.blocks.lost.Contains(parent);
       parent = state_.blocks.lineage.ParentOf(parent)) {
    const BlockEntry& entry = state_[parent];
    if (IsOrWillBeOnDisk(entry) || entry.NeedsPersist(state_.has_disk())) return true;
    // One that was declined can be admitted after all, as long as there are bytes to write.
    const bool may_be = entry.persist_failed() && !entry.LeavesFirst() &&
                        entry.retention == RetentionClass::kExtended;
    if (!may_be || !(entry.in_host() || entry.in_pool()) || left-- == 0) return false;
  }
  return true;
}

std::vector<EntryIndex> WriteAdmission::DeclinedParents(EntryIndex index) const {
  std::vector<EntryIndex> declined;
  if (!state_.Admits()) return declined;
  for (EntryIndex parent = state_.blocks.lineage.ParentOf(index);
       parent != kNoEntry && declined.size() < state_.options.search_part_blocks;
       parent = state_.blocks.lineage.ParentOf(parent)) {
    const BlockEntry& entry = state_[parent];
    const bool has_bytes = entry.in_host() || entry.in_pool();
    if (!entry.persist_failed() || IsOrWillBeOnDisk(entry) || !has_bytes) break;
    declined.push_back(parent);
  }
  return declined;
}

double WriteAdmission::ChanceOfUse(EntryIndex index) const {
  const BlockEntry& entry = state_[index];
  if (state_.env.owner != nullptr) {
    const auto chance = state_.env.owner->ChanceOfUse(state_.blocks.FactsOf(index));
    if (chance) return *chance;
  }
  const auto since_use_s = [&](int64_t now_s) {
    return static_cast<uint32_t>(std::max<int64_t>(now_s - entry.last_use_s, 0));
  };
  return state_.disk_admission.ChanceOfUse(state_.blocks.TenantOf(entry), entry.recent_uses,
                                           since_use_s(state_.clock.NowS()),
                                           since_use_s(state_.ExpiryMs(entry) / 1000));
}

}  // namespace kvtier
