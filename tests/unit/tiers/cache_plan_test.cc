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

TEST_F(CachePlanTest, AForecastThatIsBeyondAllTimeIsTheLongestThereIs) {
  StartWithBlocksOnDisk();
  const LoadWish wish{
      .plan = HitPlan::kCut, .tokens = UINT32_MAX, .cost = {.per_pair_us = ComputeCost::kMaxUs}};
  EXPECT_EQ(AcquireAs(wish, Sequence(1, 8)).forecast.ready_us, kLongestForecastUs);
}

}  // namespace
}  // namespace kvtier
