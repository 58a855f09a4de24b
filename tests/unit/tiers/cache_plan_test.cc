// SPDX-License-Identifier: Apache-2.0
// Acquires that load only blocks that are worth it, on a disk as slow as the test says.

#include <gmock/gmock.h>

#include <vector>

#include "tests/unit/tiers/cache_fixture.h"
#include "tiers/policy/load_plan.h"

namespace kvtier {
namespace {

using ::testing::Each;
using ::testing::SizeIs;

class CachePlanTest : public CacheTest {
 protected:
  // After a restart sequences 1 to 4, of eight blocks each, are on disk alone.
  void StartWithBlocksOnDisk(CacheSetup setup = {.pool_blocks = 64, .host_slots = 32}) {
    Start(setup);
    for (uint64_t stream = 1; stream <= 4; ++stream) Put(Sequence(stream, 8));
    DrainAndRestart();
  }
  // A wish with costs of computing: so long for each block, however many come before it.
  [[nodiscard]] static LoadWish Wish(HitPlan plan, double ms_per_block, uint32_t tokens = 0) {
    const auto per_token_us = static_cast<float>(ms_per_block * 1000 / kBlockTokens);
    return {.plan = plan, .tokens = tokens, .cost = {.per_token_us = per_token_us}};
  }
  // The reads of the acquire, if there are any, take read_ms together.
  AcquireReply AcquireAs(const LoadWish& wish, const Hashes& hashes, int64_t read_ms = 0,
                         uint32_t new_blocks = 0) {
    std::optional<Result<AcquireReply>> answer;
    cache_->Acquire(AcquireRequest{.session = kAlice,
                                   .pool = pool_.id,
                                   .hashes = hashes,
                                   .new_blocks = new_blocks,
                                   .block_tokens = kBlockTokens,
                                   .wish = wish},
                    [&](Result<AcquireReply> result) { answer.emplace(std::move(result)); });
    while (cache_->Gauges().disk_reads_in_flight == 0 && machine_->loop.RunOne()) {
    }
    machine_->clock.Advance(read_ms);
    Settle();
    if (!answer || !answer->has_value()) {
      ADD_FAILURE() << "refused";
      return {};
    }
    return answer->value();
  }
  // From now on the disk is known to take 5 ms for each block.
  void LearnThatABlockTakes5Ms() {
    EXPECT_THAT(AcquireAs({}, Sequence(4, 8), 40).hits, SizeIs(8));
    EXPECT_GT(cache_->Gauges().disk_read_bytes_per_s, 0u);
  }
  [[nodiscard]] const CacheStats& stats() const { return cache_->stats(); }
};

TEST_F(CachePlanTest, ADiskThatIsNotKnownIsTried) {
  StartWithBlocksOnDisk();
  EXPECT_THAT(AcquireAs(Wish(HitPlan::kCut, 0.01), Sequence(1, 8)).hits, SizeIs(8));
}

TEST_F(CachePlanTest, WhatIsComputedSoonerIsNotServedAndNoMissOfTheCache) {
  StartWithBlocksOnDisk();
  LearnThatABlockTakes5Ms();
  const uint64_t misses = stats().blocks.miss;
  const AcquireReply reply = AcquireAs(Wish(HitPlan::kCut, 1), Sequence(1, 8), 0, 3);
  EXPECT_THAT(reply.hits, SizeIs(0));
  EXPECT_THAT(reply.new_blocks, SizeIs(3));
  EXPECT_EQ(reply.load.value, 0u);
  EXPECT_EQ(reply.miss, MissReason::kSlowerThanComputing);
  EXPECT_EQ(reply.forecast.ready_us, 8000u);
  EXPECT_EQ(stats().blocks.miss, misses);
  EXPECT_EQ(stats().blocks.declined, 8u);
  EXPECT_EQ(stats().tokens.declined, 8u * kBlockTokens);
  EXPECT_EQ(stats().declined_by_reason[static_cast<size_t>(MissReason::kSlowerThanComputing)], 8u);
  for (const BlockHash& hash : Sequence(1, 8)) EXPECT_TRUE(Presence(hash).disk);
}

TEST_F(CachePlanTest, WhatIsLoadedSoonerIsServed) {
  StartWithBlocksOnDisk();
  LearnThatABlockTakes5Ms();
  const AcquireReply reply = AcquireAs(Wish(HitPlan::kCut, 20), Sequence(1, 8));
  EXPECT_THAT(reply.hits, SizeIs(8));
  EXPECT_EQ(reply.miss, MissReason::kNone);
  EXPECT_GE(reply.forecast.load_us, 8 * 5000u);
}

TEST_F(CachePlanTest, WithoutAPlanASlowDiskServesEverything) {
  StartWithBlocksOnDisk();
  LearnThatABlockTakes5Ms();
  LoadWish wish = Wish(HitPlan::kAll, 0.001);
  EXPECT_THAT(AcquireAs(wish, Sequence(1, 8)).hits, SizeIs(8));
}

TEST_F(CachePlanTest, BlocksInThePoolAreServedHoweverSlowTheDiskIs) {
  StartWithBlocksOnDisk();
  LearnThatABlockTakes5Ms();
  EXPECT_THAT(AcquireAs({}, Sequence(1, 3)).hits, SizeIs(3));
  const AcquireReply reply = AcquireAs(Wish(HitPlan::kCut, 1), Sequence(1, 8));
  EXPECT_THAT(reply.hits, SizeIs(3));
  EXPECT_THAT(TiersOf(reply), Each(Tier::kPool));
}

TEST_F(CachePlanTest, WhatIsNotServedStaysYoung) {
  StartWithBlocksOnDisk();
  LearnThatABlockTakes5Ms();
  const BlockHash first = TestHash(1, 0);
  const auto last_use_s = [&] { return cache_->Inspect({pool_.namespace_id, first})->last_use_s; };
  const uint32_t before_s = last_use_s();
  AdvanceAndTick(5000);
  (void)AcquireAs(Wish(HitPlan::kCut, 1), Sequence(1, 8));
  EXPECT_GE(last_use_s(), before_s + 5);
}

TEST_F(CachePlanTest, ADeadlineLeavesOutWhatWouldBeLater) {
  StartWithBlocksOnDisk();
  LearnThatABlockTakes5Ms();
  // A latency of 40 ms, and 5 ms for each block.
  EXPECT_THAT(AcquireAs({.deadline_ms = 67}, Sequence(1, 8), 40).hits, SizeIs(5));
  EXPECT_THAT(AcquireAs({.deadline_ms = 1}, Sequence(2, 8)).hits, SizeIs(0));
  EXPECT_EQ(stats().declined_by_reason[static_cast<size_t>(MissReason::kAfterDeadline)],
            stats().blocks.declined);
}

TEST_F(CachePlanTest, ReadsAheadInTheQueueMakeADiskSlow) {
  StartWithBlocksOnDisk();
  LearnThatABlockTakes5Ms();
  // Alone, its eight blocks would be there in 40 ms and some, and computed in 120.
  const LoadWish wish = Wish(HitPlan::kCut, 15);
  cache_->Acquire(
      {.session = kBob, .pool = pool_.id, .hashes = Sequence(1, 8), .block_tokens = kBlockTokens},
      [](const Result<AcquireReply>&) {});
  cache_->Acquire(
      {.session = kBob, .pool = pool_.id, .hashes = Sequence(2, 8), .block_tokens = kBlockTokens},
      [](const Result<AcquireReply>&) {});
  EXPECT_THAT(AcquireAs(wish, Sequence(3, 8)).hits, SizeIs(0));
  EXPECT_THAT(AcquireAs(wish, Sequence(3, 8)).hits, SizeIs(8)) << "the queue is empty again";
}

TEST_F(CachePlanTest, AGapIsLeftWhereTheHeadIsComputedWhileTheTailLoads) {
  StartWithBlocksOnDisk();
  LearnThatABlockTakes5Ms();
  EXPECT_THAT(AcquireAs({}, Sequence(1, 2)).hits, SizeIs(2));
  const AcquireReply reply = AcquireAs(Wish(HitPlan::kBothEnds, 12), Sequence(1, 8), 20, 1);
  const LoadForecast forecast = reply.forecast;
  ASSERT_GT(forecast.gap_blocks, 0u);
  EXPECT_EQ(forecast.gap_first, 2u);
  EXPECT_EQ(reply.hits.size() + forecast.gap_blocks, 8u);
  EXPECT_EQ(reply.new_blocks.size(), 1 + forecast.gap_blocks);
  EXPECT_TRUE(LastProgress(reply.load).finished);
  EXPECT_EQ(LastProgress(reply.load).ready, reply.hits.size());
  for (size_t i = 0; i < reply.hits.size(); ++i) {
    const size_t block = i < 2 ? i : i + forecast.gap_blocks;
    EXPECT_TRUE(MatchesHash(TestHash(1, block), Bytes(reply.hits[i].handle))) << block;
  }
  // A block that the client computed in the gap is a block like any other.
  for (uint32_t i = 0; i < forecast.gap_blocks; ++i) {
    Commit(kAlice, reply.new_blocks[i], TestHash(1, 2 + i), 2 + i);
  }
  Settle();
  EXPECT_THAT(AcquireAs({}, Sequence(1, 8)).hits, SizeIs(8));
}

TEST_F(CachePlanTest, ALoadThatFailsBehindAGapEndsThePrefixThere) {
  StartWithBlocksOnDisk();
  LearnThatABlockTakes5Ms();
  // Every read fails, and its retry as well.
  file().ScriptReads(std::vector<ReadFault>(16, ReadFault::kEio));
  const AcquireReply reply = AcquireAs(Wish(HitPlan::kBothEnds, 12), Sequence(1, 8), 20);
  ASSERT_GT(reply.forecast.gap_blocks, 0u);
  const LoadProgress progress = LastProgress(reply.load);
  EXPECT_TRUE(progress.finished);
  EXPECT_LT(progress.ready, reply.hits.size());
  EXPECT_EQ(progress.miss, MissReason::kReadError);
}

TEST_F(CachePlanTest, AGapNeverTakesMoreThanThePoolHas) {
  StartWithBlocksOnDisk({.pool_blocks = 16, .host_slots = 32});
  LearnThatABlockTakes5Ms();  // and holds eight of the pool's blocks
  const AcquireReply reply = AcquireAs(Wish(HitPlan::kBothEnds, 12), Sequence(1, 8), 20);
  EXPECT_LE(reply.hits.size() + reply.new_blocks.size(), 8u);
}

TEST_F(CachePlanTest, NoGapIsMadeOfBlocksOnTheirWayThatTakesMoreThanThePoolHas) {
  StartWithBlocksOnDisk({.pool_blocks = 20, .host_slots = 32});
  LearnThatABlockTakes5Ms();  // and holds eight of the pool's blocks
  cache_->Acquire(
      {.session = kBob, .pool = pool_.id, .hashes = Sequence(1, 8), .block_tokens = kBlockTokens},
      [](const Result<AcquireReply>&) {});
  // Loading takes none of the four blocks that are left, computing would.
  const AcquireReply reply = AcquireAs(Wish(HitPlan::kBothEnds, 12), Sequence(1, 8), 20, 4);
  EXPECT_EQ(reply.forecast.gap_blocks, 0u);
  EXPECT_THAT(reply.new_blocks, SizeIs(4));
}

TEST_F(CachePlanTest, AGapWhoseBlocksCannotBeHadIsGivenUpAndNotTheAcquire) {
  StartWithBlocksOnDisk({.pool_blocks = 16, .host_slots = 32});
  LearnThatABlockTakes5Ms();
  // The other blocks can leave the pool only after copies that do not end.
  const Handles written = Store(kBob, Sequence(9, 8));
  machine_->loop.Hold(machine_->device->source());
  Release(kBob, written);
  std::optional<Result<AcquireReply>> answer;
  cache_->Acquire({.session = kAlice,
                   .pool = pool_.id,
                   .hashes = Sequence(1, 8),
                   .block_tokens = kBlockTokens,
                   .wish = Wish(HitPlan::kBothEnds, 12)},
                  [&](Result<AcquireReply> result) { answer.emplace(std::move(result)); });
  AdvanceAndTick(setup_.options.max_wait_ms + 1000);
  ASSERT_TRUE(answer.has_value());
  EXPECT_TRUE(answer->has_value());
  machine_->loop.LetGo(machine_->device->source());
}

TEST_F(CachePlanTest, AForecastThatIsBeyondAllTimeIsTheLongestThereIs) {
  StartWithBlocksOnDisk();
  const LoadWish wish{
      .plan = HitPlan::kCut, .tokens = UINT32_MAX, .cost = {.per_pair_us = ComputeCost::kMaxUs}};
  EXPECT_EQ(AcquireAs(wish, Sequence(1, 8)).forecast.ready_us, kLongestForecastUs);
}

}  // namespace
}  // namespace kvtier
