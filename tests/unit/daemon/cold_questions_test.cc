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
  EXPECT_THAT(PrefixQuestions(groups), IsEmpty());
  EXPECT_THAT(BoundaryQuestions(groups), IsEmpty());
}

TEST(ColdQuestions, AsksForAPrefixFromItsFirstMissingBlockOn) {
  const Present all = {1, 1, 0, 1, 0, 0};
  const std::vector<GroupPresence> groups = {{kAll, all}};
  const std::vector<ColdQuestion> questions = PrefixQuestions(groups);
  ASSERT_THAT(questions, SizeIs(1));
  EXPECT_EQ(questions[0].ask, ColdAsk::kPrefix);
  EXPECT_THAT(questions[0].positions, ElementsAre(2, 4, 5));
}

// 64 tokens can be restored here: blocks before the window of the next boundary are of no use.
TEST(ColdQuestions, AsksOfWindowsAndStatesOnlyForWhatLongerPrefixesNeed) {
  const Present all = {1, 1, 1, 1, 1, 1, 1, 1};
  const Present window = {0, 0, 1, 1, 0, 0, 0, 0};
  const Present state = {0, 1, 0, 0};
  const std::vector<GroupPresence> groups = {{kAll, all}, {kWindow, window}, {kState, state}};
  const std::vector<ColdQuestion> questions = BoundaryQuestions(groups);
  ASSERT_THAT(questions, SizeIs(2));
  EXPECT_EQ(questions[0].group, 1u);
  EXPECT_EQ(questions[0].ask, ColdAsk::kEach);
  EXPECT_THAT(questions[0].positions, ElementsAre(7, 6, 5, 4));
  EXPECT_EQ(questions[1].ask, ColdAsk::kEach);
  EXPECT_THAT(questions[1].positions, ElementsAre(3, 2));
}

TEST(ColdQuestions, AsksOfWindowsAndStatesForNothingBeyondFullAttention) {
  const Present all = {1, 1, 1, 1, 1, 0, 1, 1};
  const Present window(8, 0);
  const Present state(4, 0);
  const std::vector<GroupPresence> groups = {{kAll, all}, {kWindow, window}, {kState, state}};
  const std::vector<ColdQuestion> questions = BoundaryQuestions(groups);
  ASSERT_THAT(questions, SizeIs(2));
  EXPECT_THAT(questions[0].positions, ElementsAre(3, 2, 1, 0));
  EXPECT_THAT(questions[1].positions, ElementsAre(1, 0));
}

TEST(ColdQuestions, AsksForFewBlocksOfALongSequence) {
  const Present all(4000, 1);
  const Present window(4000, 0);
  const Present state(2000, 0);
  const std::vector<GroupPresence> groups = {{kAll, all}, {kWindow, window}, {kState, state}};
  const std::vector<ColdQuestion> questions = BoundaryQuestions(groups);
  ASSERT_THAT(questions, SizeIs(2));
  EXPECT_LE(questions[0].positions.size() + questions[1].positions.size(), kMostBoundaryBlocks + 3);
  EXPECT_EQ(questions[0].positions.front(), 3999u);
  EXPECT_EQ(questions[1].positions.front(), 1999u);
}

TEST(ColdQuestions, AsksForNothingBeyondTheShortestGroup) {
  const Present all(6, 0);
  const Present state(2, 0);
  const std::vector<GroupPresence> groups = {{kAll, all}, {kState, state}};
  const std::vector<ColdQuestion> questions = PrefixQuestions(groups);
  ASSERT_THAT(questions, SizeIs(1));
  EXPECT_THAT(questions[0].positions, ElementsAre(0, 1, 2, 3));
}

}  // namespace
}  // namespace kvtier
