// SPDX-License-Identifier: Apache-2.0
#include "gpu/counter_page.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <vector>

namespace kvtier {
namespace {

class CounterPageTest : public ::testing::Test {
 protected:
  // A client's reading of the counter, from the load's base on.
  [[nodiscard]] uint32_t Done(const StepCounter& counter) const {
    return *reinterpret_cast<const uint32_t*>(page_->memory().data() + counter.offset()) -
           counter.base();
  }

  std::shared_ptr<CounterPage> page_ = CounterPage::Create().value();
};

TEST_F(CounterPageTest, ACounterStandsAtZeroAndCountsUp) {
  const auto counter = page_->Open(5);
  EXPECT_EQ(Done(*counter), 0u);
  counter->Store(2);
  EXPECT_EQ(Done(*counter), 2u);
  counter->Store(5);
  EXPECT_EQ(Done(*counter), 5u);
}

TEST_F(CounterPageTest, ACounterNeverGoesBack) {
  const auto counter = page_->Open(5);
  counter->Store(4);
  counter->Store(3);
  EXPECT_EQ(Done(*counter), 4u);
  // Nor by what a device had been told to write before.
  EXPECT_FALSE(counter->Claim(4));
  counter->Publish(3);
  EXPECT_EQ(Done(*counter), 4u);
}

TEST_F(CounterPageTest, TheEndPassesEveryStepAndStays) {
  auto counter = page_->Open(5);
  const uint32_t offset = counter->offset();
  const uint32_t base = counter->base();
  counter->Store(2);
  counter->End();
  counter->Store(3);
  EXPECT_GT(Done(*counter), 5u);
  // A device that had 3 under way writes it late; with the last reference the end is there again.
  *reinterpret_cast<uint32_t*>(page_->memory().data() + offset) = base + 3;
  counter.reset();
  EXPECT_GT(*reinterpret_cast<uint32_t*>(page_->memory().data() + offset) - base, 5u);
}

TEST_F(CounterPageTest, AStoppedCounterTellsTheEndOnly) {
  const auto counter = page_->Open(5);
  counter->Store(1);
  counter->Stop();
  counter->Store(2);
  EXPECT_EQ(Done(*counter), 1u);
  counter->End();
  EXPECT_GT(Done(*counter), 5u);
}

TEST_F(CounterPageTest, WhoWaitsForAnEarlierLoadOfTheSlotSeesItPassed) {
  auto counter = page_->Open(5);
  const uint32_t offset = counter->offset();
  const uint32_t awaited = counter->ValueOf(5);
  for (int i = 0; i < 100; ++i) {
    counter.reset();
    counter = page_->Open(3);
    ASSERT_EQ(counter->offset(), offset);
    const uint32_t value = *reinterpret_cast<const uint32_t*>(page_->memory().data() + offset);
    // As a stream compares.
    EXPECT_GE(static_cast<int32_t>(value - awaited), 0);
  }
}

TEST_F(CounterPageTest, CountersDoNotShareSlotsAndRunOut) {
  std::vector<std::shared_ptr<StepCounter>> counters;
  while (auto counter = page_->Open(1)) counters.push_back(std::move(counter));
  EXPECT_EQ(counters.size(), kCounterPageBytes / kCounterSlotBytes / 2);
  for (const auto& counter : counters) counter->Store(1);
  for (const auto& counter : counters) EXPECT_EQ(Done(*counter), 1u);
  counters.pop_back();
  EXPECT_NE(page_->Open(1), nullptr);
}

TEST_F(CounterPageTest, AClientNamesCountersOfItsHalfAndTheirBases) {
  constexpr uint32_t kOffset = kCounterPageBytes / 2;
  const auto counter = page_->OpenNamed(kOffset, 0xfffffffe, 5);
  ASSERT_NE(counter, nullptr);
  EXPECT_EQ(counter->offset(), kOffset);
  EXPECT_EQ(Done(*counter), 0u);
  counter->Store(4);
  EXPECT_EQ(Done(*counter), 4u);
  EXPECT_EQ(counter->ValueOf(4), 2u) << "modulo 2^32";
  EXPECT_FALSE(page_->CanBeNamed(kOffset - kCounterSlotBytes)) << "the daemon's half";
  EXPECT_FALSE(page_->CanBeNamed(kOffset + 4));
  EXPECT_FALSE(page_->CanBeNamed(kCounterPageBytes));
  EXPECT_TRUE(page_->CanBeNamed(kCounterPageBytes - kCounterSlotBytes));
}

TEST_F(CounterPageTest, ANamedCounterIsFreeWhenNothingUsesItAnyMore) {
  constexpr uint32_t kOffset = kCounterPageBytes / 2;
  auto counter = page_->OpenNamed(kOffset, 0, 5);
  auto with_a_device = counter;
  counter->End();
  counter.reset();
  EXPECT_EQ(page_->OpenNamed(kOffset, 7, 5), nullptr);
  with_a_device.reset();
  const auto next = page_->OpenNamed(kOffset, 7, 5);
  ASSERT_NE(next, nullptr);
  EXPECT_EQ(Done(*next), 0u);
  EXPECT_NE(page_->Open(1), nullptr);
}

TEST_F(CounterPageTest, NoHolderOfTheDescriptorCanCutThePage) {
  EXPECT_NE(::ftruncate(page_->fd(), 0), 0);
  EXPECT_NE(::ftruncate(page_->fd(), 1 << 20), 0);
  EXPECT_NE(::fcntl(page_->fd(), F_ADD_SEALS, F_SEAL_WRITE), 0);
}

TEST_F(CounterPageTest, StepsAreCountedInTheOrderOfTheRequests) {
  const auto counter = page_->Open(3);
  CountingOrder order;
  const uint64_t first = order.Add({{counter, 1}});
  const uint64_t second = order.Add({{counter, 2}});
  const uint64_t third = order.Add({{counter, 3}});
  order.Landed(third, true);
  order.Landed(second, true);
  EXPECT_EQ(Done(*counter), 0u);
  order.Landed(first, true);
  EXPECT_EQ(Done(*counter), 3u);
}

TEST_F(CounterPageTest, NothingIsCountedBehindAFailure) {
  const auto counter = page_->Open(3);
  CountingOrder order;
  const uint64_t first = order.Add({{counter, 1}});
  const uint64_t second = order.Add({{counter, 2}});
  const uint64_t third = order.Add({{counter, 3}});
  order.Landed(third, true);
  order.Landed(first, true);
  order.Landed(second, false);
  EXPECT_EQ(Done(*counter), 1u);
}

}  // namespace
}  // namespace kvtier
