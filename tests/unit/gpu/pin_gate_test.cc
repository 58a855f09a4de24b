// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <optional>
#include <thread>

#include "gpu/host_pinner.h"

namespace kvtier {
namespace {

constexpr std::chrono::seconds kPatience(20);

TEST(PinGateTest, IsOpenWhenNobodyIsUrgent) {
  PinGate gate;
  EXPECT_TRUE(gate.Wait());
  { const PinGate::Urgent urgent(&gate); }
  EXPECT_TRUE(gate.Wait());
}

TEST(PinGateTest, LetsMemoryBePinnedAfterAWhileThoughSomebodyIsAlwaysUrgent) {
  PinGate gate;
  const PinGate::Urgent urgent(&gate);
  EXPECT_FALSE(gate.Wait(std::chrono::milliseconds(1)));
}

TEST(PinGateTest, OpensWhenTheLastOfThoseWhoAreUrgentIsDone) {
  PinGate gate;
  std::optional<PinGate::Urgent> first(std::in_place, &gate);
  std::optional<PinGate::Urgent> second(std::in_place, &gate);
  std::promise<void> passed;
  std::future<void> done = passed.get_future();
  std::thread waiter([&] {
    EXPECT_TRUE(gate.Wait(kPatience));
    passed.set_value();
  });
  first.reset();
  EXPECT_EQ(done.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  second.reset();
  EXPECT_EQ(done.wait_for(kPatience), std::future_status::ready);
  waiter.join();
}

}  // namespace
}  // namespace kvtier
