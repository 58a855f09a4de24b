// SPDX-License-Identifier: Apache-2.0
#include "daemon/net/retries.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvtier {
namespace {

using testing::ElementsAre;

class RetriesTest : public testing::Test {
 protected:
  // One that waits until it is tried for the `last` time.
  void Add(const std::string& tenant, const std::string& name, uint32_t last) {
    retries_.Add(tenant, [this, name, last, tries = 0u](bool over) mutable {
      EXPECT_FALSE(over);
      tried_.push_back(name);
      return Retries::Outcome{.waits = ++tries < last, .price = 1};
    });
  }

  EventLoop loop_;
  FairTurns turns_{&loop_};
  Retries retries_{&loop_, &turns_};
  std::vector<std::string> tried_;
};

TEST_F(RetriesTest, OneOfEachTenantIsTriedAtATime) {
  for (const char* name : {"a1", "a2", "a3"}) Add("a", name, 2);
  Add("b", "b1", 4);
  loop_.RunUntil([this] { return tried_.size() == 10; });
  EXPECT_THAT(tried_, ElementsAre("a1", "b1", "a2", "b1", "a3", "b1", "a1", "b1", "a2", "a3"));
}

TEST_F(RetriesTest, OneThatNobodyWaitsForTakesNoTry) {
  for (int i = 0; i < 100; ++i) {
    retries_.Add("a", [](bool) { return Retries::Outcome{}; });
  }
  Add("a", "a1", 1);
  Add("b", "b1", 2);
  loop_.RunUntil([this] { return tried_.size() == 3; });
  EXPECT_THAT(tried_, ElementsAre("a1", "b1", "b1"));
}

TEST_F(RetriesTest, EachIsAnsweredWhenItsTimeIsOver) {
  Retries impatient(&loop_, &turns_, /*patience_ms=*/1);
  int answered = 0;
  for (int i = 0; i < 100; ++i) {
    impatient.Add("a", [&](bool over) {
      answered += over;
      return Retries::Outcome{.waits = true, .price = kTurnPrice};
    });
  }
  loop_.RunUntil([&] { return answered == 100; });
}

}  // namespace
}  // namespace kvtier
