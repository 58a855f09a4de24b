// SPDX-License-Identifier: Apache-2.0
#include "tiers/directory/lineage.h"

#include "base/result.h"

namespace kvtier {

void Lineage::Link(EntryIndex child, EntryIndex parent) {
  Links& above = links_.At(parent.value);
  Links& links = links_.At(child.value);
  KVT_CHECK(links.parent == kNoEntry && child != parent);
  links.parent = parent;
  links.previous = kNoEntry;
  links.next = above.first_child;
  if (links.next != kNoEntry) links_[links.next.value].previous = child;
  above.first_child = child;
}

void Lineage::Unlink(EntryIndex child) {
  if (ParentOf(child) == kNoEntry) return;
  Links& links = links_[child.value];
  if (links.previous != kNoEntry) {
    links_[links.previous.value].next = links.next;
  } else {
    links_[links.parent.value].first_child = links.next;
  }
  if (links.next != kNoEntry) links_[links.next.value].previous = links.previous;
  links.parent = links.next = links.previous = kNoEntry;
}

}  // namespace kvtier
