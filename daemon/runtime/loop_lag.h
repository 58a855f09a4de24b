// SPDX-License-Identifier: Apache-2.0
// Whether the event loop is alive, and how punctual.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "tiers/types/meters.h"

namespace kvtier {

// From a millisecond, which nobody feels, to the length of a watchdog's patience.
inline constexpr std::array<int64_t, 11> kLoopDelayBoundsUs = {
    1'000, 2'500, 5'000, 10'000, 25'000, 50'000, 100'000, 250'000, 1'000'000, 5'000'000, 15'000'000,
};
using LoopDelayHistogram = SecondsHistogram<kLoopDelayBoundsUs.size()>;

// Reads the monotonic clock itself: the daemon's coarse clock is too coarse for this.
class LoopLag {
 public:
  LoopLag();

  // A timer of `interval_ms` that was started at the last beat has expired: what is missing to
  // punctuality is how long the loop was busy with something else. Event loop only.
  void ObserveTick(int64_t interval_ms);
  // Since the last beat. Any thread.
  [[nodiscard]] double SilentSeconds() const;
  // Event loop only.
  [[nodiscard]] const LoopDelayHistogram& delays() const { return delays_; }

 private:
  std::atomic<int64_t> last_us_;
  LoopDelayHistogram delays_{&kLoopDelayBoundsUs};
};

}  // namespace kvtier
