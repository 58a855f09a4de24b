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

// --- pacing ---

constexpr double kAdmission = 0.15;

void Decide(int times, WriteBudget* budget) {
  for (int i = 0; i < times; ++i) budget->NoteDecision(kAdmission);
}

TEST(WriteBudgetTest, IsAheadOfTheDayOnceMoreThanItsShareAndAnHoursIsSpent) {
  FakeClock clock;  // stands at midnight
  WriteBudget budget(&clock, 2400);
  EXPECT_TRUE(budget.TrySpend(100));
  EXPECT_FALSE(budget.IsAhead()) << "an hour's worth";
  EXPECT_TRUE(budget.TrySpend(1));
  EXPECT_TRUE(budget.IsAhead());
  clock.Advance(kHourMs);
  EXPECT_FALSE(budget.IsAhead());
  EXPECT_TRUE(budget.TrySpend(100));
  EXPECT_TRUE(budget.IsAhead());
  clock.Advance(kDayMs - kHourMs - 1);
  EXPECT_TRUE(budget.TrySpend(2199));
  EXPECT_FALSE(budget.IsAhead()) << "the whole day's worth at the end of the day";
}

TEST(WriteBudgetTest, AsksNothingOfABlockWhileWritesKeepToTheDay) {
  FakeClock clock;
  WriteBudget budget(&clock, 2400);
  Decide(10'000, &budget);
  EXPECT_EQ(budget.least_chance(), 0);
}

TEST(WriteBudgetTest, WithoutLimitAsksNothingOfABlock) {
  FakeClock clock;
  WriteBudget budget(&clock, 0);
  EXPECT_TRUE(budget.TrySpend(UINT64_MAX));
  Decide(10'000, &budget);
  EXPECT_FALSE(budget.IsAhead());
  EXPECT_EQ(budget.least_chance(), 0);
}

TEST(WriteBudgetTest, AsksMoreAndMoreOfABlockWhileWritesAreAheadAndNeverMoreThanCertainty) {
  FakeClock clock;
  WriteBudget budget(&clock, 2400);
  EXPECT_TRUE(budget.TrySpend(200));
  Decide(255, &budget);
  EXPECT_EQ(budget.least_chance(), 0);
  Decide(1, &budget);
  EXPECT_DOUBLE_EQ(budget.least_chance(), kAdmission * 1.15);
  Decide(256, &budget);
  EXPECT_DOUBLE_EQ(budget.least_chance(), kAdmission * 1.15 * 1.15);
  Decide(100'000, &budget);
  EXPECT_EQ(budget.least_chance(), 1);
}

TEST(WriteBudgetTest, AsksLessAndLessOfABlockOnceWritesAreWithinTheDayAgain) {
  FakeClock clock;
  WriteBudget budget(&clock, 2400);
  EXPECT_TRUE(budget.TrySpend(200));
  Decide(100'000, &budget);
  clock.Advance(kHourMs);
  Decide(256, &budget);
  EXPECT_DOUBLE_EQ(budget.least_chance(), 0.9);
  Decide(100'000, &budget);
  EXPECT_EQ(budget.least_chance(), 0);
}

TEST(WriteBudgetTest, ALimitThatIsTakenBackAsksNothingOfABlock) {
  FakeClock clock;
  WriteBudget budget(&clock, 2400);
  EXPECT_TRUE(budget.TrySpend(200));
  Decide(1000, &budget);
  ASSERT_GT(budget.least_chance(), 0);
  budget.SetBytesPerDay(0);
  EXPECT_EQ(budget.least_chance(), 0);
}

}  // namespace
}  // namespace kvtier
