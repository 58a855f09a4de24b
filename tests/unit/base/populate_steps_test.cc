// SPDX-License-Identifier: Apache-2.0
#include "base/populate_steps.h"

#include <gtest/gtest.h>

namespace kvtier {
namespace {

// A machine that takes so long for each KiB.
uint64_t BytesAfterSteps(int steps_done, std::chrono::nanoseconds each) {
  PopulateSteps steps;
  for (int i = 0; i < steps_done; ++i) {
    steps.Took(each * static_cast<int64_t>(steps.next_bytes() / kKiB));
  }
  return steps.next_bytes();
}

TEST(PopulateStepsTest, AFastMachineHasLongSteps) {
  EXPECT_EQ(BytesAfterSteps(10, std::chrono::nanoseconds(50)), PopulateSteps::kMostBytes);
}

TEST(PopulateStepsTest, NoStepTakesLongOnASlowMachine) {
  const std::chrono::microseconds each(10);  // 100 MB/s
  const uint64_t bytes = BytesAfterSteps(10, each);
  EXPECT_LE(each * static_cast<int64_t>(bytes / kKiB), PopulateSteps::kLong);
  EXPECT_GT(bytes, PopulateSteps::kLeastBytes);
}

TEST(PopulateStepsTest, AMachineThatCanHardlyBringAnyGetsOnNevertheless) {
  EXPECT_EQ(BytesAfterSteps(30, std::chrono::milliseconds(10)), PopulateSteps::kLeastBytes);
}

TEST(PopulateStepsTest, StepsAreLongAgainWhenTheMachineIsFastAgain) {
  PopulateSteps steps;
  for (int i = 0; i < 10; ++i) steps.Took(std::chrono::seconds(1));
  for (int i = 0; i < 10; ++i) steps.Took(std::chrono::microseconds(10));
  EXPECT_EQ(steps.next_bytes(), PopulateSteps::kMostBytes);
}

}  // namespace
}  // namespace kvtier
