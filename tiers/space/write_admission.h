// SPDX-License-Identifier: Apache-2.0
// Whether a block is worth being written to disk: by its own chance of being used again, and by the
// blocks of its sequence that are written.
//
// A block is worth nothing without those before it. So one that is followed by a block on disk, or
// on its way there, is written whatever its own chance; and one whose parent is not on disk and
// will not be is not written. Pinned blocks always are, for that is what their client asked for.
#pragma once

#include <vector>

#include "tiers/state/cache_state.h"

namespace kvtier {

// Event loop only.
class WriteAdmission {
 public:
  explicit WriteAdmission(CacheState* state) : state_(*state) {}

  // It should be on disk, and is neither there nor on its way.
  [[nodiscard]] bool Undecided(EntryIndex entry) const {
    return state_[entry].NeedsPersist(state_.has_disk()) && !IsOrWillBeOnDisk(state_[entry]);
  }
  // REQUIRES: Undecided().
  [[nodiscard]] bool Admits(EntryIndex entry) const;
  // The declined blocks before an admitted one that some tier still has: they are to be written,
  // too. The nearest first.
  [[nodiscard]] std::vector<EntryIndex> DeclinedParents(EntryIndex entry) const;

 private:
  [[nodiscard]] bool IsOrWillBeOnDisk(const BlockEntry& entry) const {
    return entry.has_disk_slot() || entry.persist_wanted();
  }
  [[nodiscard]] bool ChildIsWritten(EntryIndex entry) const;
  [[nodiscard]] bool ParentsCanBeWritten(EntryIndex entry) const;
  [[nodiscard]] double ChanceOfUse(EntryIndex entry) const;

  CacheState& state_;
};

}  // namespace kvtier
