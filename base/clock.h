// SPDX-License-Identifier: Apache-2.0
// Time as an interface, so that tests and the simulator can own it.
#pragma once

#include <cstdint>

namespace kvtier {

class Clock {
 public:
  virtual ~Clock() = default;
  // Milliseconds on a clock that never steps back; for time-outs and idle times.
  [[nodiscard]] virtual int64_t MonotonicMs() const = 0;
  // Milliseconds since the Unix epoch; for what outlives the process.
  [[nodiscard]] virtual int64_t WallMs() const = 0;
};

// The machine's clocks. Any thread.
class SystemClock final : public Clock {
 public:
  [[nodiscard]] int64_t MonotonicMs() const override;
  [[nodiscard]] int64_t WallMs() const override;
};

}  // namespace kvtier
