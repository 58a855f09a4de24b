// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/prefix_touches.h"

#include <algorithm>

namespace kvtier {
namespace {

// A tenant that names more prefixes than can be walked loses some of their uses, and nothing else.
constexpr size_t kMostWalks = 1024;
constexpr uint32_t kPartsPerTick = 8;
constexpr uint32_t kBlocksPerTurn = 256;

}  // namespace

PrefixTouches::PrefixTouches(CacheState* state, HostSlots* host)
    : state_(*state),
      host_(*host),
      left_until_tick_(kPartsPerTick * state->options.search_part_blocks) {}

void PrefixTouches::TouchPrefix(EntryIndex last) {
  if (last == kNoEntry) return;
  const TenantLine line = state_.blocks.LineOf(state_[last]);
  const EntryRef block = state_.blocks.directory.RefOf(last);
  if (walks_.size(line) == kMostWalks || !next_.insert(block).second) return;
  walks_.Push(line, block);
  state_.SchedulePart();
}

// One after the other of each tenant.
void PrefixTouches::GoOn() {
  const uint32_t most = std::min(state_.options.search_part_blocks, left_until_tick_);
  uint32_t left = most;
  walks_.TakeTurns([&](TenantLine, PriorityQueue<EntryRef>* line) {
    if (left == 0) return false;
    const uint32_t after = left - std::min(left, kBlocksPerTurn);
    while (left > after && !line->empty()) left -= WalkSome(line->now(), left - after);
    return true;
  });
  left_until_tick_ -= most - left;
  if (!next_.empty() && left_until_tick_ > 0) state_.SchedulePart();
}

// A walk ends early if its next block has been forgotten between two parts, or if another goes on
// from there.
uint32_t PrefixTouches::WalkSome(std::deque<EntryRef>* line, uint32_t most) {
  EntryIndex next = state_.blocks.directory.Resolve(line->front());
  next_.erase(line->front());
  uint32_t walked = 0;
  for (; next != kNoEntry && walked < most; ++walked) {
    Touch(next);
    next = state_.blocks.lineage.ParentOf(next);
  }
  if (next == kNoEntry || !next_.insert(state_.blocks.directory.RefOf(next)).second) {
    line->pop_front();
  } else {
    line->front() = state_.blocks.directory.RefOf(next);
  }
  return std::max(walked, 1u);
}

void PrefixTouches::Tick() {
  left_until_tick_ = kPartsPerTick * state_.options.search_part_blocks;
  if (!next_.empty()) state_.SchedulePart();
}

// A walk may come long after the use that it tells of. A block whose time has passed by then is as
// good as gone: it is not given another life.
void PrefixTouches::Touch(EntryIndex index) {
  if (state_.blocks.lost.Contains(index) || state_.Expired(state_[index])) return;
  state_.Touch(index);
  if (host_.InOrder(index)) host_.Reorder(index);
}

}  // namespace kvtier
