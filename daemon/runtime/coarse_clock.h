// SPDX-License-Identifier: Apache-2.0
// The machine's clocks as of the kernel's last tick: a few milliseconds old, and several times
// cheaper to read. The cache looks at the time once or twice per block of an acquire.
#pragma once

#include "base/clock.h"

namespace kvtier {

// Any thread.
class CoarseClock final : public Clock {
 public:
  [[nodiscard]] int64_t MonotonicMs() const override;
  [[nodiscard]] int64_t WallMs() const override;
};

}  // namespace kvtier
