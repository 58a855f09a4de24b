// SPDX-License-Identifier: Apache-2.0
// Which block follows which. A block can be hit only as part of a prefix: one whose ancestors no
// tier holds is worth nothing, and only these links tell which ones that are.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tiers/policy/eviction_policy.h"
#include "tiers/types/block_key.h"

namespace kvtier {

// A forest over the directory's rows: each block names its parent, and each parent its children in
// a list, so that a link is made and taken back in constant time, however many sequences share a
// prefix. 16 bytes a row, in pages that are allocated when one of their rows is linked.
//
// Links are learned at commit, from the first acquire that finds both blocks, and from the index's
// or the headers' records of blocks found at the start. The index and the parent's number are not
// checked here: CacheState links only blocks of one namespace and of adjoining depths, so that no
// client can make a circle. Event loop only.
class Lineage {
 public:
  // kNoEntry: none, or not known.
  [[nodiscard]] EntryIndex ParentOf(EntryIndex block) const {
    const Links* links = links_.Find(block.value);
    return links == nullptr ? kNoEntry : links->parent;
  }
  // Some child, the latest linked; kNoEntry if there is none.
  [[nodiscard]] EntryIndex FirstChildOf(EntryIndex block) const {
    const Links* links = links_.Find(block.value);
    return links == nullptr ? kNoEntry : links->first_child;
  }
  [[nodiscard]] bool HasChildren(EntryIndex block) const { return FirstChildOf(block) != kNoEntry; }
  // The child of the same parent that was linked before this one; kNoEntry if there is none.
  // REQUIRES: the block has a parent.
  [[nodiscard]] EntryIndex NextSiblingOf(EntryIndex block) const {
    return links_[block.value].next;
  }

  // REQUIRES: the child has no parent, and is no ancestor of `parent`.
  void Link(EntryIndex child, EntryIndex parent);
  // Does nothing if the block has no parent. Its children stay.
  void Unlink(EntryIndex child);

  [[nodiscard]] size_t memory_bytes() const { return links_.memory_bytes(); }

 private:
  struct Links {
    EntryIndex parent = kNoEntry;
    EntryIndex first_child = kNoEntry;
    EntryIndex next = kNoEntry;  // siblings
    EntryIndex previous = kNoEntry;
  };

  PagedArray<Links> links_;
};

}  // namespace kvtier
