// SPDX-License-Identifier: Apache-2.0
#include "tiers/space/key_expiry.h"

#include <algorithm>

#include "tiers/storage/key_ring.h"

namespace kvtier {
namespace {

constexpr int64_t kBetweenPassesMs = 60 * 1000;
// Wall clocks are corrected by little all the time.
constexpr int64_t kClockMarginS = 600;

}  // namespace

void KeyExpiry::Keep(const std::string& tenant, uint32_t written_s) {
  kept_[tenant].Add(written_s - kClockMarginS, written_s + kClockMarginS);
}

void KeyExpiry::Tick() {
  if (state_.env.keys == nullptr) return;
  NoteClock();
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
    const int64_t created_s = entry.created_s;
    in_use_[state_.blocks.NamespaceOf(entry).identity.tenant].Add(
        created_s + least_step_s_ - kClockMarginS, created_s + most_step_s_ + kClockMarginS);
  }
  if (next_row_ >= state_.blocks.directory.end()) End();
}

void KeyExpiry::NoteClock() {
  const int64_t step_s = state_.clock.WallStepMs() / 1000;
  least_step_s_ = std::min(least_step_s_, step_s);
  most_step_s_ = std::max(most_step_s_, step_s);
}

// A block that gets its slot from now on may lie in a row that has been looked at; its key is
// written with after this call, and so is kept.
void KeyExpiry::Begin() {
  under_way_ = true;
  next_row_ = 0;
  in_use_ = kept_;
  state_.env.keys->BeginPass();
}

void KeyExpiry::End() {
  under_way_ = false;
  next_pass_ms_ = state_.clock.NowMs() + kBetweenPassesMs;
  const uint64_t wiped = state_.env.keys->DestroyUnused(in_use_);
  if (wiped > 0 && state_.env.owner != nullptr) state_.env.owner->OnKeysExpired(wiped);
  // The disk tier logs an error, and the next pass tries again.
  state_.env.keys->WhenStored([](const Status&) {}, KeyRing::Older::kGone);
}

}  // namespace kvtier
