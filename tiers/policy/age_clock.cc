// SPDX-License-Identifier: Apache-2.0
#include "tiers/policy/age_clock.h"

#include <algorithm>

namespace kvtier {

uint32_t AgeClock::ToWallS(uint32_t age_clock_s) const {
  // Rounded, because the two clocks are read one after the other.
  const int64_t step_s = (WallStepMs() + (WallStepMs() < 0 ? -500 : 500)) / 1000;
  return static_cast<uint32_t>(std::max<int64_t>(int64_t{age_clock_s} + step_s, 0));
}

uint32_t AgeClock::FromWallS(uint32_t wall_s) const { return std::min(wall_s, NowS()); }

}  // namespace kvtier
