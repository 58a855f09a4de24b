// SPDX-License-Identifier: Apache-2.0
// A clock that stands still until it is moved.
#pragma once

#include "base/clock.h"

namespace kvtier {

class FakeClock final : public Clock {
 public:
  // 2025-06-01 00:00:00 UTC: the start of a day, so that tests of daily budgets know where they
  // are.
  static constexpr int64_t kStartWallMs = 1'748'736'000'000;

  [[nodiscard]] int64_t MonotonicMs() const override { return elapsed_ms_ + 1'000'000; }
  [[nodiscard]] int64_t WallMs() const override {
    return elapsed_ms_ + kStartWallMs + wall_step_ms_;
  }

  // REQUIRES: ms >= 0.
  void Advance(int64_t ms) { elapsed_ms_ += ms; }
  // Someone sets the wall clock, forward or back; monotonic time does not notice.
  void StepWall(int64_t ms) { wall_step_ms_ += ms; }
  [[nodiscard]] int64_t elapsed_ms() const { return elapsed_ms_; }

 private:
  int64_t elapsed_ms_ = 0;
  int64_t wall_step_ms_ = 0;
};

}  // namespace kvtier
