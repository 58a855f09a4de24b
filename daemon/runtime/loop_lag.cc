// SPDX-License-Identifier: Apache-2.0
#include "daemon/runtime/loop_lag.h"

#include <chrono>

namespace kvtier {
namespace {

int64_t NowUs() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

}  // namespace

LoopLag::LoopLag() : last_us_(NowUs()) {}

void LoopLag::ObserveTick(int64_t interval_ms) {
  const int64_t now_us = NowUs();
  const int64_t last_us = last_us_.exchange(now_us, std::memory_order_relaxed);
  delays_.ObserveUs(now_us - last_us - interval_ms * 1000);
}

double LoopLag::SilentSeconds() const {
  return static_cast<double>(NowUs() - last_us_.load(std::memory_order_relaxed)) / 1e6;
}

}  // namespace kvtier
