// SPDX-License-Identifier: Apache-2.0
#include "tiers/policy/infinite_cache.h"

#include <gtest/gtest.h>

#include <array>

#include "tests/fakes/derived_bytes.h"

namespace kvtier {
namespace {

constexpr NamespaceId kNamespace{0};

BlockHash HashOf(uint64_t number) { return TestHash(number, 0); }

TEST(InfiniteCache, MissesWhatWasNeverStored) {
  InfiniteCache infinite;
  infinite.Store(kNamespace, HashOf(1));
  const std::array asked = {HashOf(1), HashOf(2), HashOf(1)};
  infinite.Ask(kNamespace, asked);
  EXPECT_EQ(infinite.misses(), 1u);
}

TEST(InfiniteCache, AskingIsNotStoring) {
  InfiniteCache infinite;
  const std::array asked = {HashOf(1)};
  infinite.Ask(kNamespace, asked);
  infinite.Ask(kNamespace, asked);
  EXPECT_EQ(infinite.misses(), 2u);
}

TEST(InfiniteCache, BlocksOfDifferentSpacesNeverMeet) {
  InfiniteCache infinite;
  infinite.Store(kNamespace, HashOf(1));
  const std::array asked = {HashOf(1)};
  infinite.Ask(NamespaceId(1), asked);
  EXPECT_EQ(infinite.misses(), 1u);
}

TEST(InfiniteCache, IsExactUntilItsBoundIsReached) {
  InfiniteCache infinite(100);
  for (uint64_t i = 0; i < 100; ++i) infinite.Store(kNamespace, HashOf(i));
  EXPECT_EQ(infinite.sampling_shift(), 0u);
  infinite.Store(kNamespace, HashOf(100));
  EXPECT_GE(infinite.sampling_shift(), 1u);
}

TEST(InfiniteCache, EstimatesWhatIsFarBeyondItsBound) {
  constexpr uint64_t kStored = 100'000;
  InfiniteCache infinite(4096);
  for (uint64_t i = 0; i < kStored; ++i) infinite.Store(kNamespace, HashOf(i));
  EXPECT_GE(infinite.sampling_shift(), 4u);
  // A quarter of the blocks asked for was stored.
  for (uint64_t i = 0; i < 4 * kStored; ++i) {
    const std::array asked = {HashOf(i)};
    infinite.Ask(kNamespace, asked);
  }
  EXPECT_NEAR(static_cast<double>(infinite.misses()), 3.0 * kStored, 0.05 * 3 * kStored);
}

TEST(InfiniteCache, HotBlocksDoNotDisturbTheEstimate) {
  InfiniteCache infinite(1024);
  constexpr uint64_t kStored = 100'000;
  for (uint64_t i = 0; i < kStored; ++i) {
    const std::array asked = {HashOf(i), HashOf(0), HashOf(1), HashOf(2)};
    infinite.Ask(kNamespace, asked);
    infinite.Store(kNamespace, HashOf(i));
  }
  // Each block is new once; the hot ones are asked for three times as often.
  EXPECT_NEAR(static_cast<double>(infinite.misses()), kStored, 0.15 * kStored);
}

}  // namespace
}  // namespace kvtier
