// SPDX-License-Identifier: Apache-2.0
// How many bytes may still be written to disk today.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace kvtier {

// What was spent on one UTC day; the index carries it across restarts, so that a daemon that is
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
  WriteBudget(const Clock* clock, uint64_t bytes_per_day, const WriteBudgetState& state = {});

  // What was spent today stays spent.
  void SetBytesPerDay(uint64_t bytes_per_day) { bytes_per_day_ = bytes_per_day; }
  // Spends all of `bytes` or, when fewer are left, nothing.
  [[nodiscard]] bool TrySpend(uint64_t bytes);
  // UINT64_MAX when there is no limit.
  [[nodiscard]] uint64_t left_bytes() const;
  [[nodiscard]] WriteBudgetState state() const;

 private:
  const Clock* const clock_;
  uint64_t bytes_per_day_;
  WriteBudgetState state_;
};

}  // namespace kvtier
