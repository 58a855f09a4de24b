// SPDX-License-Identifier: Apache-2.0
#include "tiers/policy/use_class_policy.h"

#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

#include "tests/model/access_patterns.h"
#include "tests/model/offline_replay.h"
#include "tests/unit/tiers/cache_fixture.h"

namespace kvtier {
namespace {

class UseClassPolicyTest : public ::testing::Test {
 protected:
  void Insert(uint32_t block, uint8_t uses, std::optional<uint32_t> parent = std::nullopt) {
    const BlockFacts facts{.parent = parent ? EntryIndex(*parent) : kNoEntry,
                           .hash = block,
                           .last_use_s = now_s_,
                           .uses = uses};
    policy_->NoteUse(facts);
    policy_->Insert(EntryIndex(block), facts);
  }
  uint32_t Evict() {
    const EntryIndex victim = policy_->Victim();
    policy_->Remove(victim);
    return victim.value;
  }

  uint32_t now_s_ = 1'000'000;
  std::unique_ptr<EvictionPolicy> policy_ = MakeUseClassPolicy([this] { return now_s_; });
};

TEST_F(UseClassPolicyTest, EmptyOrderHasNoVictim) {
  EXPECT_EQ(policy_->Victim(), kNoEntry);
  Insert(1, 1);
  policy_->Remove(EntryIndex(1));
  policy_->Remove(EntryIndex(1));
  EXPECT_EQ(policy_->Victim(), kNoEntry);
  EXPECT_EQ(policy_->size(), 0u);
}

TEST_F(UseClassPolicyTest, UntilItHasLearnedTheLongestIdleGoesFirst) {
  const std::vector<uint8_t> uses = {9, 1, 2, 5, 3};
  for (uint32_t block = 0; block < 5; ++block, now_s_ += 10) Insert(block, uses[block]);
  for (uint32_t block = 0; block < 5; ++block) EXPECT_EQ(Evict(), block);
}

TEST_F(UseClassPolicyTest, OfBlocksOfOneAgeTheLeastUsedGoesFirst) {
  Insert(1, 9);
  Insert(2, 1);
  Insert(3, 3);
  EXPECT_EQ(Evict(), 2u);
  EXPECT_EQ(Evict(), 3u);
  EXPECT_EQ(Evict(), 1u);
}

TEST_F(UseClassPolicyTest, BlockWithChildrenIsPassedOver) {
  Insert(1, 1);
  now_s_ += 100;
  Insert(2, 2, 1);
  Insert(3, 2, 1);
  EXPECT_EQ(Evict(), 2u);
  EXPECT_EQ(Evict(), 3u);
  EXPECT_EQ(Evict(), 1u);
}

TEST_F(UseClassPolicyTest, BlockWithChildrenGoesWhereAllHaveSome) {
  // Neither is colder than what follows it in its own class.
  Insert(1, 1, 2);
  Insert(2, 2, 1);
  EXPECT_EQ(Evict(), 1u);
  EXPECT_EQ(Evict(), 2u);
}

TEST_F(UseClassPolicyTest, MoreChildrenThanAreCountedDoNoHarm) {
  constexpr uint32_t kChildren = 70'000;
  for (uint32_t child = 1; child <= kChildren; ++child) Insert(child, 1, 0);
  Insert(0, 1);
  for (uint32_t i = 0; i < kChildren; ++i) EXPECT_NE(Evict(), 0u);
  EXPECT_EQ(Evict(), 0u);
}

TEST_F(UseClassPolicyTest, LearnsThatBlocksUsedTwiceComeBack) {
  // Every block used twice is used again after a minute, none that was used once.
  uint32_t next = 100;
  for (int request = 0; request < 600; ++request, now_s_ += 10) {
    Insert(next++, 1);
    policy_->NoteRequest();
    const uint32_t again = 1'000'000 + request % 6;
    policy_->Remove(EntryIndex(again));
    Insert(again, 2);
  }
  while (policy_->size() > 0) (void)Evict();
  Insert(1, 2);
  now_s_ += 20;
  Insert(2, 1);
  EXPECT_EQ(Evict(), 2u) << "the younger, which will not come back";
}

TEST_F(UseClassPolicyTest, TakesTenBytesMoreForEachBlockThanLru) {
  constexpr uint32_t kBlocks = 64 * 1024;
  const auto lru = MakeLruPolicy();
  for (uint32_t i = 0; i < kBlocks; ++i) {
    const BlockFacts facts{.parent = i == 0 ? kNoEntry : EntryIndex(i - 1),
                           .hash = i,
                           .last_use_s = now_s_,
                           .uses = static_cast<uint8_t>(1 + i % 20)};
    lru->Insert(EntryIndex(i), facts);
    policy_->Insert(EntryIndex(i), facts);
  }
  // The sample is bounded, whatever the pool.
  constexpr size_t kSampleBytes = 2 * 1024 * 1024;
  EXPECT_LE(policy_->memory_bytes(), lru->memory_bytes() + size_t{10} * kBlocks + kSampleBytes);
}

// --- in the cache ---

class CacheUseClassTest : public CacheTest {
 protected:
  void StartWithClasses(CacheSetup setup) {
    setup.options.pool_eviction = PoolEviction::kClsAlways;
    Start(setup);
  }
  [[nodiscard]] bool InPool(uint64_t stream) const { return Presence(TestHash(stream, 0)).pool; }
  void EvictFrom(uint64_t stream, std::optional<Tier> tier) {
    (void)cache_->Evict({NamespaceId(0), TestHash(stream, 0)}, tier);
    Settle();
  }
  void TakeBlocks(uint32_t count) { EXPECT_EQ(Acquire(kBob, {}, count).new_blocks.size(), count); }
};

TEST_F(CacheUseClassTest, OftenUsedBlockOutlivesYoungerOnes) {
  StartWithClasses({.pool_blocks = 4});
  Put(Sequence(1, 1));
  Use(Sequence(1, 1));
  for (uint64_t stream = 2; stream < 20; ++stream) Put(Sequence(stream, 1));
  EXPECT_TRUE(InPool(1));
}

TEST_F(CacheUseClassTest, SequenceIsEvictedFromItsEnd) {
  StartWithClasses({.pool_blocks = 8});
  Put(Sequence(1, 8));
  Use(Sequence(1, 3));
  TakeBlocks(6);
  const auto present = cache_->Lookup(pool_.id, Sequence(1, 8));
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(present[i].pool, i < 2) << i;
}

TEST_F(CacheUseClassTest, UsesAreKeptWhileHostHasTheBlock) {
  CacheSetup setup{.pool_blocks = 2, .disk_slots = 0};
  // Nothing is chosen before it has to leave.
  setup.options.pool_clean_fraction = 0;
  StartWithClasses(setup);
  Put(Sequence(1, 1));
  Use(Sequence(1, 1));
  EvictFromPool();
  Use(Sequence(1, 1));
  Put(Sequence(2, 1));
  Use(Sequence(2, 1));
  TakeBlocks(1);
  EXPECT_TRUE(InPool(1)) << "used three times, the other twice";
  EXPECT_FALSE(InPool(2));
}

TEST_F(CacheUseClassTest, UsesAreCountedAnewWhenABlockIsComputedAgain) {
  StartWithClasses({.pool_blocks = 2, .disk_slots = 0});
  Put(Sequence(1, 1));
  for (int i = 0; i < 5; ++i) Use(Sequence(1, 1));
  EvictFrom(1, std::nullopt);
  Put(Sequence(1, 1));
  Put(Sequence(2, 1));
  Use(Sequence(2, 1));
  TakeBlocks(1);
  EXPECT_FALSE(InPool(1));
  EXPECT_TRUE(InPool(2));
}

TEST_F(CacheUseClassTest, UsesAreCountedAnewWhenABlockIsReadFromDisk) {
  StartWithClasses({.pool_blocks = 2});
  Put(Sequence(1, 1));
  for (int i = 0; i < 5; ++i) Use(Sequence(1, 1));
  Drain();
  EvictFrom(1, Tier::kPool);
  EvictFrom(1, Tier::kHost);
  Use(Sequence(1, 1));
  Put(Sequence(2, 1));
  Use(Sequence(2, 1));
  TakeBlocks(1);
  EXPECT_FALSE(InPool(1));
  EXPECT_TRUE(InPool(2));
}

// As where a client takes computing for quicker than a read.
TEST_F(CacheUseClassTest, UsesAreCountedAnewWhenABlockThatOnlyTheDiskHasIsComputedAgain) {
  StartWithClasses({.pool_blocks = 2});
  Put(Sequence(1, 1));
  for (int i = 0; i < 5; ++i) Use(Sequence(1, 1));
  Drain();
  EvictFrom(1, Tier::kPool);
  EvictFrom(1, Tier::kHost);
  const BlockHandle block = Acquire(kAlice, {}, 1).new_blocks.front();
  Commit(kAlice, block, TestHash(1, 0));
  Release(kAlice, {block});
  Settle();
  Put(Sequence(2, 1));
  Use(Sequence(2, 1));
  TakeBlocks(1);
  EXPECT_FALSE(InPool(1));
  EXPECT_TRUE(InPool(2));
}

// --- against LRU, on whole traces ---

class UseClassPatternTest : public ::testing::TestWithParam<std::string_view> {};

// Nothing is won where every block is as likely as any other; it must not cost much either.
TEST_P(UseClassPatternTest, HitsNearlyAsMuchAsLruAndDecidesTheSameEachTime) {
  Trace trace = MakeAccessPattern(GetParam(), 1);
  trace.requests.resize(trace.requests.size() / 4);
  OfflineSizes sizes{.pool = 1000, .host = 4000, .eviction = PoolEviction::kLru};
  const OfflineReport lru = ReplayOffline(trace, sizes);
  sizes.eviction = PoolEviction::kCls;
  const OfflineReport cls = ReplayOffline(trace, sizes);
  EXPECT_GE(cls.PoolHitPercent(), 0.97 * lru.PoolHitPercent());
  EXPECT_EQ(ReplayOffline(trace, sizes).hit_tokens, cls.hit_tokens);
}

INSTANTIATE_TEST_SUITE_P(Patterns, UseClassPatternTest, ::testing::ValuesIn(kAccessPatterns),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace kvtier
