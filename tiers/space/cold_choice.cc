// SPDX-License-Identifier: Apache-2.0
#include "tiers/space/cold_choice.h"

#include <algorithm>

#include "base/units.h"
#include "tiers/state/cache_state.h"
#include "tiers/state/cold_copies.h"

namespace kvtier {
namespace {

constexpr uint64_t kMostInFlightBytes = 16 * kMiB;
constexpr int64_t kFirstPauseMs = 1'000;
constexpr int64_t kLongestPauseMs = 64'000;

}  // namespace

// A second's worth can be saved up, so that ticks that come late cost nothing.
void ColdChoice::Tick(bool away) {
  away_ = away;
  const auto per_s = static_cast<int64_t>(state_.options.cold_write_bytes_per_s);
  const int64_t elapsed_ms = std::min<int64_t>(state_.clock.NowMs() - refilled_ms_, 1000);
  refilled_ms_ = state_.clock.NowMs();
  allowance_bytes_ = std::min(allowance_bytes_ + per_s / 1000 * elapsed_ms, per_s);
}

bool ColdChoice::MayStart() const {
  if (pause_ms_ > 0 && (in_flight_bytes_ > 0 || state_.clock.NowMs() < paused_until_ms_)) {
    return false;
  }
  return allowance_bytes_ > 0 && in_flight_bytes_ < kMostInFlightBytes;
}

// Writes that began together fail together.
void ColdChoice::NoteTaken(bool taken) {
  if (taken) {
    pause_ms_ = 0;
  } else if (state_.clock.NowMs() >= paused_until_ms_) {
    pause_ms_ = std::clamp(2 * pause_ms_, kFirstPauseMs, kLongestPauseMs);
    paused_until_ms_ = state_.clock.NowMs() + pause_ms_;
  }
}

void ColdChoice::Begin(const BlockKey& block, uint64_t bytes) {
  allowance_bytes_ -= static_cast<int64_t>(bytes);
  in_flight_bytes_ += bytes;
  under_way_.insert(block);
}

void ColdChoice::End(const BlockKey& block, uint64_t bytes) {
  in_flight_bytes_ -= bytes;
  under_way_.erase(block);
}

ColdChoice::Choice ColdChoice::ChoiceFor(EntryIndex index, bool leaving) const {
  const BlockEntry& entry = state_.blocks.directory[index];
  const bool is_below = entry.in_host() || entry.on_disk();
  const bool may_come =
      !state_.has_disk() && !entry.offload_failed() && state_.blocks.ReadyPool(entry) != nullptr;
  if (ColdCopyLasts(state_, index) || entry.retention != RetentionClass::kExtended ||
      entry.LeavesFirst() || state_.BeingErased(entry) || !(is_below || may_come)) {
    return Choice::kNever;
  }
  const int64_t now_ms = state_.clock.AgeMs();
  if (now_ms + 1000 > state_.ExpiryMs(entry)) return Choice::kNever;
  // A block whose object ends too soon is in use, and may never be idle.
  const bool due = leaving || entry.cold_copy() ||
                   now_ms - int64_t{entry.last_use_s} * 1000 >= state_.options.cold_after_ms;
  // An erasure deletes from the store at last; none of the tenant's blocks comes there meanwhile.
  const BlockKey key{entry.namespace_id, entry.hash};
  const bool erased =
      state_.erasing.objects.contains(key) ||
      std::ranges::any_of(state_.erasing.scopes, [&](const Erasures::Scope& scope) {
        return scope.request.tenant == state_.blocks.NamespaceOf(entry).identity.tenant;
      });
  const bool readable = (entry.in_host() || !entry.busy()) && !IsUnderWay(key) && !erased;
  if (!due || !readable || entry.uses < state_.options.cold_min_uses) return Choice::kNotYet;
  if (is_below) return Choice::kWrite;
  return entry.expected_in_host() ? Choice::kNotYet : Choice::kComeDown;
}

// A block that a pool has will come to host once more.
void ColdChoice::CountLoss(EntryIndex index) {
  const BlockEntry& entry = state_[index];
  if (state_.options.cold_write_bytes_per_s == 0 || entry.in_host() || entry.in_pool()) return;
  if (ChoiceFor(index, true) != Choice::kWrite) return;
  ColdLoss loss = MayStart() ? ColdLoss::kEarly : ColdLoss::kBudget;
  if (pause_ms_ > 0) loss = ColdLoss::kFailed;
  state_.stats.cold.CountLoss(away_ ? ColdLoss::kAway : loss);
}

}  // namespace kvtier
