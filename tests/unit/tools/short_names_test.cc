// SPDX-License-Identifier: Apache-2.0
#include "tools/support/short_names.h"

#include <gtest/gtest.h>

namespace kvtier {
namespace {

TEST(ShortNamesTest, ShowsANameThatFitsAsItIs) {
  EXPECT_EQ(ShortNames(10).Of("default/ab"), "default/ab");
}

TEST(ShortNamesTest, CutsPathsInTheMiddleSoThatTheirEndsAreSeen) {
  ShortNames names(20);
  const std::string base = "default//data/models/meta-llama/";
  EXPECT_EQ(names.Of(base + "Llama-3.1-8B"), "defaul..Llama-3.1-8B");
  EXPECT_EQ(names.Of(base + "Llama-3.1-70B"), "defaul..lama-3.1-70B");
}

TEST(ShortNamesTest, NamesThatDifferNeverLookAlike) {
  ShortNames names(12);
  const std::string one = names.Of("default//data/one/snapshots/model");
  const std::string two = names.Of("default//data/two/snapshots/model");
  EXPECT_NE(one, two);
  EXPECT_EQ(names.Of("default//data/one/snapshots/model"), one);
  EXPECT_EQ(names.Of("default//data/two/snapshots/model"), two);
}

TEST(ShortNamesTest, CutsBetweenCodePoints) {
  EXPECT_EQ(ShortNames(8).Of("ääääääääää"), "ää..ääää");
}

}  // namespace
}  // namespace kvtier
