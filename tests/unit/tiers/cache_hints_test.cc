// SPDX-License-Identifier: Apache-2.0
// Clients' hints about their sequences, and their effect on the tiers.

#include "tests/unit/tiers/cache_fixture.h"

namespace kvtier {
namespace {

class CacheHintsTest : public CacheTest, public ::testing::WithParamInterface<PoolEviction> {
 protected:
  void StartWith(CacheSetup setup) {
    setup.options.pool_eviction = GetParam();
    Start(setup);
  }
  // As Put; the cache learns from the acquire which block follows which.
  void PutLinked(const Hashes& hashes) {
    Put(hashes);
    Use(hashes);
  }
  uint32_t Hint(const Hashes& hashes, SequenceHint hint, int64_t returns_in_ms = 0) {
    const auto taken = cache_->Hint(pool_.id, hashes, hint, returns_in_ms);
    EXPECT_TRUE(taken);
    Settle();
    return taken.value_or(0);
  }
  // The sequence 1 is awaited when host has it and the pool has not; then host turns over.
  void AwaitInHostWhileOthersSink() {
    PutLinked(Sequence(1, 4));
    PutLinked(Sequence(2, 8));
    ASSERT_EQ(InPool(Sequence(1, 4)), 0u);
    Hint(Sequence(1, 4), SequenceHint::kReturns, 60'000);
    for (uint64_t stream = 3; stream < 9; ++stream) Put(Sequence(stream, 8));
  }
  [[nodiscard]] uint32_t InPool(const Hashes& hashes) const {
    uint32_t count = 0;
    for (const BlockHash& hash : hashes) count += Presence(hash).pool;
    return count;
  }
};

TEST_P(CacheHintsTest, AClosedSequenceLeavesThePoolBeforeOlderOnes) {
  StartWith({.pool_blocks = 16, .host_slots = 16});
  PutLinked(Sequence(1, 6));
  PutLinked(Sequence(2, 6));
  EXPECT_EQ(Hint(Sequence(2, 6), SequenceHint::kClosed), 6u);
  PutLinked(Sequence(3, 6));
  EXPECT_EQ(InPool(Sequence(1, 6)), 6u);
  EXPECT_LT(InPool(Sequence(2, 6)), 6u);
}

TEST_P(CacheHintsTest, AHintGivenWhileTheBlocksAreHeldCountsFromTheirRelease) {
  StartWith({.pool_blocks = 16, .host_slots = 16});
  PutLinked(Sequence(1, 6));
  Handles held = Store(kAlice, Sequence(2, 6));
  EXPECT_EQ(Hint(Sequence(2, 6), SequenceHint::kClosed), 6u);
  Release(kAlice, held);
  Settle();
  PutLinked(Sequence(3, 6));
  EXPECT_EQ(InPool(Sequence(1, 6)), 6u);
  EXPECT_LT(InPool(Sequence(2, 6)), 6u);
  // Its start leaves last.
  EXPECT_GE(Presence(TestHash(2, 0)).pool, Presence(TestHash(2, 5)).pool);
}

TEST_P(CacheHintsTest, AClosedSequenceIsCopiedNeitherToHostNorToDisk) {
  StartWith({});
  PutLinked(Sequence(1, 4));
  Hint(Sequence(1, 4), SequenceHint::kClosed);
  EXPECT_EQ(cache_->Gauges().unpersisted_blocks, 0u);
  Drain();
  EvictFromPool();
  for (const BlockHash& hash : Sequence(1, 4)) {
    EXPECT_FALSE(Presence(hash).pool || Presence(hash).host || Presence(hash).disk);
  }
}

TEST_P(CacheHintsTest, APinnedBlockIsKeptAndWrittenWhateverIsSaidOfIt) {
  StartWith({});
  PutLinked(Sequence(1, 2));
  EXPECT_EQ(cache_->Pin(kAlice, pool_.id, Sequence(1, 2), 60'000), 2u);
  Hint(Sequence(1, 2), SequenceHint::kClosed);
  Drain();
  EvictFromPool();
  for (const BlockHash& hash : Sequence(1, 2)) EXPECT_TRUE(Presence(hash).disk);
}

TEST_P(CacheHintsTest, WhatOtherSequencesGoOnFromStaysWhereItsUsesPutIt) {
  StartWith({.pool_blocks = 16, .host_slots = 16});
  Hashes other = Sequence(1, 3);
  other.push_back(TestHash(7, 3));
  PutLinked(Sequence(1, 6));
  PutLinked(other);
  EXPECT_EQ(Hint(Sequence(1, 6), SequenceHint::kClosed), 3u);
  PutLinked(Sequence(3, 8));
  EXPECT_EQ(InPool(other), 4u);
}

TEST_P(CacheHintsTest, AUseDisprovesClosedButNotOnce) {
  StartWith({});
  PutLinked(Sequence(1, 2));
  PutLinked(Sequence(2, 2));
  Hint(Sequence(1, 2), SequenceHint::kClosed);
  Hint(Sequence(2, 2), SequenceHint::kOnce);
  EXPECT_EQ(cache_->Gauges().unpersisted_blocks, 0u);
  Use(Sequence(1, 2));
  Use(Sequence(2, 2));
  EXPECT_EQ(cache_->Gauges().unpersisted_blocks, 2u);
  Drain();
  EXPECT_TRUE(Presence(TestHash(1, 1)).disk);
  EXPECT_FALSE(Presence(TestHash(2, 1)).disk);
}

TEST_P(CacheHintsTest, ASequenceThatIsContinuedAfterAllIsWorthKeepingAgain) {
  StartWith({});
  PutLinked(Sequence(1, 2));
  Hint(Sequence(1, 2), SequenceHint::kOnce);
  PutLinked(Sequence(1, 3));
  Drain();
  for (const BlockHash& hash : Sequence(1, 3)) EXPECT_TRUE(Presence(hash).disk);
}

TEST_P(CacheHintsTest, AnAwaitedSequenceIsPassedOverUntilItsTime) {
  StartWith({.pool_blocks = 16, .host_slots = 16, .disk_slots = 64});
  PutLinked(Sequence(1, 4));
  EXPECT_EQ(Hint(Sequence(1, 4), SequenceHint::kReturns, 5'000), 4u);
  for (uint64_t stream = 2; stream < 6; ++stream) Put(Sequence(stream, 8));
  EXPECT_EQ(InPool(Sequence(1, 4)), 4u);
  AdvanceAndTick(6'000);
  for (uint64_t stream = 6; stream < 10; ++stream) Put(Sequence(stream, 8));
  EXPECT_EQ(InPool(Sequence(1, 4)), 0u);
}

TEST_P(CacheHintsTest, WhereAllIsAwaitedThePoolEvictsNevertheless) {
  StartWith({.pool_blocks = 16, .host_slots = 16, .disk_slots = 64});
  PutLinked(Sequence(1, 8));
  PutLinked(Sequence(2, 8));
  Hint(Sequence(1, 8), SequenceHint::kReturns, 60'000);
  Hint(Sequence(2, 8), SequenceHint::kReturns, 60'000);
  PutLinked(Sequence(3, 8));
  EXPECT_EQ(InPool(Sequence(3, 8)), 8u);
}

TEST_P(CacheHintsTest, HostSparesAwaitedBlocksOfItsOnlyTenant) {
  StartWith({.pool_blocks = 8, .host_slots = 16, .disk_slots = 64});
  AwaitInHostWhileOthersSink();
  for (const BlockHash& hash : Sequence(1, 4)) EXPECT_TRUE(Presence(hash).host);
}

TEST_P(CacheHintsTest, WhereAllInHostIsAwaitedItGivesWayToOthersNevertheless) {
  CacheSetup setup{.pool_blocks = 24, .host_slots = 8, .disk_slots = 64};
  setup.options.host_clean_fraction = 0;
  StartWith(setup);
  PutLinked(Sequence(1, 8));
  Drain();
  for (const BlockHash& hash : Sequence(1, 8)) ASSERT_TRUE(Presence(hash).host);
  Hint(Sequence(1, 8), SequenceHint::kReturns, 60'000);
  PutLinked(Sequence(2, 8));
  Drain();
  EXPECT_EQ(Drops(Tier::kHost, DropReason::kHostFull), 0u);
  for (const BlockHash& hash : Sequence(2, 8)) EXPECT_TRUE(Presence(hash).disk);
}

TEST_P(CacheHintsTest, HostSparesNothingWhereAnotherTenantWouldPayForIt) {
  StartWith({.devices = 2, .pool_blocks = 8, .host_slots = 16, .disk_slots = 64});
  // Without quotas, both stand in one order.
  ASSERT_TRUE(cache_->AttachPool(Identity("other", 1), 0, DeviceIndex(1)));
  AwaitInHostWhileOthersSink();
  for (const BlockHash& hash : Sequence(1, 4)) EXPECT_FALSE(Presence(hash).host);
}

TEST_P(CacheHintsTest, UnknownBlocksAndPoolsTakeNoHint) {
  StartWith({});
  EXPECT_EQ(Hint(Sequence(1, 2), SequenceHint::kClosed), 0u);
  EXPECT_EQ(cache_->Hint(PoolId(99), Sequence(1, 2), SequenceHint::kOnce, 0).error().reason,
            "unknown_pool");
}

INSTANTIATE_TEST_SUITE_P(Policies, CacheHintsTest,
                         ::testing::Values(PoolEviction::kLru, PoolEviction::kClsAlways),
                         [](const auto& info) {
                           return info.param == PoolEviction::kLru ? "Lru" : "Cls";
                         });

}  // namespace
}  // namespace kvtier
