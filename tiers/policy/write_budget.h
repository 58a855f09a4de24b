// SPDX-License-Identifier: Apache-2.0
// How many bytes may still be written to disk today.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"
#include "base/units.h"

namespace kvtier {

// The bytes spent on one UTC day; the index carries them across restarts, so that a daemon that is
// restarted over and over cannot wear out the disk.
struct WriteBudgetState {
  uint32_t day = 0;  // days since the Unix epoch
  uint64_t spent_bytes = 0;
  friend bool operator==(const WriteBudgetState&, const WriteBudgetState&) = default;
};

// Starts anew at 00:00 UTC. A clock that steps back over midnight (by less than a day) does not
// refill the budget. Single-threaded; `clock` is borrowed.
class WriteBudget {
 public:
  // `bytes_per_day` 0 means no limit; spending is counted all the same. `state` is what an earlier
  // process had spent, from state().
  WriteBudget(const Clock* clock, uint64_t bytes_per_day, const WriteBudgetState& state = {})
      : clock_(clock), bytes_per_day_(bytes_per_day), state_(state) {}

  // Keeps today's spending.
  void SetBytesPerDay(uint64_t bytes_per_day) { bytes_per_day_ = bytes_per_day; }
  // Spends all of `bytes` or, when fewer are left, nothing.
  [[nodiscard]] bool TrySpend(uint64_t bytes) {
    state_ = state();
    if (bytes > left_bytes()) return false;
    // Without a limit the count could run over.
    state_.spent_bytes += std::min(bytes, UINT64_MAX - state_.spent_bytes);
    return true;
  }
  // UINT64_MAX when there is no limit.
  [[nodiscard]] uint64_t left_bytes() const {
    if (bytes_per_day_ == 0) return UINT64_MAX;
    return bytes_per_day_ - std::min(bytes_per_day_, state().spent_bytes);
  }
  [[nodiscard]] WriteBudgetState state() const {
    const uint32_t today = Today();
    // A correction of the clock around midnight must not give a second budget; one by more than a
    // day means that the remembered day was wrong.
    const bool same_day = today == state_.day || uint64_t{today} + 1 == state_.day;
    return same_day ? state_ : WriteBudgetState{.day = today};
  }

 private:
  // A clock before 1970 counts as 1970.
  [[nodiscard]] uint32_t Today() const {
    return static_cast<uint32_t>(std::max<int64_t>(clock_->WallMs(), 0) / kDayMs);
  }

  const Clock* const clock_;
  uint64_t bytes_per_day_;
  WriteBudgetState state_;
};

}  // namespace kvtier
