// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/adopted_entries.h"

namespace kvtier {

EntryIndex AdoptedEntries::Add(const BlockEntry& found) {
  const auto if_held = [](const EntryList& list, EntryIndex entry) {
    return entry != kNoEntry && list.Contains(entry) ? entry : kNoEntry;
  };
  const BlockKey key{found.namespace_id, found.hash};
  const EntryIndex index = state_.AddEntry(key, found.tokens, found.depth, found.retention);
  BlockEntry& entry = state_[index];
  entry.created_s = found.created_s;
  entry.last_use_s = found.last_use_s;
  EntryList& ages = state_.orders.AgesOf(state_.blocks.TenantOf(entry), entry.retention);
  EntryIndex& youngest = youngest_[static_cast<size_t>(&ages - state_.orders.by_age.data())];
  ages.Remove(index);
  ages.PushColderThan(if_held(ages, youngest), index);
  youngest = index;
  if (state_.QueueIfUndecided(index, if_held(state_.orders.unpersisted, youngest_unpersisted_))) {
    youngest_unpersisted_ = index;
  }
  state_.infinite_cache.Store(key.namespace_id, key.hash);
  return index;
}

}  // namespace kvtier
