// SPDX-License-Identifier: Apache-2.0
// The instruments that the cache counts with.

#include "tiers/types/meters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace kvtier {
namespace {

TEST(SecondsHistogram, CountsEachDurationInTheClassThatHoldsIt) {
  static constexpr std::array<int64_t, 3> kBoundsUs = {1000, 10'000, 100'000};
  SecondsHistogram histogram(&kBoundsUs);
  for (const int64_t us : {0, 1000, 1001, 10'000, 100'001, 5'000'000}) histogram.ObserveUs(us);
  EXPECT_THAT(histogram.counts(), testing::ElementsAre(2, 2, 0, 2));
  EXPECT_EQ(histogram.sum_us(), 0u + 1000 + 1001 + 10'000 + 100'001 + 5'000'000);
}

TEST(SecondsHistogram, TakesADurationBeforeZeroForNone) {
  BlockAgeHistogram histogram;
  histogram.ObserveMs(-5);
  EXPECT_EQ(histogram.counts().front(), 1u);
  EXPECT_EQ(histogram.sum_us(), 0u);
}

TEST(CopyMeter, CountsTheTimeOfCopiesThatOverlapOnce) {
  CopyMeter meter;
  meter.Begin(100);
  meter.Begin(150);
  meter.End(200);
  EXPECT_EQ(meter.under_way(), 1u);
  meter.End(300);
  EXPECT_EQ(meter.busy_ms(), 200u);
}

TEST(CopyMeter, DoesNotCountTheTimeBetweenCopies) {
  CopyMeter meter;
  meter.Begin(100);
  meter.End(110);
  meter.Begin(1000);
  meter.End(1005);
  EXPECT_EQ(meter.busy_ms(), 15u);
}

}  // namespace
}  // namespace kvtier
