// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/prefix_touches.h"

namespace kvtier {
namespace {

// A client that names more prefixes than can be walked loses some of their uses, and nothing else.
constexpr size_t kMostWalks = 1024;

}  // namespace

void PrefixTouches::TouchPrefix(EntryIndex last) {
  if (last == kNoEntry || walks_.size() == kMostWalks) return;
  walks_.push_back(last);
  state_.SchedulePart();
}

// One after the other. A row may have been forgotten between two parts, and given to another block:
// then that one is touched, which serves as well as any.
void PrefixTouches::GoOn() {
  uint32_t left = state_.options.search_part_blocks;
  while (!walks_.empty() && left > 0) {
    EntryIndex next = walks_.front();
    for (; next != kNoEntry && state_.directory.Live(next) && left > 0; --left) {
      Touch(next);
      next = state_.lineage.ParentOf(next);
    }
    if (left == 0 && next != kNoEntry) {
      walks_.front() = next;
    } else {
      walks_.pop_front();
    }
  }
  if (!walks_.empty()) state_.SchedulePart();
}

void PrefixTouches::Touch(EntryIndex index) {
  if (state_.lost.Contains(index)) return;
  state_.Touch(index);
  if (host_.InOrder(index)) host_.Reorder(index);
}

}  // namespace kvtier
