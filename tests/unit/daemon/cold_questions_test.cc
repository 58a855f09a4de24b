// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/cold_questions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "tests/unit/daemon/verbs.h"

namespace kvtier {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

constexpr GroupRule kAll{.rule = HitRule::kAll, .block_tokens = 16};
constexpr GroupRule kWindow{.rule = HitRule::kTrailing, .block_tokens = 16, .window_tokens = 32};
constexpr GroupRule kState{.rule = HitRule::kState, .block_tokens = 32};

using Present = std::vector<uint8_t>;

// The positions of one group's blocks in the order in which they are asked for.
std::vector<size_t> PositionsIn(const std::vector<GroupPresence>& groups, size_t group) {
  std::vector<size_t> positions;
  for (const ColdBlock& block : BoundaryBlocks(groups)) {
    if (block.group == group) positions.push_back(block.position);
  }
  return positions;
}

// Has the first blocks of the sequence in each pool, and tells nothing after some answers.
struct Store {
  explicit Store(uint32_t blocks, size_t answers = SIZE_MAX)
      : objects(Hashes(1, blocks)), answers(answers) {}
  [[nodiscard]] ColdAsker Asker() {
    return [this](PoolId, const std::vector<BlockHash>& hashes, ColdAsk,
                  const std::function<void(std::vector<bool>)>& done) {
      asked.push_back(hashes.size());
      if (asked.size() > answers) return done({});
      std::vector<bool> present;
      for (const BlockHash& hash : hashes) {
        present.push_back(std::ranges::find(objects, hash) != objects.end());
      }
      done(std::move(present));
    };
  }
  // How many blocks of 16 tokens an acquire could restore from it.
  [[nodiscard]] size_t FoundByAcquire(const std::vector<ColdSubject>& subjects) {
    size_t found = 0;
    ColdPresence here;
    for (const ColdSubject& subject : subjects) here.emplace_back(subject.hashes.size());
    AskColdStore(Asker(), subjects, here, [&](const ColdPresence& present) {
      ++ends;
      std::vector<GroupPresence> groups;
      for (size_t i = 0; i < subjects.size(); ++i) groups.push_back({subjects[i].rule, present[i]});
      found = LongestRestorable(groups) / 16;
    });
    return found;
  }
  [[nodiscard]] Present FoundByLookup(const ColdSubject& subject) {
    Present found;
    LookUpInColdStore(Asker(), subject, Present(subject.hashes.size()),
                      [&](const ColdPresence& present) {
                        ++ends;
                        found = present[0];
                      });
    return found;
  }

  const std::vector<BlockHash> objects;
  const size_t answers;
  std::vector<size_t> asked;  // hashes of each question
  int ends = 0;
};

constexpr GroupRule kLongWindow{
    .rule = HitRule::kTrailing, .block_tokens = 16, .window_tokens = 256 * 16};

TEST(ColdQuestions, AsksNothingWhereThisHostHasAllThatIsNeeded) {
  const Present all(6, 1);
  const Present window = {0, 0, 0, 0, 1, 1};
  const Present state = {0, 0, 1};
  const std::vector<GroupPresence> groups = {{kAll, all}, {kWindow, window}, {kState, state}};
  EXPECT_THAT(PrefixQuestions(groups), IsEmpty());
  EXPECT_THAT(BoundaryBlocks(groups), IsEmpty());
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
  EXPECT_THAT(PositionsIn(groups, 1), ElementsAre(7, 6, 5, 4));
  EXPECT_THAT(PositionsIn(groups, 2), ElementsAre(3, 2));
}

TEST(ColdQuestions, AsksOfWindowsAndStatesForNothingBeyondFullAttention) {
  const Present all = {1, 1, 1, 1, 1, 0, 1, 1};
  const Present window(8, 0);
  const Present state(4, 0);
  const std::vector<GroupPresence> groups = {{kAll, all}, {kWindow, window}, {kState, state}};
  EXPECT_THAT(PositionsIn(groups, 1), ElementsAre(3, 2, 1, 0));
  EXPECT_THAT(PositionsIn(groups, 2), ElementsAre(1, 0));
}

TEST(ColdQuestions, AsksForNothingBeyondTheShortestGroup) {
  const Present all(6, 0);
  const Present state(2, 0);
  const std::vector<GroupPresence> groups = {{kAll, all}, {kState, state}};
  const std::vector<ColdQuestion> questions = PrefixQuestions(groups);
  ASSERT_THAT(questions, SizeIs(1));
  EXPECT_THAT(questions[0].positions, ElementsAre(0, 1, 2, 3));
}

TEST(ColdQuestions, AsksOnUntilABoundaryIsWhole) {
  const std::vector<BlockHash> hashes = Hashes(1, 600);
  Store store(500);
  EXPECT_EQ(store.FoundByAcquire({{PoolId(1), kLongWindow, hashes}}), 500u);
  EXPECT_THAT(store.asked, ElementsAre(256, 256)) << "the rest is of no use";
  EXPECT_EQ(store.ends, 1);
}

TEST(ColdQuestions, AsksForALongBoundaryOfSeveralGroupsInParts) {
  const std::vector<BlockHash> hashes = Hashes(1, 600);
  Store store(500);
  const std::vector<ColdSubject> subjects = {{PoolId(1), kAll, hashes},
                                             {PoolId(2), kLongWindow, hashes},
                                             {PoolId(3), kLongWindow, hashes},
                                             {PoolId(4), kState, hashes}};
  EXPECT_EQ(store.FoundByAcquire(subjects), 500u);
  EXPECT_EQ(store.asked.front(), 600u) << "full attention is asked about first";
  for (size_t i = 1; i < store.asked.size(); ++i) EXPECT_LE(store.asked[i], kMostAskedAtOnce);
}

TEST(ColdQuestions, ALookupAsksForEachBlockOfAWindow) {
  const std::vector<BlockHash> hashes = Hashes(1, 600);
  Store store(600);
  EXPECT_THAT(store.FoundByLookup({PoolId(1), kWindow, hashes}), Each(1));
  EXPECT_THAT(store.asked, ElementsAre(256, 256, 88));
  EXPECT_EQ(store.ends, 1);
}

// A sequence that the store lacks hides none behind it in the list.
TEST(ColdQuestions, ALookupTellsAllThatTheStoreSaysOfSeveralSequences) {
  std::vector<BlockHash> hashes = Hashes(1, 6);
  std::swap(hashes[0], hashes[4]);
  Store store(4);
  EXPECT_THAT(store.FoundByLookup({PoolId(1), kAll, hashes}), ElementsAre(0, 1, 1, 1, 1, 0));
  EXPECT_THAT(store.asked, SizeIs(1));
  EXPECT_EQ(store.FoundByAcquire({{PoolId(1), kAll, hashes}}), 0u);
}

TEST(ColdQuestions, AStoreThatTellsNothingIsAskedNoMore) {
  const std::vector<BlockHash> hashes = Hashes(1, 1000);
  Store store(1000, /*answers=*/2);
  Present found = store.FoundByLookup({PoolId(1), kWindow, hashes});
  EXPECT_EQ(std::ranges::count(found, 1), 512);
  EXPECT_THAT(store.asked, SizeIs(3));
  EXPECT_EQ(store.ends, 1);
  Store silent(1000, /*answers=*/0);
  EXPECT_EQ(silent.FoundByAcquire({{PoolId(1), kAll, hashes}, {PoolId(2), kWindow, hashes}}), 0u);
  EXPECT_THAT(silent.asked, SizeIs(1));
}

}  // namespace
}  // namespace kvtier
