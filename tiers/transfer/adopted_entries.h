// SPDX-License-Identifier: Apache-2.0
// Entries for blocks that an earlier daemon left in memory, in their places where blocks stand by
// their age.
#pragma once

#include <vector>

#include "tiers/state/cache_state.h"

namespace kvtier {

// Event loop only.
class AdoptedEntries {
 public:
  explicit AdoptedEntries(CacheState* state)
      : state_(*state), youngest_(state->orders.by_age.size(), kNoEntry) {}

  // Takes `found`, which is known in no tier, into the directory. It follows the one before it
  // among those that were added here: the caller begins with the most recently used.
  EntryIndex Add(const BlockEntry& found);

 private:
  CacheState& state_;
  // The last that were added, by list of Orders::by_age: the next is as old or older.
  std::vector<EntryIndex> youngest_;
  EntryIndex youngest_unpersisted_ = kNoEntry;
};

}  // namespace kvtier
