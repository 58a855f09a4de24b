// SPDX-License-Identifier: Apache-2.0
#include "tiers/policy/entry_list.h"

#include "base/check.h"

namespace kvtier {

void EntryList::PushHot(EntryIndex entry) {
  Link& link = links_.At(entry.value);
  KVT_CHECK(link.hotter == kUnlinked);
  link = {.colder = hottest_, .hotter = kNoEntry};
  if (hottest_ != kNoEntry) {
    links_[hottest_.value].hotter = entry;
  } else {
    coldest_ = entry;
  }
  hottest_ = entry;
  ++size_;
}

void EntryList::Remove(EntryIndex entry) {
  if (!Contains(entry)) return;
  Link& link = links_[entry.value];
  if (link.colder != kNoEntry) {
    links_[link.colder.value].hotter = link.hotter;
  } else {
    coldest_ = link.hotter;
  }
  if (link.hotter != kNoEntry) {
    links_[link.hotter.value].colder = link.colder;
  } else {
    hottest_ = link.colder;
  }
  link.hotter = kUnlinked;
  --size_;
}

}  // namespace kvtier
