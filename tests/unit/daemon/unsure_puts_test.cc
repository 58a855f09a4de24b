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

}  // namespace
}  // namespace kvtier
