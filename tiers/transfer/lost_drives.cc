// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/lost_drives.h"

#include <algorithm>
#include <utility>

namespace kvtier {

void LostDrives::GoOn() {
  if (disk_.health().failed() != seen_) {
    seen_ = disk_.health().failed();
    going_ = true;
    next_row_ = 0;
    moving_ = 0;
  }
  if (!going_) return;
  const uint64_t end =
      std::min<uint64_t>(state_.blocks.directory.end(), next_row_ + state_.options.drain_part_rows);
  uint32_t dropped = 0;
  for (; next_row_ < end && dropped < state_.options.close_part_blocks; ++next_row_) {
    const EntryIndex index(static_cast<uint32_t>(next_row_));
    if (!state_.blocks.directory.Live(index) || state_.blocks.lost.Contains(index)) continue;
    const BlockEntry& entry = state_[index];
    if (!entry.has_disk_slot() || !disk_.health().Failed(entry.disk)) continue;
    if (!entry.AtRestOnDisk()) {
      ++moving_;
      continue;
    }
    Drop(index);
    ++dropped;
  }
  if (next_row_ < state_.blocks.directory.end()) return state_.SchedulePart();
  going_ = false;
  waiting_ = moving_ > 0;
}

void LostDrives::Tick() {
  if (!std::exchange(waiting_, false)) return;
  going_ = true;
  next_row_ = 0;
  moving_ = 0;
  state_.SchedulePart();
}

void LostDrives::Drop(EntryIndex index) {
  const BlockEntry& entry = state_[index];
  if (entry.pinned() && !entry.in_host() && !entry.in_pool()) state_.Unpin(index);
  while (!entry.in_host() && !entry.in_pool() && state_.blocks.lineage.HasChildren(index)) {
    state_.blocks.lineage.Unlink(state_.blocks.lineage.FirstChildOf(index));
  }
  disk_.Drop(index, DropReason::kDriveLost);
}

}  // namespace kvtier
