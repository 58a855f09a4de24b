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
// With more, the pause that ends first is forgotten.
constexpr size_t kMostPauses = 1024;

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
  return allowance_bytes_ > 0 && in_flight_bytes_ < kMostInFlightBytes;
}

bool ColdChoice::Pauses(NamespaceId whose) const {
  const auto pause = pauses_.find(whose);
  if (pause == pauses_.end()) return false;
  const auto write = under_way_.lower_bound({.namespace_id = whose, .hash = {}});
  return state_.clock.NowMs() < pause->second.until_ms ||
         (write != under_way_.end() && write->namespace_id == whose);
}

// Writes that began together fail together.
void ColdChoice::NoteTaken(const BlockKey& block, bool taken) {
  if (taken) {
    pauses_.erase(block.namespace_id);
    return;
  }
  Pause& pause = pauses_[block.namespace_id];
  const int64_t now_ms = state_.clock.NowMs();
  if (now_ms < pause.until_ms) return;
  pause.length_ms = std::clamp(2 * pause.length_ms, kFirstPauseMs, kLongestPauseMs);
  pause.until_ms = now_ms + pause.length_ms;
  if (pauses_.size() > kMostPauses) {
    pauses_.erase(std::ranges::min_element(
        pauses_, {}, [](const auto& other) { return other.second.until_ms; }));
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
  const Choice choice = WorthOf(index, leaving);
  if (choice != Choice::kWrite && choice != Choice::kComeDown) return choice;
  return Pauses(state_[index].namespace_id) ? Choice::kNotYet : choice;
}

ColdChoice::Choice ColdChoice::WorthOf(EntryIndex index, bool leaving) const {
  const BlockEntry& entry = state_.blocks.directory[index];
  const bool is_below = entry.in_host() || entry.on_disk();
  const bool may_come =
      !state_.has_disk() && !entry.offload_failed() && state_.blocks.ReadyPool(entry) != nullptr;
  if (ColdCopyLasts(state_, index) || entry.retention != RetentionClass::kExtended ||
      entry.LeavesFirst() || state_.BeingErased(entry) || !(is_below || may_come) ||
      state_.blocks.Distrusts(entry.namespace_id, index)) {
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
  if (WorthOf(index, true) != Choice::kWrite) return;
  ColdLoss loss = MayStart() ? ColdLoss::kEarly : ColdLoss::kBudget;
  if (pauses_.contains(entry.namespace_id)) loss = ColdLoss::kFailed;
  state_.stats.cold.CountLoss(away_ ? ColdLoss::kAway : loss);
}

}  // namespace kvtier
