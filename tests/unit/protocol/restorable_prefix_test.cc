// SPDX-License-Identifier: Apache-2.0
#include "protocol/restorable_prefix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/fakes/seeded_random.h"

namespace kvtier {
namespace {

// A group's rule with its cached blocks: "1101" lacks the third block.
struct Group {
  GroupRule rule;
  std::vector<uint8_t> present;
};

Group With(GroupRule rule, const std::string& present) {
  Group group{rule, {}};
  for (const char c : present) group.present.push_back(c == '1' ? 1 : 0);
  return group;
}

GroupRule All(uint32_t block_tokens) { return {HitRule::kAll, block_tokens, 0}; }
GroupRule Window(uint32_t block_tokens, uint32_t window_tokens) {
  return {HitRule::kTrailing, block_tokens, window_tokens};
}
GroupRule State(uint32_t block_tokens) { return {HitRule::kState, block_tokens, 0}; }

uint64_t Longest(const std::vector<Group>& groups) {
  std::vector<GroupPresence> presence;
  for (const Group& group : groups) presence.push_back({group.rule, group.present});
  return LongestRestorable(presence);
}

TEST(RestorablePrefix, FullAttentionEndsAtTheFirstGap) {
  EXPECT_EQ(Longest({With(All(16), "11011")}), 32u);
  EXPECT_EQ(Longest({With(All(16), "01111")}), 0u);
}

TEST(RestorablePrefix, AWindowNeedsOnlyTheBlocksThatItReachesInto) {
  // 17 tokens before the boundary lie in two blocks.
  EXPECT_EQ(Longest({With(Window(16, 17), "0011011")}), 112u);
  EXPECT_EQ(Longest({With(Window(16, 17), "001101")}), 64u);
  EXPECT_EQ(NeededBlocks(Window(16, 17), 64), (BlockRange{2, 4}));
  EXPECT_EQ(NeededBlocks(Window(16, 16), 64), (BlockRange{3, 4}));
  // Near the start the window is the whole prefix.
  EXPECT_EQ(NeededBlocks(Window(16, 1024), 32), (BlockRange{0, 2}));
}

TEST(RestorablePrefix, AStateStandsForThePrefixThatItEnds) {
  EXPECT_EQ(Longest({With(State(512), "0101")}), 2048u);
}

TEST(RestorablePrefix, EveryGroupMustAgreeOnTheBoundary) {
  // A hybrid: attention in blocks of 16, a state every 64 tokens.
  const Group attention = With(All(16), "1111111111110");
  EXPECT_EQ(Longest({attention, With(State(64), "1010")}), 192u);
  EXPECT_EQ(Longest({attention, With(State(64), "0000")}), 0u);
}

TEST(RestorablePrefix, BoundariesAreMultiplesOfEveryBlock) {
  EXPECT_EQ(Longest({With(All(4), "111111"), With(All(6), "1111")}), 24u);
}

TEST(RestorablePrefix, BlocksWithoutACommonMultipleWithinReachHaveNoBoundary) {
  std::vector<Group> groups;
  for (const uint32_t prime : {1021u, 1019u, 1013u, 1009u, 997u, 991u, 983u, 977u}) {
    groups.push_back(With(All(prime), "1111"));
  }
  EXPECT_EQ(Longest(groups), 0u);
}

// The definition, token by token.
bool CanRestore(const Group& group, uint64_t boundary) {
  const GroupRule& rule = group.rule;
  if (boundary % rule.block_tokens != 0) return false;
  if (boundary > group.present.size() * rule.block_tokens) return false;
  for (uint64_t token = 0; token < boundary; ++token) {
    const bool needed =
        rule.rule == HitRule::kAll ||
        (rule.rule == HitRule::kTrailing && token + rule.window_tokens >= boundary) ||
        (rule.rule == HitRule::kState && token + 1 == boundary);
    if (needed && group.present[token / rule.block_tokens] == 0) return false;
  }
  return true;
}

Group RandomGroup(SeededRandom* random) {
  constexpr uint32_t kBlockTokens[] = {1, 2, 3, 4, 8};
  const auto rule = static_cast<HitRule>(random->Between(1, 3));
  Group group{{rule, kBlockTokens[random->Below(5)],
               rule == HitRule::kTrailing ? static_cast<uint32_t>(random->Between(1, 20)) : 0},
              {}};
  const double cached = static_cast<double>(random->Between(5, 10)) / 10;
  const uint64_t blocks = random->Below(32 / group.rule.block_tokens) + 1;
  for (uint64_t i = 0; i < blocks; ++i) group.present.push_back(random->Chance(cached) ? 1 : 0);
  return group;
}

TEST(RestorablePrefix, EqualsTheDefinitionInAMillionRandomCases) {
  SeededRandom random(20);
  for (int round = 0; round < 1'000'000; ++round) {
    std::vector<Group> groups(random.Between(1, 4));
    for (Group& group : groups) group = RandomGroup(&random);
    uint64_t expected = 32;
    const auto can = [&](const Group& group) { return CanRestore(group, expected); };
    while (expected > 0 && !std::ranges::all_of(groups, can)) --expected;
    ASSERT_EQ(Longest(groups), expected) << "round " << round;
  }
}

}  // namespace
}  // namespace kvtier
