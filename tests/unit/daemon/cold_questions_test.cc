// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/cold_questions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace kvtier {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

constexpr GroupRule kAll{.rule = HitRule::kAll, .block_tokens = 16};
constexpr GroupRule kWindow{.rule = HitRule::kTrailing, .block_tokens = 16, .window_tokens = 32};
constexpr GroupRule kState{.rule = HitRule::kState, .block_tokens = 32};

using Present = std::vector<uint8_t>;

TEST(ColdQuestions, AsksNothingWhereThisHostHasAllThatIsNeeded) {
  const Present all(6, 1);
  const Present window = {0, 0, 0, 0, 1, 1};
  const Present state = {0, 0, 1};
  const std::vector<GroupPresence> groups = {{kAll, all}, {kWindow, window}, {kState, state}};
  EXPECT_THAT(ColdQuestions(groups), IsEmpty());
}

TEST(ColdQuestions, AsksForAPrefixFromItsFirstMissingBlockOn) {
  const Present all = {1, 1, 0, 1, 0, 0};
  const std::vector<GroupPresence> groups = {{kAll, all}};
  const std::vector<ColdQuestion> questions = ColdQuestions(groups);
  ASSERT_THAT(questions, SizeIs(1));
  EXPECT_EQ(questions[0].ask, ColdAsk::kPrefix);
  EXPECT_THAT(questions[0].positions, ElementsAre(2, 4, 5));
}

// 64 tokens can be restored here: blocks before the window of the next boundary are of no use.
TEST(ColdQuestions, AsksOfWindowsAndStatesOnlyForWhatLongerPrefixesNeed) {
  const Present all = {1, 1, 1, 1, 0, 0, 0, 0};
  const Present window = {0, 0, 1, 1, 0, 0, 0, 0};
  const Present state = {0, 1, 0, 0};
  const std::vector<GroupPresence> groups = {{kAll, all}, {kWindow, window}, {kState, state}};
  const std::vector<ColdQuestion> questions = ColdQuestions(groups);
  ASSERT_THAT(questions, SizeIs(3));
  EXPECT_THAT(questions[0].positions, ElementsAre(4, 5, 6, 7));
  EXPECT_EQ(questions[1].group, 1u);
  EXPECT_EQ(questions[1].ask, ColdAsk::kEach);
  EXPECT_THAT(questions[1].positions, ElementsAre(4, 5, 6, 7));
  EXPECT_EQ(questions[2].ask, ColdAsk::kEach);
  EXPECT_THAT(questions[2].positions, ElementsAre(2, 3));
}

TEST(ColdQuestions, AsksForNothingBeyondTheShortestGroup) {
  const Present all(6, 0);
  const Present state(2, 0);
  const std::vector<GroupPresence> groups = {{kAll, all}, {kState, state}};
  const std::vector<ColdQuestion> questions = ColdQuestions(groups);
  ASSERT_THAT(questions, SizeIs(2));
  EXPECT_THAT(questions[0].positions, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(questions[1].positions, ElementsAre(0, 1));
}

}  // namespace
}  // namespace kvtier
