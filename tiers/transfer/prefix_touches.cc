// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/prefix_touches.h"

#include <algorithm>

namespace kvtier {
namespace {

// A client that names more prefixes than can be walked loses some of their uses, and nothing else.
constexpr size_t kMostWalks = 1024;
constexpr uint32_t kPartsPerTick = 8;

}  // namespace

PrefixTouches::PrefixTouches(CacheState* state, HostSlots* host)
    : state_(*state),
      host_(*host),
      left_until_tick_(kPartsPerTick * state->options.search_part_blocks) {}

void PrefixTouches::TouchPrefix(EntryIndex last) {
  if (last == kNoEntry || walks_.size() == kMostWalks) return;
  walks_.push_back(state_.blocks.directory.RefOf(last));
  state_.SchedulePart();
}

// One after the other. A walk ends early if its next block has been forgotten between two parts.
void PrefixTouches::GoOn() {
  const uint32_t most = std::min(state_.options.search_part_blocks, left_until_tick_);
  uint32_t left = most;
  while (!walks_.empty() && left > 0) {
    EntryIndex next = state_.blocks.directory.Resolve(walks_.front());
    for (; next != kNoEntry && left > 0; --left) {
      Touch(next);
      next = state_.blocks.lineage.ParentOf(next);
    }
    if (left == 0 && next != kNoEntry) {
      walks_.front() = state_.blocks.directory.RefOf(next);
    } else {
      walks_.pop_front();
    }
  }
  left_until_tick_ -= most - left;
  if (!walks_.empty() && left_until_tick_ > 0) state_.SchedulePart();
}

void PrefixTouches::Tick() {
  left_until_tick_ = kPartsPerTick * state_.options.search_part_blocks;
  if (!walks_.empty()) state_.SchedulePart();
}

// A walk may come long after the use that it tells of. A block whose time has passed by then is as
// good as gone: it is not given another life.
void PrefixTouches::Touch(EntryIndex index) {
  if (state_.blocks.lost.Contains(index) || state_.Expired(state_[index])) return;
  state_.Touch(index);
  if (host_.InOrder(index)) host_.Reorder(index);
}

}  // namespace kvtier
