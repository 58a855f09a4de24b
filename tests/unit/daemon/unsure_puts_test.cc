// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/unsure_puts.h"

#include <gtest/gtest.h>

namespace kvtier {
namespace {

TEST(UnsurePuts, AreForgottenWhenTheServerHasGivenThemUp) {
  UnsurePuts unsure;
  const UnsurePuts::Time now;
  unsure.Add("a/1", now);
  EXPECT_TRUE(unsure.MayCome("a/", now + UnsurePuts::kMayTake / 2));
  EXPECT_FALSE(unsure.MayCome("b/", now));
  EXPECT_FALSE(unsure.MayCome("a/", now + UnsurePuts::kMayTake));
}

TEST(UnsurePuts, MakeAnErasureUnsureUntilItsEndIfTheyMayComeWhenItBegins) {
  UnsurePuts unsure;
  const UnsurePuts::Time now;
  unsure.Add("a/1", now);
  EXPECT_TRUE(unsure.MayComeInErasure("a/", /*is_first=*/true, now));
  EXPECT_TRUE(unsure.MayComeInErasure("a/", false, now + UnsurePuts::kMayTake));
  EXPECT_FALSE(unsure.MayComeInErasure("a/", true, now + UnsurePuts::kMayTake));
  EXPECT_FALSE(unsure.MayComeInErasure("a/", false, now));
}

}  // namespace
}  // namespace kvtier
