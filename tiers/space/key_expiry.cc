// SPDX-License-Identifier: Apache-2.0
#include "tiers/space/key_expiry.h"

#include <algorithm>

#include "tiers/storage/key_ring.h"

namespace kvtier {
namespace {

constexpr int64_t kBetweenPassesMs = 60 * 1000;
constexpr uint32_t kSecondsPerHour = 3600;
// The wall clock may have been corrected since a block's header was written, and the hour that it
// was written under is no longer the one that its age gives.
constexpr uint32_t kClockMarginSeconds = 600;

}  // namespace

void KeyExpiry::Tick() {
  if (state_.env.keys == nullptr) return;
  if (!under_way_) {
    if (state_.clock.NowMs() < next_pass_ms_) return;
    Begin();
  }
  const uint64_t end =
      std::min<uint64_t>(state_.blocks.directory.end(), next_row_ + state_.options.drain_part_rows);
  for (; next_row_ < end; ++next_row_) {
    const EntryIndex index(static_cast<uint32_t>(next_row_));
    if (!state_.blocks.directory.Live(index) || !state_[index].has_disk_slot()) continue;
    const BlockEntry& entry = state_[index];
    const uint32_t created_s = state_.clock.ToWallS(entry.created_s);
    const uint32_t hour = (created_s - std::min(created_s, kClockMarginSeconds)) / kSecondsPerHour;
    const auto [oldest, is_new] =
        oldest_hours_.try_emplace(state_.blocks.NamespaceOf(entry).identity.tenant, hour);
    if (!is_new) oldest->second = std::min(oldest->second, hour);
  }
  if (next_row_ >= state_.blocks.directory.end()) End();
}

// A block that gets its slot from now on may lie in a row that has been looked at; its key is
// written with after this call, and so is kept.
void KeyExpiry::Begin() {
  under_way_ = true;
  next_row_ = 0;
  oldest_hours_.clear();
  state_.env.keys->BeginPass();
}

void KeyExpiry::End() {
  under_way_ = false;
  next_pass_ms_ = state_.clock.NowMs() + kBetweenPassesMs;
  const uint64_t wiped = state_.env.keys->DestroyUnused(oldest_hours_);
  if (wiped > 0 && state_.env.owner != nullptr) state_.env.owner->OnKeysExpired(wiped);
  // The disk tier logs an error, and the next pass tries again.
  state_.env.keys->WhenStored([](const Status&) {});
}

}  // namespace kvtier
