// SPDX-License-Identifier: Apache-2.0
#include "tiers/policy/write_budget.h"

#include <algorithm>

namespace kvtier {
namespace {

constexpr int64_t kDayMs = int64_t{24} * 60 * 60 * 1000;

uint32_t Day(const Clock& clock) {
  return static_cast<uint32_t>(std::max<int64_t>(clock.WallMs(), 0) / kDayMs);
}

}  // namespace

WriteBudget::WriteBudget(const Clock* clock, uint64_t bytes_per_day, const WriteBudgetState& state)
    : clock_(clock), bytes_per_day_(bytes_per_day), state_(state) {}

bool WriteBudget::TrySpend(uint64_t bytes) {
  state_ = state();
  if (bytes > left_bytes()) return false;
  state_.spent_bytes =
      bytes > UINT64_MAX - state_.spent_bytes ? UINT64_MAX : state_.spent_bytes + bytes;
  return true;
}

uint64_t WriteBudget::left_bytes() const {
  if (bytes_per_day_ == 0) return UINT64_MAX;
  return bytes_per_day_ - std::min(bytes_per_day_, state().spent_bytes);
}

WriteBudgetState WriteBudget::state() const {
  const uint32_t today = Day(*clock_);
  // A correction of the clock around midnight must not give a second budget; one by more than a
  // day means that the remembered day was wrong.
  const bool same_day = today == state_.day || uint64_t{today} + 1 == state_.day;
  return same_day ? state_ : WriteBudgetState{.day = today};
}

}  // namespace kvtier
