// SPDX-License-Identifier: Apache-2.0
// The time by which blocks age.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace kvtier {

// Unix time as it was when this was made, and from then on the monotonic clock's. A step of the
// wall clock makes no block older or younger, so that it neither expires blocks in use nor keeps
// idle ones from being written to disk. Event loop only.
class AgeClock {
 public:
  // `clock` is borrowed and outlives this.
  explicit AgeClock(const Clock* clock)
      : clock_(*clock), offset_ms_(clock->WallMs() - clock->MonotonicMs()) {}

  [[nodiscard]] int64_t AgeMs() const { return NowMs() + offset_ms_; }
  [[nodiscard]] uint32_t NowS() const { return static_cast<uint32_t>(AgeMs() / 1000); }
  // The monotonic clock, and tenths of seconds of it: differences of two are right for 13 years.
  [[nodiscard]] int64_t NowMs() const { return clock_.MonotonicMs(); }
  [[nodiscard]] uint32_t NowDs() const { return static_cast<uint32_t>(NowMs() / 100); }
  // To measure how long something takes.
  [[nodiscard]] int64_t PreciseUs() const { return clock_.PreciseUs(); }
  // By how much the wall clock has been stepped: it is added to a time of the age clock for
  // administrators, and for the disk, whose times a later process compares with its own wall clock.
  [[nodiscard]] int64_t WallStepMs() const { return clock_.WallMs() - AgeMs(); }
  [[nodiscard]] uint32_t ToWallS(uint32_t age_clock_s) const {
    // Rounded, because the two clocks are read one after the other.
    const int64_t step_s = (WallStepMs() + (WallStepMs() < 0 ? -500 : 500)) / 1000;
    return static_cast<uint32_t>(std::max<int64_t>(int64_t{age_clock_s} + step_s, 0));
  }
  // The reverse, for a time found on disk. One that lies in the future, because the clock was ahead
  // when it was written, counts as now: the block must not outlive its time to live.
  [[nodiscard]] uint32_t FromWallS(uint32_t wall_s) const { return std::min(wall_s, NowS()); }

 private:
  const Clock& clock_;
  const int64_t offset_ms_;
};

}  // namespace kvtier
