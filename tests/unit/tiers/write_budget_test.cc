// SPDX-License-Identifier: Apache-2.0
#include "tiers/policy/write_budget.h"

#include <gtest/gtest.h>

#include "base/units.h"
#include "tests/fakes/fake_clock.h"

namespace kvtier {
namespace {

// May be set back, as an operator may set a machine's clock back.
class MovableClock final : public Clock {
 public:
  explicit MovableClock(int64_t wall_ms) : wall_ms_(wall_ms) {}
  [[nodiscard]] int64_t MonotonicMs() const override { return 0; }
  [[nodiscard]] int64_t WallMs() const override { return wall_ms_; }
  void Set(int64_t wall_ms) { wall_ms_ = wall_ms; }

 private:
  int64_t wall_ms_;
};

TEST(WriteBudgetTest, SpendsAllOfARequestOrNothing) {
  FakeClock clock;
  WriteBudget budget(&clock, 100);
  EXPECT_TRUE(budget.TrySpend(60));
  EXPECT_EQ(budget.left_bytes(), 40u);
  EXPECT_FALSE(budget.TrySpend(41));
  EXPECT_EQ(budget.left_bytes(), 40u);
  EXPECT_TRUE(budget.TrySpend(40));
  EXPECT_FALSE(budget.TrySpend(1));
  EXPECT_TRUE(budget.TrySpend(0));
}

TEST(WriteBudgetTest, StartsAnewAtMidnightUtcAndNotBefore) {
  FakeClock clock;  // stands at midnight
  WriteBudget budget(&clock, 100);
  EXPECT_TRUE(budget.TrySpend(100));
  clock.Advance(kDayMs - 1);
  EXPECT_EQ(budget.left_bytes(), 0u);
  EXPECT_FALSE(budget.TrySpend(1));
  clock.Advance(1);
  EXPECT_EQ(budget.left_bytes(), 100u);
  EXPECT_TRUE(budget.TrySpend(100));
}

TEST(WriteBudgetTest, ZeroMeansNoLimitButSpendingIsCounted) {
  FakeClock clock;
  WriteBudget budget(&clock, 0);
  EXPECT_TRUE(budget.TrySpend(UINT64_MAX));
  EXPECT_TRUE(budget.TrySpend(5));
  EXPECT_EQ(budget.left_bytes(), UINT64_MAX);
  EXPECT_EQ(budget.state().spent_bytes, UINT64_MAX);
}

TEST(WriteBudgetTest, ARestartOnTheSameDayRemembersWhatWasSpent) {
  FakeClock clock;
  WriteBudget before(&clock, 100);
  EXPECT_TRUE(before.TrySpend(70));
  clock.Advance(kHourMs);
  WriteBudget after(&clock, 100, before.state());
  EXPECT_EQ(after.left_bytes(), 30u);
  EXPECT_FALSE(after.TrySpend(31));
}

TEST(WriteBudgetTest, ARestartOnAnotherDayStartsAnew) {
  FakeClock clock;
  WriteBudget before(&clock, 100);
  EXPECT_TRUE(before.TrySpend(70));
  clock.Advance(kDayMs);
  const WriteBudget after(&clock, 100, before.state());
  EXPECT_EQ(after.left_bytes(), 100u);
}

TEST(WriteBudgetTest, ALowerLimitThanWhatWasSpentLeavesNothing) {
  FakeClock clock;
  WriteBudget before(&clock, 100);
  EXPECT_TRUE(before.TrySpend(70));
  WriteBudget after(&clock, 50, before.state());
  EXPECT_EQ(after.left_bytes(), 0u);
  EXPECT_FALSE(after.TrySpend(1));
}

TEST(WriteBudgetTest, AClockSetBackOverMidnightDoesNotRefill) {
  MovableClock clock(10 * kDayMs + kHourMs);
  WriteBudget budget(&clock, 100);
  EXPECT_TRUE(budget.TrySpend(100));
  clock.Set(10 * kDayMs - kHourMs);
  EXPECT_FALSE(budget.TrySpend(1));
  clock.Set(10 * kDayMs + 2 * kHourMs);
  EXPECT_FALSE(budget.TrySpend(1));
  clock.Set(11 * kDayMs);
  EXPECT_TRUE(budget.TrySpend(1));
}

TEST(WriteBudgetTest, AClockThatWasYearsAheadDoesNotStopWritingUntilThen) {
  MovableClock clock(20'000 * kDayMs);
  WriteBudget budget(&clock, 100);
  EXPECT_TRUE(budget.TrySpend(100));
  clock.Set(19'000 * kDayMs);
  EXPECT_EQ(budget.left_bytes(), 100u);
}

TEST(WriteBudgetTest, AClockBeforeTheEpochIsDayZero) {
  const MovableClock clock(-5);
  EXPECT_EQ(WriteBudget(&clock, 100).state().day, 0u);
}

}  // namespace
}  // namespace kvtier
