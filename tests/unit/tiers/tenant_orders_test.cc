// SPDX-License-Identifier: Apache-2.0
// The order in which host evicts: how much of it is made ready ahead of need.
#include "tiers/policy/tenant_orders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace kvtier {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

// Rows below 10 are small blocks of one tenant, others large ones of another.
class TenantVictimsTest : public ::testing::Test {
 protected:
  static constexpr TenantId kSmall{0};
  static constexpr TenantId kLarge{1};
  static constexpr uint64_t kSmallBytes = 10;
  static constexpr uint64_t kLargeBytes = 1000;

  void Touch(uint32_t row) { order_.Touch(row < 10 ? kSmall : kLarge, EntryIndex(row)); }
  // The rows that are made ready, in their order.
  std::vector<uint32_t> Prepare(uint64_t bytes, uint64_t steps) {
    std::vector<uint32_t> rows;
    order_.PrepareColdest(
        bytes, [](TenantId) { return true; },
        [&](EntryIndex entry) { rows.push_back(entry.value); }, &steps);
    left_ = steps;
    return rows;
  }

  TenantVictims order_{
      2, [](EntryIndex) { return false; },
      [](EntryIndex entry) { return entry.value < 10 ? kSmallBytes : kLargeBytes; }};
  uint64_t left_ = 0;
};

TEST_F(TenantVictimsTest, ABlockCountsByItsBytes) {
  for (const uint32_t row : {1, 2, 11, 3, 12, 13}) Touch(row);
  EXPECT_THAT(Prepare(2 * kSmallBytes, 100), ElementsAre(1, 2));
  EXPECT_THAT(Prepare(kLargeBytes, 100), ElementsAre(11));
  EXPECT_EQ(left_, 99u);
  EXPECT_THAT(Prepare(kLargeBytes, 100), SizeIs(0));
  // One that is used, and one that goes, make room for the next.
  Touch(11);
  EXPECT_THAT(Prepare(kLargeBytes, 100), ElementsAre(3, 12));
  order_.Remove(kLarge, EntryIndex(12));
  EXPECT_THAT(Prepare(kLargeBytes, 100), ElementsAre(13));
  EXPECT_THAT(Prepare(UINT64_MAX, 100), ElementsAre(11));
}

TEST_F(TenantVictimsTest, TakesNoMoreStepsThanItMay) {
  for (uint32_t row = 1; row < 20; ++row) Touch(row);
  EXPECT_THAT(Prepare(UINT64_MAX, 4), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(left_, 0u);
  uint64_t steps = 2;
  std::vector<uint32_t> rows;
  order_.PrepareTenant(
      kLarge, UINT64_MAX, [&](EntryIndex entry) { rows.push_back(entry.value); }, &steps);
  EXPECT_THAT(rows, ElementsAre(10, 11));
  EXPECT_EQ(steps, 0u);
  EXPECT_THAT(Prepare(UINT64_MAX, 100), SizeIs(13));
}

}  // namespace
}  // namespace kvtier
