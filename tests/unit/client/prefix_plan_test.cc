// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "client/core/sequence_tokens.h"

namespace kvtier::client {
namespace {

using ::testing::ElementsAre;

constexpr uint32_t kBlockTokens = 4;
constexpr size_t kManyHashes = 1000;

PrefixPlan PlanOf(uint32_t token_count, uint64_t leave, uint64_t reserve = 0,
                  size_t max_hashes = kManyHashes, size_t first_block = 0) {
  std::vector<uint32_t> tokens(token_count);
  std::iota(tokens.begin(), tokens.end(), 100);
  BlockHasher hasher(kBlockTokens);
  hasher.Extend(tokens);
  return PrefixPlan::Make(hasher, tokens, leave, reserve, max_hashes, first_block);
}

TEST(PrefixPlan, AsksForFullBlocksAndEveryTailBehindThem) {
  const PrefixPlan plan = PlanOf(11, 1);
  EXPECT_EQ(plan.usable_tokens, 10u);
  EXPECT_EQ(plan.full_blocks, 2u);
  EXPECT_THAT(plan.partial_tokens, ElementsAre(3, 2, 1));
  EXPECT_EQ(plan.partial_blocks.size(), 3u);
  EXPECT_EQ(plan.new_blocks, 1u);
}

TEST(PrefixPlan, TheLastUsableBlockMayBeAFullOne) {
  const PrefixPlan plan = PlanOf(9, 1);
  EXPECT_EQ(plan.usable_tokens, 8u);
  EXPECT_EQ(plan.full_blocks, 1u);
  EXPECT_THAT(plan.partial_tokens, ElementsAre(4, 3, 2, 1));
  // Used whole, it needs no copy: one block for the ninth token.
  EXPECT_EQ(plan.new_blocks, 1u);
}

TEST(PrefixPlan, ABlockUsedInPartNeedsOneToCopyTo) {
  const PrefixPlan plan = PlanOf(8, 1);
  EXPECT_EQ(plan.usable_tokens, 7u);
  EXPECT_EQ(plan.full_blocks, 1u);
  EXPECT_THAT(plan.partial_tokens, ElementsAre(4, 3, 2, 1));
  EXPECT_EQ(plan.new_blocks, 1u);
  EXPECT_EQ(PlanOf(8, 0).new_blocks, 0u);
}

TEST(PrefixPlan, TheFullTailIsHashedAsTheFullBlock) {
  const PrefixPlan plan = PlanOf(8, 0);
  std::vector<uint32_t> tokens(8);
  std::iota(tokens.begin(), tokens.end(), 100);
  BlockHasher hasher(kBlockTokens);
  hasher.Extend(tokens);
  EXPECT_EQ(plan.partial_blocks[0], hasher.hashes()[1]);
}

TEST(PrefixPlan, NothingUsableMeansNothingToAskFor) {
  const PrefixPlan plan = PlanOf(3, 3);
  EXPECT_EQ(plan.usable_tokens, 0u);
  EXPECT_TRUE(plan.partial_blocks.empty());
  EXPECT_EQ(plan.new_blocks, 1u);
  EXPECT_EQ(PlanOf(0, 1).new_blocks, 0u);
}

TEST(PrefixPlan, ReservedTokensNeedBlocksToo) {
  EXPECT_EQ(PlanOf(9, 1, 3).new_blocks, 1u);
  EXPECT_EQ(PlanOf(9, 1, 4).new_blocks, 2u);
}

TEST(PrefixPlan, BlocksBeyondTheDaemonsLimitAreAskedForByTheNextPlan) {
  const PrefixPlan plan = PlanOf(41, 1, 0, 6);
  EXPECT_EQ(plan.full_blocks, 6u);
  EXPECT_EQ(plan.usable_tokens, 24u);
  EXPECT_TRUE(plan.partial_blocks.empty());
  EXPECT_EQ(plan.new_blocks, 0u);
  EXPECT_FALSE(plan.is_last);
  const PrefixPlan next = PlanOf(41, 1, 0, 6, 6);
  EXPECT_EQ(next.full_blocks, 3u);
  EXPECT_EQ(next.usable_tokens, 40u);
  EXPECT_EQ(next.partial_blocks.size(), 4u);
  EXPECT_EQ(next.new_blocks, 1u);
  EXPECT_TRUE(next.is_last);
}

TEST(PrefixPlan, WithoutTheBlockThatIsCopiedTheLastOneIsComputed) {
  PrefixPlan plan = PlanOf(8, 1);
  ASSERT_TRUE(plan.MayCopy(kBlockTokens));
  plan.LeaveOutPartial(kBlockTokens);
  EXPECT_EQ(plan.usable_tokens, 4u);
  EXPECT_TRUE(plan.partial_blocks.empty());
  EXPECT_EQ(plan.new_blocks, 1u);
  EXPECT_FALSE(plan.MayCopy(kBlockTokens));
  EXPECT_FALSE(PlanOf(9, 1).MayCopy(kBlockTokens));
}

}  // namespace
}  // namespace kvtier::client
