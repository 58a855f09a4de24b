// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <vector>

#include "gpu/host_pinner.h"

namespace kvtier {
namespace {

TEST(PinnedRangesTest, HoldsWhatLiesWithinOneRange) {
  std::vector<std::byte> memory(100);
  const std::span all(memory);
  PinnedRanges ranges;
  EXPECT_FALSE(ranges.Holds(memory.data(), 1));
  ranges.Add(all.subspan(10, 20));
  ranges.Add(all.subspan(30, 20));
  EXPECT_TRUE(ranges.Holds(&memory[10], 20));
  EXPECT_TRUE(ranges.Holds(&memory[15], 5));
  EXPECT_TRUE(ranges.Holds(&memory[30], 20));
  EXPECT_FALSE(ranges.Holds(&memory[9], 2));
  EXPECT_FALSE(ranges.Holds(&memory[25], 10)) << "two ranges are not one";
  EXPECT_FALSE(ranges.Holds(&memory[49], 2));
  EXPECT_FALSE(ranges.Holds(&memory[60], 1));
}

TEST(PinnedRangesTest, RemovesExactlyWhatWasAdded) {
  std::vector<std::byte> memory(100);
  const std::span all(memory);
  PinnedRanges ranges;
  ranges.Add(all.first(50));
  EXPECT_FALSE(ranges.Remove(all.first(40)));
  EXPECT_FALSE(ranges.Remove(all.subspan(10, 40)));
  EXPECT_TRUE(ranges.Remove(all.first(50)));
  EXPECT_FALSE(ranges.Remove(all.first(50)));
  EXPECT_FALSE(ranges.Holds(&memory[10], 1));
}

}  // namespace
}  // namespace kvtier
