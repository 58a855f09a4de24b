// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"

#include <chrono>

namespace kvtier {
namespace {

template <typename ChronoClock>
int64_t NowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             ChronoClock::now().time_since_epoch())
      .count();
}

}  // namespace

int64_t SystemClock::MonotonicMs() const { return NowMs<std::chrono::steady_clock>(); }
int64_t SystemClock::WallMs() const { return NowMs<std::chrono::system_clock>(); }

}  // namespace kvtier
