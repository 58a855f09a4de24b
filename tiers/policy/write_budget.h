// SPDX-License-Identifier: Apache-2.0
// How many bytes may still be written to disk today, and what that asks of a block.
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
//
// The budget is paced: while more has been spent than the day's share by now, a block must be more
// and more likely to be used again before it is worth writing. So the blocks most likely to be used
// are written, and not those that came first after midnight. The budget itself stays a cap.
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
  // To be called for each block of which is decided whether it is written. `admission`: how likely
  // it would have to be used again if there were no budget.
  void NoteDecision(double admission) {
    if (++decisions_ % kDecisionsPerStep != 0) return;
    if (IsAhead()) {
      least_chance_ = std::min(std::max(least_chance_, admission) * kRise, 1.0);
    } else {
      least_chance_ *= kFall;
      if (least_chance_ <= admission) least_chance_ = 0;
    }
  }
  // How likely a block has to be used again to be worth writing; 0: that is not the budget's to
  // say.
  [[nodiscard]] double least_chance() const { return bytes_per_day_ == 0 ? 0 : least_chance_; }
  // Whether more has been spent than the day's share by now, and an hour's besides.
  [[nodiscard]] bool IsAhead() const {
    if (bytes_per_day_ == 0) return false;
    const int64_t since_midnight_ms = std::max<int64_t>(clock_->WallMs(), 0) % kDayMs;
    const double share = static_cast<double>(std::min(since_midnight_ms + kHourMs, kDayMs)) /
                         static_cast<double>(kDayMs);
    return static_cast<double>(state().spent_bytes) > share * static_cast<double>(bytes_per_day_);
  }
  [[nodiscard]] WriteBudgetState state() const {
    const uint32_t today = Today();
    // A correction of the clock around midnight must not give a second budget; one by more than a
    // day means that the remembered day was wrong.
    const bool same_day = today == state_.day || uint64_t{today} + 1 == state_.day;
    return same_day ? state_ : WriteBudgetState{.day = today};
  }

 private:
  static constexpr uint32_t kDecisionsPerStep = 256;
  // It falls more slowly than it rises: a write that is missed costs the use of one block, a budget
  // that is spent too early costs the busy hours of the day.
  static constexpr double kRise = 1.15;
  static constexpr double kFall = 0.9;
  // A clock before 1970 counts as 1970.
  [[nodiscard]] uint32_t Today() const {
    return static_cast<uint32_t>(std::max<int64_t>(clock_->WallMs(), 0) / kDayMs);
  }

  const Clock* const clock_;
  uint64_t bytes_per_day_;
  WriteBudgetState state_;
  uint32_t decisions_ = 0;
  double least_chance_ = 0;
};

}  // namespace kvtier
