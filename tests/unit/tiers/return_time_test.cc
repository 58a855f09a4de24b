// SPDX-License-Identifier: Apache-2.0
// The time after which most of what engines store is used again.

#include <gtest/gtest.h>

#include "tests/fakes/seeded_random.h"
#include "tiers/state/host_pressure.h"

namespace kvtier {
namespace {

TEST(ReturnTimeTest, OneTimeInFourIsLonger) {
  SeededRandom random(1);
  ReturnTime time;
  double sum_ds = 0;
  constexpr int kTimes = 10'000;
  for (int i = 0; i < kTimes; ++i) {
    time.Note(static_cast<uint32_t>(random.Below(40)));
    sum_ds += time.ds();
  }
  EXPECT_NEAR(sum_ds / kTimes, 300, 30);
}

TEST(ReturnTimeTest, SessionsThatTakeLongerThanBeforeAreFollowed) {
  ReturnTime time;
  for (int i = 0; i < 60; ++i) time.Note(2);
  EXPECT_LT(time.ds(), 40u);
  for (int i = 0; i < 20; ++i) time.Note(30);
  EXPECT_GT(time.ds(), 250u);
}

TEST(ReturnTimeTest, SessionsThatComeBackMuchLaterCountForNothing) {
  ReturnTime time;
  for (int i = 0; i < 100; ++i) time.Note(ReturnTime::kMostS + 1);
  EXPECT_EQ(time.ds(), 10 * ReturnTime::kAssumedS);
}

}  // namespace
}  // namespace kvtier
