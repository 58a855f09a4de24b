// SPDX-License-Identifier: Apache-2.0
// Which blocks of a prefix are loaded: compared with every cut there is.

#include "tiers/policy/load_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/fakes/seeded_random.h"

namespace kvtier {
namespace {

constexpr double kNever = 1e300;

using Sources = std::vector<BlockSource>;

LoadQuestion Ask(HitPlan plan, const Sources& blocks, uint64_t tokens) {
  return {.plan = plan,
          .deadline_us = 0,
          .tokens = tokens,
          .cost = {.per_token_us = 10, .per_pair_us = 0.001F, .fixed_us = 50},
          .blocks = blocks,
          .block_bytes = 1000,
          .block_tokens = 16,
          .covered_tokens = blocks.size() * 16};
}

WayPrice PriceOf(double us_per_byte, double wait_us = 0) {
  return {.wait_us = wait_us, .us_per_byte = us_per_byte};
}

// The time to load [first, end), counted one by one.
double LoadUs(const LoadQuestion& question, size_t first, size_t end) {
  std::array<double, kLoadWayCount> bytes{};
  for (size_t i = first; i < end; ++i) {
    const BlockSource source = question.blocks[i];
    const auto add = [&](LoadWay way) {
      bytes[static_cast<size_t>(way)] += static_cast<double>(question.block_bytes);
    };
    if (source == BlockSource::kDisk) add(LoadWay::kDisk);
    if (source == BlockSource::kCold) add(LoadWay::kCold);
    if (source != BlockSource::kHere) add(LoadWay::kBus);
  }
  double us = 0;
  for (size_t way = 0; way < kLoadWayCount; ++way) {
    const WayPrice& price = question.prices[way];
    if (bytes[way] == 0) continue;
    const auto trial = static_cast<double>(std::max(price.trial_bytes, question.block_bytes));
    if (bytes[way] > trial) return kNever;
    us = std::max(us, price.wait_us + bytes[way] * price.us_per_byte);
  }
  return us;
}

// The least time of all cuts.
double LeastUs(const LoadQuestion& question) {
  const auto covered = [&](size_t blocks) {
    return blocks == question.blocks.size() ? question.covered_tokens
                                            : blocks * question.block_tokens;
  };
  size_t lead = 0;
  while (lead < question.blocks.size() && question.blocks[lead] == BlockSource::kHere) ++lead;
  double least = kNever;
  for (size_t end = lead; end <= question.blocks.size(); ++end) {
    const double load_us = LoadUs(question, lead, end);
    if (load_us > 0 && question.deadline_us > 0 && load_us > question.deadline_us) continue;
    least = std::min(least, load_us + question.cost.Us(covered(end), question.tokens));
  }
  return least;
}

void ExpectConsistent(const LoadQuestion& question, const LoadAnswer& answer) {
  ASSERT_LE(answer.end, question.blocks.size());
  EXPECT_NEAR(answer.load_us, LoadUs(question, 0, answer.end), 1e-3);
  const bool declines = answer.end < question.blocks.size();
  EXPECT_EQ(declines, answer.declined_for != MissReason::kNone);
}

TEST(LoadPlanTest, WithoutAPlanEveryHitIsLoadedHoweverSlow) {
  const Sources blocks(100, BlockSource::kDisk);
  LoadQuestion question = Ask(HitPlan::kAll, blocks, 1600);
  question.prices[0] = PriceOf(1000);
  EXPECT_EQ(PlanLoad(question).end, 100u);
  question.prices[0].trial_bytes = 1;
  EXPECT_EQ(PlanLoad(question).end, 100u);
}

TEST(LoadPlanTest, WithoutTheCostOfComputingNothingIsSlowerThanIt) {
  const Sources blocks(100, BlockSource::kDisk);
  LoadQuestion question = Ask(HitPlan::kCut, blocks, 1600);
  question.cost = {};
  question.prices[0] = PriceOf(1000);
  EXPECT_EQ(PlanLoad(question).end, 100u);
}

TEST(LoadPlanTest, AFastDiskServesAllAndASlowOneNothing) {
  const Sources blocks(100, BlockSource::kDisk);
  LoadQuestion question = Ask(HitPlan::kCut, blocks, 1700);
  question.prices[0] = PriceOf(0.01);
  EXPECT_EQ(PlanLoad(question).end, 100u);
  question.prices[0] = PriceOf(10);
  const LoadAnswer answer = PlanLoad(question);
  EXPECT_EQ(answer.end, 0u);
  EXPECT_EQ(answer.load_us, 0);
  EXPECT_EQ(answer.declined_for, MissReason::kSlowerThanComputing);
}

TEST(LoadPlanTest, WhatWaitsAheadCounts) {
  const Sources blocks(10, BlockSource::kDisk);
  LoadQuestion question = Ask(HitPlan::kCut, blocks, 200);
  question.prices[0] = PriceOf(0.01);
  EXPECT_EQ(PlanLoad(question).end, 10u);
  question.prices[0].wait_us = 1e6;
  EXPECT_EQ(PlanLoad(question).end, 0u);
}

TEST(LoadPlanTest, ADeadlineCutsWhatWouldBeLaterEvenWithoutAPlan) {
  const Sources blocks(100, BlockSource::kDisk);
  LoadQuestion question = Ask(HitPlan::kAll, blocks, 1600);
  question.prices[0] = PriceOf(0.01);
  question.deadline_us = 505;
  const LoadAnswer answer = PlanLoad(question);
  EXPECT_EQ(answer.end, 50u);
  EXPECT_EQ(answer.declined_for, MissReason::kAfterDeadline);
}

TEST(LoadPlanTest, AnUnknownDiskIsTriedWithABoundedPart) {
  const Sources blocks(100, BlockSource::kDisk);
  LoadQuestion question = Ask(HitPlan::kCut, blocks, 1600);
  question.prices[0] = {.trial_bytes = 20'000};
  EXPECT_EQ(PlanLoad(question).end, 20u);
}

TEST(LoadPlanTest, AnOldRateThatSpeaksAgainstLoadingIsTriedOutAgain) {
  const Sources blocks(100'000, BlockSource::kDisk);
  LoadQuestion question = Ask(HitPlan::kCut, blocks, 1'600'000);
  question.prices[0] = PriceOf(10'000);
  EXPECT_EQ(PlanLoad(question).end, 0u);
  question.prices[0].stale = true;
  EXPECT_EQ(PlanLoad(question).end, RateMeter::kTrialBytes / question.block_bytes);
  question.prices[0] = PriceOf(0.0001);
  question.prices[0].stale = true;
  EXPECT_EQ(PlanLoad(question).end, 100'000u) << "an old rate that speaks for it is believed";
}

TEST(LoadPlanTest, IsAsGoodAsTheBestOfAllCuts) {
  SeededRandom random(17);
  for (int round = 0; round < 3000; ++round) {
    Sources blocks(random.Between(0, 24));
    for (BlockSource& block : blocks) block = static_cast<BlockSource>(random.Below(4));
    if (random.Below(2) == 0) std::ranges::sort(blocks);
    LoadQuestion question = Ask(HitPlan::kCut, blocks, blocks.size() * 16 + random.Below(100));
    for (WayPrice& price : question.prices) {
      price = PriceOf(static_cast<double>(random.Below(400)) / 1000.0,
                      static_cast<double>(random.Below(3) * random.Below(500)));
      if (random.Below(8) == 0) price = {.trial_bytes = random.Below(10'000)};
    }
    if (random.Below(4) == 0) question.deadline_us = static_cast<double>(1 + random.Below(2000));
    if (!blocks.empty() && random.Below(4) == 0) question.covered_tokens -= random.Below(16);
    const LoadAnswer answer = PlanLoad(question);
    ExpectConsistent(question, answer);
    ASSERT_NEAR(answer.ready_us, LeastUs(question), 1e-3) << "round " << round;
  }
}

TEST(ComputeCostTest, TokensBehindOthersCostMore) {
  const ComputeCost cost{.per_token_us = 2, .per_pair_us = 0.5F, .fixed_us = 7};
  EXPECT_EQ(cost.Us(5, 5), 0);
  EXPECT_DOUBLE_EQ(cost.Us(0, 10), 7 + 20 + 0.5 * 10 * 5);
  EXPECT_DOUBLE_EQ(cost.Us(100, 110), 7 + 20 + 0.5 * 10 * 105);
}

}  // namespace
}  // namespace kvtier
