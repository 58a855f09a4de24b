// SPDX-License-Identifier: Apache-2.0
// Time as an interface, so that tests and the simulator can own it, and the machine's clocks behind
// it.
#pragma once

#include <cstdint>
#include <ctime>

namespace kvtier {

class Clock {
 public:
  virtual ~Clock() = default;
  // Milliseconds on a clock that never steps back; for time-outs and idle times.
  [[nodiscard]] virtual int64_t MonotonicMs() const = 0;
  // Microseconds on such a clock, to measure how long something took. Its zero may be another than
  // MonotonicMs'.
  [[nodiscard]] virtual int64_t PreciseUs() const { return MonotonicMs() * 1000; }
  // Milliseconds since the Unix epoch; for what outlives the process. It steps, also backwards,
  // when an operator or NTP sets the machine's time.
  [[nodiscard]] virtual int64_t WallMs() const = 0;
};

// One of the kernel's clocks, by its number. Any thread.
inline int64_t ReadClockUs(clockid_t clock) {
  timespec now;
  ::clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1000;
}
inline int64_t ReadClockMs(clockid_t clock) { return ReadClockUs(clock) / 1000; }

// A monotonic clock for measurements: the coarse clock is too coarse for them, and a fake one would
// lie.
inline int64_t MonotonicUs() { return ReadClockUs(CLOCK_MONOTONIC); }

// The machine's clocks. Any thread.
class SystemClock final : public Clock {
 public:
  [[nodiscard]] int64_t MonotonicMs() const override { return ReadClockMs(CLOCK_MONOTONIC); }
  [[nodiscard]] int64_t PreciseUs() const override { return MonotonicUs(); }
  [[nodiscard]] int64_t WallMs() const override { return ReadClockMs(CLOCK_REALTIME); }
};

// The machine's clocks as of the kernel's last tick: a few milliseconds old, and several times
// cheaper to read. The cache looks at the time once or twice per block of an acquire. Any thread.
class CoarseClock final : public Clock {
 public:
  [[nodiscard]] int64_t MonotonicMs() const override { return ReadClockMs(CLOCK_MONOTONIC_COARSE); }
  [[nodiscard]] int64_t PreciseUs() const override { return MonotonicUs(); }
  [[nodiscard]] int64_t WallMs() const override { return ReadClockMs(CLOCK_REALTIME_COARSE); }
};

}  // namespace kvtier
