// SPDX-License-Identifier: Apache-2.0
#include "daemon/runtime/loop_lag.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/units.h"

namespace kvtier {
namespace {

uint64_t BeatsOf(const LoopLag& pulse) {
  const auto counts = pulse.delays().counts();
  return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
}

TEST(LoopLag, CountsEachBeatOnce) {
  LoopLag pulse;
  pulse.ObserveTick(100);
  pulse.ObserveTick(100);
  EXPECT_EQ(BeatsOf(pulse), 2u);
}

TEST(LoopLag, BeatBeforeItsTimeIsPunctual) {
  LoopLag pulse;
  pulse.ObserveTick(kHourMs);
  EXPECT_EQ(pulse.delays().counts().front(), 1u);
  EXPECT_EQ(pulse.delays().sum_us(), 0u);
}

// As if the timer had been due an hour before it was started.
TEST(LoopLag, WhatIsMissingToPunctualityIsTheDelay) {
  LoopLag pulse;
  pulse.ObserveTick(-kHourMs);
  EXPECT_EQ(pulse.delays().counts().back(), 1u);
  EXPECT_GE(pulse.delays().sum_us(), uint64_t{kHourMs} * 1000);
}

TEST(LoopLag, SilenceLastsUntilTheNextBeat) {
  LoopLag pulse;
  while (pulse.SilentSeconds() < 0.002) {
  }
  pulse.ObserveTick(100);
  EXPECT_LT(pulse.SilentSeconds(), 60.0);
  EXPECT_GE(pulse.SilentSeconds(), 0.0);
}

}  // namespace
}  // namespace kvtier
