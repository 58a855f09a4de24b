// SPDX-License-Identifier: Apache-2.0
// The expected times of loads, from the times that they took.

#include "tiers/policy/load_rates.h"

#include <gtest/gtest.h>

namespace kvtier {
namespace {

constexpr uint64_t kMiB64 = 64u << 20;

// One burst of `bytes` that takes `us`, from *now_us on.
void Burst(RateMeter* meter, uint64_t bytes, int64_t us, int64_t* now_us) {
  meter->Begin(bytes, *now_us);
  *now_us += us;
  meter->End(bytes, /*arrived=*/true, *now_us);
}

TEST(RateMeterTest, WhatWasNeverMeasuredIsTried) {
  const RateMeter meter;
  const WayPrice price = meter.PriceNow(0, 1000);
  EXPECT_TRUE(price.trial());
  EXPECT_EQ(price.trial_bytes, RateMeter::kTrialBytes);
  EXPECT_EQ(meter.bytes_per_s(), 0u);
}

TEST(RateMeterTest, AnAssumedRateNeedsNoTrial) {
  const RateMeter meter(0.25);
  EXPECT_FALSE(meter.PriceNow(0, 0).trial());
  EXPECT_DOUBLE_EQ(meter.PriceNow(100, 0).wait_us, 25);
}

TEST(LoadRatesTest, CopiesWithinAGpuSayNothingOfThoseFromAnother) {
  LoadRates rates;
  int64_t now_us = 0;
  Burst(&rates.neighbour(DeviceIndex(1), DeviceIndex(1)), kMiB64, 1'000'000, &now_us);
  EXPECT_FALSE(rates.neighbour(DeviceIndex(1), DeviceIndex(1)).PriceNow(0, now_us).trial());
  EXPECT_TRUE(rates.neighbour(DeviceIndex(1), DeviceIndex(0)).PriceNow(0, now_us).trial());
}

TEST(RateMeterTest, IdleTimeIsNotCounted) {
  RateMeter meter;
  int64_t now_us = 1000;
  Burst(&meter, kMiB64, 64'000, &now_us);
  now_us += 5'000'000;
  Burst(&meter, kMiB64, 64'000, &now_us);
  EXPECT_NEAR(static_cast<double>(meter.bytes_per_s()), kMiB64 / 0.064, 1000);
  EXPECT_FALSE(meter.PriceNow(0, now_us).trial());
}

TEST(RateMeterTest, ShortBurstsSayNothing) {
  RateMeter meter;
  int64_t now_us = 0;
  for (int i = 0; i < 100; ++i) Burst(&meter, 1u << 20, 1000, &now_us);
  EXPECT_EQ(meter.bytes_per_s(), 0u);
}

TEST(RateMeterTest, ADriveThatBecomesSlowIsBelievedWithinOneLoad) {
  RateMeter meter;
  int64_t now_us = 0;
  for (int i = 0; i < 5; ++i) Burst(&meter, kMiB64, 10'000, &now_us);
  const double before = meter.PriceNow(0, now_us).us_per_byte;
  meter.Begin(16 * kMiB64, now_us);
  for (int i = 0; i < 16; ++i) {
    now_us += 100'000;
    meter.End(kMiB64, /*arrived=*/true, now_us);
  }
  EXPECT_GT(meter.PriceNow(0, now_us).us_per_byte, 9 * before);
}

TEST(RateMeterTest, ADriveThatDeliversNothingIsSlowAtOnce) {
  RateMeter meter;
  int64_t now_us = 0;
  Burst(&meter, kMiB64, 10'000, &now_us);
  const double before = meter.PriceNow(0, now_us).us_per_byte;
  meter.Begin(kMiB64, now_us);
  EXPECT_GT(meter.PriceNow(0, now_us + 2'000'000).us_per_byte, 100 * before);
}

TEST(RateMeterTest, ARateIsOldAfterAMinuteAndNotMixedWithTheNext) {
  RateMeter meter;
  int64_t now_us = 0;
  Burst(&meter, kMiB64, 10'000, &now_us);
  EXPECT_FALSE(meter.PriceNow(0, now_us + RateMeter::kBelievedUs).stale);
  now_us += RateMeter::kBelievedUs + 1;
  EXPECT_TRUE(meter.PriceNow(0, now_us).stale);
  Burst(&meter, kMiB64, 1'000'000, &now_us);
  EXPECT_NEAR(static_cast<double>(meter.bytes_per_s()), kMiB64, 1000);
  EXPECT_FALSE(meter.PriceNow(0, now_us).stale);
}

TEST(RateMeterTest, WhatIsUnderWayAndWhatWaitsIsAhead) {
  RateMeter meter;
  int64_t now_us = 0;
  Burst(&meter, kMiB64, 10'000, &now_us);
  const WayPrice idle = meter.PriceNow(0, now_us);
  meter.Begin(kMiB64, now_us);
  const WayPrice busy = meter.PriceNow(kMiB64, now_us);
  EXPECT_NEAR(busy.wait_us - idle.wait_us, 20'000, 1);
}

TEST(RateMeterTest, WhatFailedSaysNothingOfTheRate) {
  RateMeter meter(0.25);
  meter.Begin(kMiB64, 0);
  meter.End(kMiB64, /*arrived=*/false, 1000);
  EXPECT_EQ(meter.bytes_per_s(), 0u);
  EXPECT_EQ(meter.PriceNow(0, 1000).wait_us, 0);
}

}  // namespace
}  // namespace kvtier
