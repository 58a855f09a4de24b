// SPDX-License-Identifier: Apache-2.0
#include "daemon/runtime/loop_pulse.h"

#include <gtest/gtest.h>

#include <numeric>

namespace kvtier {
namespace {

constexpr int64_t kHourMs = 3600 * 1000;

uint64_t BeatsOf(const LoopPulse& pulse) {
  const auto counts = pulse.delays().counts();
  return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
}

TEST(LoopPulse, CountsEachBeatOnce) {
  LoopPulse pulse;
  pulse.Beat(100);
  pulse.Beat(100);
  EXPECT_EQ(BeatsOf(pulse), 2u);
}

TEST(LoopPulse, BeatBeforeItsTimeIsPunctual) {
  LoopPulse pulse;
  pulse.Beat(kHourMs);
  EXPECT_EQ(pulse.delays().counts().front(), 1u);
  EXPECT_EQ(pulse.delays().sum_us(), 0u);
}

// As if the timer had been due an hour before it was started.
TEST(LoopPulse, WhatIsMissingToPunctualityIsTheDelay) {
  LoopPulse pulse;
  pulse.Beat(-kHourMs);
  EXPECT_EQ(pulse.delays().counts().back(), 1u);
  EXPECT_GE(pulse.delays().sum_us(), uint64_t{kHourMs} * 1000);
}

TEST(LoopPulse, SilenceLastsUntilTheNextBeat) {
  LoopPulse pulse;
  while (pulse.SilentSeconds() < 0.002) {
  }
  pulse.Beat(100);
  EXPECT_LT(pulse.SilentSeconds(), 60.0);
  EXPECT_GE(pulse.SilentSeconds(), 0.0);
}

}  // namespace
}  // namespace kvtier
