// SPDX-License-Identifier: Apache-2.0
// A doubly linked list of directory entries, cold end first. Links live in the list, not in the
// entry, so that an entry can stand in several lists and pays only for those it was ever in.
#pragma once

#include <cstddef>

#include "tiers/policy/paged_array.h"
#include "tiers/types/entry_index.h"

namespace kvtier {

class EntryList {
 public:
  [[nodiscard]] bool Contains(EntryIndex entry) const {
    const Link* link = links_.Find(entry.value);
    return link != nullptr && link->hotter != kUnlinked;
  }
  [[nodiscard]] size_t size() const { return size_; }
  [[nodiscard]] bool empty() const { return size_ == 0; }
  // kNoEntry when empty.
  [[nodiscard]] EntryIndex coldest() const { return coldest_; }
  // The next hotter entry, or kNoEntry. REQUIRES: Contains(entry).
  [[nodiscard]] EntryIndex Hotter(EntryIndex entry) const { return links_[entry.value].hotter; }

  // REQUIRES: !Contains(entry).
  void PushHot(EntryIndex entry);
  // Does nothing if the entry is not in the list.
  void Remove(EntryIndex entry);
  // Moves to (or inserts at) the hot end.
  void Touch(EntryIndex entry) {
    Remove(entry);
    PushHot(entry);
  }

  [[nodiscard]] size_t memory_bytes() const { return links_.memory_bytes(); }

 private:
  // Stands in `hotter` of an entry that is not in the list.
  static constexpr EntryIndex kUnlinked{UINT32_MAX - 1};
  struct Link {
    EntryIndex colder = kNoEntry;
    EntryIndex hotter = kUnlinked;
  };

  PagedArray<Link> links_;
  EntryIndex coldest_ = kNoEntry;
  EntryIndex hottest_ = kNoEntry;
  size_t size_ = 0;
};

}  // namespace kvtier
