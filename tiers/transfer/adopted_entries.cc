// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/adopted_entries.h"

namespace kvtier {

EntryIndex AdoptedEntries::Add(const BlockEntry& found) {
  const auto put = [](EntryList* list, EntryIndex entry, EntryIndex* youngest) {
    list->Remove(entry);
    const bool known = *youngest != kNoEntry && list->Contains(*youngest);
    list->PushColderThan(known ? *youngest : kNoEntry, entry);
    *youngest = entry;
  };
  const BlockKey key{found.namespace_id, found.hash};
  const EntryIndex index = state_.AddEntry(key, found.tokens, found.depth, found.retention);
  BlockEntry& entry = state_[index];
  entry.created_s = found.created_s;
  entry.last_use_s = found.last_use_s;
  EntryList& ages = state_.AgesOf(entry);
  put(&ages, index, &youngest_[static_cast<size_t>(&ages - state_.by_age.data())]);
  if (state_.NeedsPersist(entry)) put(&state_.unpersisted, index, &youngest_unpersisted_);
  state_.infinite_cache.Store(key.namespace_id, key.hash);
  return index;
}

}  // namespace kvtier
