// SPDX-License-Identifier: Apache-2.0
#include "daemon/runtime/coarse_clock.h"

#include <ctime>

namespace kvtier {
namespace {

int64_t ReadMs(clockid_t clock) {
  timespec now;
  ::clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

}  // namespace

int64_t CoarseClock::MonotonicMs() const { return ReadMs(CLOCK_MONOTONIC_COARSE); }
int64_t CoarseClock::WallMs() const { return ReadMs(CLOCK_REALTIME_COARSE); }

}  // namespace kvtier
