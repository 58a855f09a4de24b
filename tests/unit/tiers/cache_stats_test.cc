// SPDX-License-Identifier: Apache-2.0
// Counters and gauges add up.

#include <numeric>
#include <set>
#include <string_view>

#include "tests/unit/tiers/cache_fixture.h"

namespace kvtier {
namespace {

class CacheStatsTest : public CacheTest {
 protected:
  void ExpectSums() {
    const CacheStats& stats = cache_->stats();
    const uint64_t hits = stats.blocks.hit[0] + stats.blocks.hit[1] + stats.blocks.hit[2];
    EXPECT_EQ(stats.blocks.asked, hits + stats.blocks.miss);
    const uint64_t tokens = stats.tokens.hit[0] + stats.tokens.hit[1] + stats.tokens.hit[2];
    EXPECT_EQ(stats.tokens.asked, tokens + stats.tokens.miss);
    CacheStats::AskedOf sums;
    for (const CacheStats::AskedOf& asked : stats.of_namespaces) {
      sums.blocks.Add(asked.blocks);
      sums.tokens.Add(asked.tokens);
    }
    EXPECT_EQ(sums.blocks, stats.blocks);
    EXPECT_EQ(sums.tokens, stats.tokens);
    const CacheGauges gauges = cache_->Gauges();
    uint64_t used = 0;
    for (const PoolGauges& pool : gauges.pools) {
      EXPECT_EQ(pool.blocks, pool.free + pool.private_blocks + pool.referenced + pool.cached +
                                 pool.loading + pool.quarantined);
      used += pool.blocks * pool.block_bytes;
    }
    EXPECT_EQ(gauges.pool_used_bytes, used);
    EXPECT_LE(gauges.pool_used_bytes, gauges.pool_capacity_bytes);
    EXPECT_LE(gauges.host_used_bytes, gauges.host_capacity_bytes);
    EXPECT_LE(gauges.disk_used_bytes, gauges.disk_capacity_bytes);
    EXPECT_LE(gauges.disk_persisted, gauges.disk_blocks);
  }
};

TEST_F(CacheStatsTest, EverythingStartsAtZero) {
  Start();
  EXPECT_EQ(cache_->stats().blocks.asked, 0u);
  EXPECT_EQ(cache_->Gauges().entries, 0u);
  ExpectSums();
}

TEST_F(CacheStatsTest, EveryBlockAskedForIsCountedOnceByTier) {
  Start({.pool_blocks = 8, .host_slots = 8, .disk_slots = 32});
  for (uint64_t stream = 1; stream <= 5; ++stream) Put(Sequence(stream, 4));
  const CacheStats before = cache_->stats();
  for (const uint64_t stream : {1, 2, 3, 4, 5, 6, 5}) {
    const AcquireReply reply = Acquire(kAlice, Sequence(stream, 4));
    Release(kAlice, HandlesOf(reply));
    Settle();
    ExpectSums();
  }
  const CacheStats& after = cache_->stats();
  EXPECT_EQ(after.blocks.asked - before.blocks.asked, 28u);
  EXPECT_GT(after.blocks.hit[0], before.blocks.hit[0]);
  EXPECT_GT(after.blocks.hit[2], before.blocks.hit[2]);
  EXPECT_EQ(after.blocks.miss - before.blocks.miss, 4u);
  EXPECT_EQ(after.acquires - before.acquires, 7u);
}

TEST_F(CacheStatsTest, BlockWhoseLoadFailsCountsAsAMiss) {
  Start();
  Put(Sequence(1, 4));
  DrainAndRestart();
  file().SetFaultRates({.read_eio = 1.0});
  (void)Acquire(kAlice, Sequence(1, 4));
  EXPECT_EQ(cache_->stats().blocks.asked, 4u);
  EXPECT_EQ(cache_->stats().blocks.miss, 4u);
  EXPECT_GE(Misses(MissReason::kReadError), 1u);
  ExpectSums();
}

TEST_F(CacheStatsTest, GaugesFollowABlockThroughItsStates) {
  Start({.pool_blocks = 4});
  const BlockHandle block = Acquire(kAlice, {}, 1).new_blocks.front();
  EXPECT_EQ(PoolGaugesNow().private_blocks, 1u);
  Commit(kAlice, block, TestHash(1, 0));
  EXPECT_EQ(PoolGaugesNow().referenced, 1u);
  EXPECT_EQ(cache_->Gauges().references, 1u);
  EXPECT_EQ(cache_->Gauges().entries, 1u);
  Release(kAlice, {block});
  EXPECT_EQ(PoolGaugesNow().cached, 1u);
  ExpectSums();
}

TEST_F(CacheStatsTest, LoadingBlocksAreShownUntilTheyArrive) {
  Start();
  Put(Sequence(1, 3));
  DrainAndRestart();
  const PendingAcquire answer = BeginAcquire(kAlice, Sequence(1, 3));
  EXPECT_EQ(PoolGaugesNow().loading, 3u);
  EXPECT_EQ(cache_->Gauges().loads_in_flight, 3u);
  ExpectSums();
  Settle();
  EXPECT_EQ(PoolGaugesNow().loading, 0u);
  EXPECT_EQ(PoolGaugesNow().referenced, 3u);
  EXPECT_EQ(cache_->Gauges().loads_in_flight, 0u);
}

TEST_F(CacheStatsTest, OffloadsAndOnloadsAreCountedInBlocksAndBytes) {
  Start({.pool_blocks = 4});
  Put(Sequence(1, 4));
  EvictFromPool();
  EXPECT_EQ(cache_->stats().offload_blocks, 4u);
  EXPECT_EQ(cache_->stats().offload_bytes, 4 * kBlockBytes);
  Use(Sequence(1, 4));
  EXPECT_EQ(cache_->stats().onload_blocks, 4u);
  EXPECT_EQ(cache_->stats().onload_bytes, 4 * kBlockBytes);
}

TEST_F(CacheStatsTest, TokensAreCountedLikeTheirBlocks) {
  Start();
  Put(Sequence(1, 3));
  const BlockHash partial_block = TestHash(1, 99);
  const BlockHandle block = Acquire(kAlice, {}, 1).new_blocks.front();
  ASSERT_TRUE(TryCommit(kAlice, block, {.hash = partial_block, .tokens = 5}));
  Release(kAlice, {block});
  const CacheStats::Asked before = cache_->stats().tokens;
  Release(kAlice, HandlesOf(Acquire(kAlice, Sequence(1, 3), 0, {partial_block})));
  Release(kAlice, HandlesOf(Acquire(kAlice, Sequence(1, 5))));
  const CacheStats::Asked& after = cache_->stats().tokens;
  EXPECT_EQ(after.hit[0] - before.hit[0], 6u * kBlockTokens + 5);
  EXPECT_EQ(after.miss - before.miss, 2u * kBlockTokens);
  ExpectSums();
}

TEST_F(CacheStatsTest, ResidenceEndsWhenABlockLeavesItsTier) {
  Start({.pool_blocks = 4});
  Put(Sequence(1, 4));
  AdvanceAndTick(30'000);
  EvictFromPool();
  const BlockAgeHistogram& pool = cache_->stats().residence[0];
  // The blocks that pushed the four out are still there.
  EXPECT_EQ(std::accumulate(pool.counts().begin(), pool.counts().end(), uint64_t{0}), 4u);
  EXPECT_EQ(pool.sum_us(), 4u * 30'000'000);
}

TEST_F(CacheStatsTest, ReuseGapIsTheTimeBetweenTwoUses) {
  Start();
  Put(Sequence(1, 2));
  const uint64_t before_us = cache_->stats().reuse_gap.sum_us();
  AdvanceAndTick(100'000);
  Use(Sequence(1, 2));
  EXPECT_EQ(cache_->stats().reuse_gap.sum_us() - before_us, 2u * 100'000'000);
}

TEST_F(CacheStatsTest, CopiesAreTimedWhileTheyAreUnderWay) {
  Start({.pool_blocks = 4});
  Put(Sequence(1, 4));
  DrainAndRestart();
  (void)BeginAcquire(kAlice, Sequence(1, 4));
  machine_->clock.Advance(250);
  Settle();
  EXPECT_EQ(cache_->stats().Lane(CopyLane::kDiskToHost).busy_ms(), 250u);
  EXPECT_EQ(cache_->stats().Lane(CopyLane::kPoolToHost).busy_ms(), 0u);
  for (const CopyMeter& lane : cache_->stats().lanes) EXPECT_EQ(lane.under_way(), 0u);
}

TEST_F(CacheStatsTest, InfiniteCacheWouldHitWhatThisOneHasForgotten) {
  Start({.pool_blocks = 4, .host_slots = 8, .disk_slots = 0});
  for (uint64_t stream = 1; stream <= 20; ++stream) Put(Sequence(stream, 4));
  const CacheGauges before = cache_->Gauges();
  const uint64_t misses_before = cache_->stats().blocks.miss;
  (void)Acquire(kAlice, Sequence(1, 4));
  const CacheGauges after = cache_->Gauges();
  EXPECT_EQ(cache_->stats().blocks.miss - misses_before, 4u);
  EXPECT_EQ(after.infinite_missed_blocks, before.infinite_missed_blocks);
}

TEST_F(CacheStatsTest, InfiniteCacheKnowsWhatTheDiskKept) {
  Start();
  Put(Sequence(1, 4));
  DrainAndRestart();
  (void)Acquire(kAlice, Sequence(1, 4));
  EXPECT_EQ(cache_->Gauges().infinite_missed_blocks, 0u);
  (void)TryAcquire(kAlice, Sequence(2, 3));
  EXPECT_EQ(cache_->Gauges().infinite_missed_blocks, 3u);
}

TEST_F(CacheStatsTest, NamesOfReasonsAreDistinct) {
  std::vector<std::string_view> names;
  for (int i = 0; i < kMissReasonCount; ++i) {
    names.push_back(MissReasonName(static_cast<MissReason>(i)));
  }
  EXPECT_THAT(names, ::testing::Each(::testing::Not(::testing::IsEmpty())));
  EXPECT_EQ(std::set<std::string_view>(names.begin(), names.end()).size(), names.size());
  names.clear();
  for (int i = 0; i < kDropReasonCount; ++i) {
    names.push_back(DropReasonName(static_cast<DropReason>(i)));
  }
  EXPECT_THAT(names, ::testing::Each(::testing::Not(::testing::IsEmpty())));
  EXPECT_EQ(std::set<std::string_view>(names.begin(), names.end()).size(), names.size());
  EXPECT_EQ(DropReasonName(static_cast<DropReason>(kDropReasonCount)), "unknown")
      << "kDropReasonCount is behind: metrics and inspect would not name the last reason";
}

TEST_F(CacheStatsTest, BlockThatIsComputedAnewWhileItWaitsForItsWriteIsCountedOnce) {
  CacheSetup setup;
  setup.options.max_disk_write_bytes = 1;  // one write at a time
  Start(setup);
  Put(Sequence(1, 2));
  machine_->loop.Hold(file().source());
  cache_->Drain([] {});
  Settle();
  EvictFromPool();
  const Handles blocks = Acquire(kAlice, {}, 2).new_blocks;
  const uint64_t before = cache_->Gauges().unpersisted_blocks;
  Commit(kAlice, blocks[0], TestHash(1, 0), 0);
  Commit(kAlice, blocks[1], TestHash(1, 1), 1);
  EXPECT_EQ(cache_->Gauges().unpersisted_blocks, before);
  machine_->loop.LetGo(file().source());
  Settle();
}

}  // namespace
}  // namespace kvtier
