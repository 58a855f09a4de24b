// SPDX-License-Identifier: Apache-2.0
// The blocks that an acquire finds, takes and leaves alone.

#include "tests/unit/tiers/cache_fixture.h"

namespace kvtier {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Field;

class CacheAcquireTest : public CacheTest {};

TEST_F(CacheAcquireTest, PrefixStopsAtTheFirstMiss) {
  Start();
  Hashes hashes = Sequence(1, 5);
  Put(hashes);
  hashes[2] = TestHash(9, 9);
  const AcquireReply reply = Acquire(kAlice, hashes);
  EXPECT_EQ(reply.hits.size(), 2u);
  EXPECT_EQ(reply.miss, MissReason::kUnknown);
}

TEST_F(CacheAcquireTest, BlocksAfterTheFirstMissAreNotReferenced) {
  Start();
  Hashes hashes = Sequence(1, 5);
  Put(hashes);
  hashes[2] = TestHash(9, 9);
  (void)Acquire(kAlice, hashes);
  EXPECT_EQ(PoolGaugesNow().referenced, 2u);
  EXPECT_EQ(PoolGaugesNow().cached, 3u);
}

TEST_F(CacheAcquireTest, TailsAreTriedTheLongestFirst) {
  Start();
  Put(Sequence(1, 2));
  Put({TestHash(2, 0)});
  Put({TestHash(2, 1)});
  const AcquireReply reply =
      Acquire(kBob, Sequence(1, 2), 0, {TestHash(2, 7), TestHash(2, 1), TestHash(2, 0)});
  EXPECT_EQ(reply.hits.size(), 3u);
  EXPECT_EQ(reply.partial_block, 1u);
  EXPECT_TRUE(MatchesHash(TestHash(2, 1), Bytes(reply.hits.back().handle)));
}

TEST_F(CacheAcquireTest, TailIsNotTakenWhenAFullBlockIsMissing) {
  Start();
  Put(Sequence(1, 2));
  Put({TestHash(2, 0)});
  const AcquireReply reply = Acquire(kBob, Sequence(1, 3), 0, {TestHash(2, 0)});
  EXPECT_EQ(reply.hits.size(), 2u);
  EXPECT_FALSE(reply.partial_block.has_value());
}

TEST_F(CacheAcquireTest, TailAloneIsServed) {
  Start();
  Put({TestHash(2, 0)});
  const AcquireReply reply = Acquire(kBob, {}, 1, {TestHash(2, 0)});
  EXPECT_EQ(reply.partial_block, 0u);
  EXPECT_EQ(reply.hits.size(), 1u);
  EXPECT_EQ(reply.new_blocks.size(), 1u);
}

TEST_F(CacheAcquireTest, PrivateBlocksAreAllGivenOrNone) {
  Start({.pool_blocks = 4});
  (void)Store(kAlice, Sequence(1, 2));
  const PendingAcquire answer = BeginAcquire(kBob, {}, 3);
  Settle();
  AdvanceAndTick(setup_.options.max_wait_ms + 1);
  ASSERT_TRUE(answer.answered());
  EXPECT_THAT(answer.result(), IsErrorOf(ErrorCode::kResourceExhausted, "pool_full"));
  EXPECT_EQ(PoolGaugesNow().free, 2u);
}

TEST_F(CacheAcquireTest, MoreBlocksThanThePoolHasIsRefused) {
  Start({.pool_blocks = 4});
  const PendingAcquire answer = BeginAcquire(kAlice, {}, 5);
  Settle();
  AdvanceAndTick(setup_.options.max_wait_ms + 1);
  ASSERT_TRUE(answer.answered());
  EXPECT_THAT(answer.result(), IsErrorOf(ErrorCode::kResourceExhausted, "pool_full"));
}

TEST_F(CacheAcquireTest, AbsurdBlockCountIsRefused) {
  Start();
  const PendingAcquire answer = BeginAcquire(kAlice, {}, UINT32_MAX);
  Settle();
  AdvanceAndTick(setup_.options.max_wait_ms + 1);
  ASSERT_TRUE(answer.answered());
  EXPECT_FALSE(answer.succeeded());
}

TEST_F(CacheAcquireTest, NothingAskedIsNothingGiven) {
  Start();
  const AcquireReply reply = Acquire(kAlice, {});
  EXPECT_TRUE(reply.hits.empty());
  EXPECT_EQ(reply.miss, MissReason::kNone);
}

TEST_F(CacheAcquireTest, ClosedSessionIsRefused) {
  Start();
  cache_->CloseSession(kBob);
  EXPECT_FALSE(TryAcquire(kBob, {}, 1));
}

TEST_F(CacheAcquireTest, UnknownPoolIsRefused) {
  Start();
  pool_.id = PoolId(99);
  EXPECT_FALSE(TryAcquire(kAlice, {}, 1));
}

TEST_F(CacheAcquireTest, HashAskedForTwiceIsReferencedTwice) {
  Start();
  Put(Sequence(1, 1));
  const AcquireReply reply = Acquire(kAlice, {TestHash(1, 0), TestHash(1, 0)});
  ASSERT_EQ(reply.hits.size(), 2u);
  EXPECT_EQ(reply.hits[0].handle, reply.hits[1].handle);
  Release(kAlice, HandlesOf(reply));
  EXPECT_EQ(PoolGaugesNow().cached, 1u);
}

TEST_F(CacheAcquireTest, HitsBelowThePoolNeedRoomForTheirLoad) {
  Start({.pool_blocks = 4});
  Put(Sequence(1, 3));
  EvictFromPool();
  const Handles held = Acquire(kBob, {}, 2).new_blocks;
  const PendingAcquire answer = BeginAcquire(kAlice, Sequence(1, 3));
  Settle();
  AdvanceAndTick(setup_.options.max_wait_ms + 1);
  ASSERT_TRUE(answer.succeeded());
  EXPECT_EQ(answer.reply().hits.size(), 2u);
  EXPECT_EQ(answer.reply().miss, MissReason::kPoolFull);
}

TEST_F(CacheAcquireTest, PrivateBlocksHavePrecedenceOverLoads) {
  Start({.pool_blocks = 4});
  Put(Sequence(1, 4));
  EvictFromPool();
  const PendingAcquire answer = BeginAcquire(kAlice, Sequence(1, 4), 2);
  Settle();
  AdvanceAndTick(setup_.options.max_wait_ms + 1);
  ASSERT_TRUE(answer.succeeded());
  EXPECT_EQ(answer.reply().new_blocks.size(), 2u);
  EXPECT_EQ(answer.reply().hits.size(), 2u);
}

TEST_F(CacheAcquireTest, WaitingAcquireSucceedsWhenOffloadsFreeBlocks) {
  Start({.pool_blocks = 4});
  machine_->loop.Hold(machine_->device->source());
  Put(Sequence(1, 4));
  const PendingAcquire answer = BeginAcquire(kBob, {}, 4);
  Settle();
  EXPECT_FALSE(answer.answered());
  EXPECT_EQ(cache_->Gauges().acquires_waiting, 1u);
  machine_->loop.LetGo(machine_->device->source());
  Settle();
  ASSERT_TRUE(answer.answered());
  EXPECT_TRUE(answer.succeeded());
  EXPECT_EQ(cache_->stats().acquires_waited, 1u);
  for (const BlockHash& hash : Sequence(1, 4)) EXPECT_TRUE(Presence(hash).host);
}

TEST_F(CacheAcquireTest, OffloadsThatAnAcquireWaitsForAreNotHeldBack) {
  Start({.devices = 2, .pool_blocks = 4});
  const auto awaited = [&](uint32_t device) {
    return machine_->devices[device]->background_awaited();
  };
  machine_->loop.Hold(machine_->device->source());
  Put(Sequence(1, 4));
  EXPECT_FALSE(awaited(0)) << "what is copied ahead of need has time";
  const PendingAcquire answer = BeginAcquire(kBob, {}, 4);
  EXPECT_FALSE(answer.answered());
  EXPECT_TRUE(awaited(0));
  EXPECT_FALSE(awaited(1));
  machine_->loop.LetGo(machine_->device->source());
  Settle();
  EXPECT_TRUE(answer.succeeded());
  EXPECT_FALSE(awaited(0));
}

TEST_F(CacheAcquireTest, NobodyIsHurriedForASessionThatHasEnded) {
  Start({.pool_blocks = 4});
  machine_->loop.Hold(machine_->device->source());
  Put(Sequence(1, 4));
  (void)BeginAcquire(kBob, {}, 4);
  ASSERT_TRUE(machine_->device->background_awaited());
  cache_->CloseSession(kBob);
  EXPECT_FALSE(machine_->device->background_awaited());
  machine_->loop.LetGo(machine_->device->source());
  Settle();
}

TEST_F(CacheAcquireTest, WaitingAcquireDropsDirtyBlocksAfterItsTime) {
  Start({.pool_blocks = 4, .host_slots = 0, .disk_slots = 0});
  Put(Sequence(1, 4));
  const PendingAcquire answer = BeginAcquire(kBob, {}, 2);
  Settle();
  if (!answer.answered()) AdvanceAndTick(setup_.options.max_wait_ms + 1);
  ASSERT_TRUE(answer.succeeded());
  EXPECT_EQ(answer.reply().new_blocks.size(), 2u);
  EXPECT_TRUE(Presence(TestHash(1, 0)).pool);
  EXPECT_FALSE(Presence(TestHash(1, 3)).anywhere());
}

TEST_F(CacheAcquireTest, DirtyBlocksDroppedUnderPressureAreCounted) {
  Start({.pool_blocks = 4});
  machine_->loop.Hold(machine_->device->source());
  Put(Sequence(1, 4));
  const PendingAcquire answer = BeginAcquire(kBob, {}, 2);
  Settle();
  EXPECT_FALSE(answer.answered());
  AdvanceAndTick(setup_.options.max_wait_ms + 1);
  ASSERT_TRUE(answer.answered());
  EXPECT_GE(Drops(Tier::kPool, DropReason::kPoolPressure), 1u);
}

TEST_F(CacheAcquireTest, AcquireIsAnsweredInTimeWhenTheDeviceHangs) {
  Start({.pool_blocks = 4});
  machine_->loop.Hold(machine_->device->source());
  Put(Sequence(1, 4));
  const PendingAcquire answer = BeginAcquire(kBob, {}, 4);
  Settle();
  AdvanceAndTick(setup_.options.max_wait_ms + 1);
  ASSERT_TRUE(answer.answered());
  EXPECT_THAT(answer.result(), IsErrorOf(ErrorCode::kResourceExhausted, "pool_full"));
  machine_->loop.LetGo(machine_->device->source());
  Settle();
}

TEST_F(CacheAcquireTest, NobodyOvertakesAWaitingAcquire) {
  Start({.pool_blocks = 4});
  machine_->loop.Hold(machine_->device->source());
  Put(Sequence(1, 3));
  const PendingAcquire first = BeginAcquire(kBob, {}, 3);
  const PendingAcquire second = BeginAcquire(kBob, {}, 1);
  Settle();
  EXPECT_FALSE(first.answered());
  EXPECT_FALSE(second.answered()) << "one block is free, but the first in line wants it";
  machine_->loop.LetGo(machine_->device->source());
  Settle();
  EXPECT_TRUE(first.succeeded());
  EXPECT_TRUE(second.succeeded());
}

TEST_F(CacheAcquireTest, ResidentHitsAreServedPastAWaitingAcquire) {
  Start({.pool_blocks = 4});
  (void)Store(kAlice, Sequence(1, 1));
  machine_->loop.Hold(machine_->device->source());
  Put(Sequence(2, 3));
  const PendingAcquire waiting = BeginAcquire(kBob, {}, 3);
  const PendingAcquire resident = BeginAcquire(kBob, Sequence(1, 1));
  EXPECT_FALSE(waiting.answered());
  EXPECT_TRUE(resident.succeeded());
  machine_->loop.LetGo(machine_->device->source());
  Settle();
  EXPECT_TRUE(waiting.succeeded());
}

// Its load had been counted among the blocks that the acquire needs, and a part of these was asked
// for again and again.
TEST_F(CacheAcquireTest, AHitThatAnotherBringsIntoThePoolBetweenTwoPartsNeedsNoRoom) {
  CacheSetup setup{.pool_blocks = 8};
  setup.options.acquire_part_blocks = 2;
  Start(setup);
  Put(Sequence(1, 3));
  EvictFromPool();
  const Handles mine = Acquire(kAlice, {}, 1).new_blocks;
  machine_->loop.Hold(machine_->device->source());
  Put(Sequence(2, 5));
  const PendingAcquire answer = BeginAcquire(kBob, Sequence(1, 3), 4);
  Settle();
  ASSERT_FALSE(answer.answered()) << "two loads have begun, and there is no room for more";
  Commit(kAlice, mine[0], TestHash(1, 2), 2);
  machine_->loop.LetGo(machine_->device->source());
  Settle();
  ASSERT_TRUE(answer.succeeded());
  EXPECT_THAT(TiersOf(answer.reply()), ElementsAre(Tier::kHost, Tier::kHost, Tier::kPool));
  EXPECT_EQ(answer.reply().new_blocks.size(), 4u);
}

TEST_F(CacheAcquireTest, BlocksInUseByOthersAreNotWaitedFor) {
  Start({.pool_blocks = 4});
  (void)Acquire(kAlice, {}, 3);
  const PendingAcquire answer = BeginAcquire(kBob, {}, 2);
  ASSERT_TRUE(answer.answered());
  EXPECT_THAT(answer.result(), IsErrorOf(ErrorCode::kResourceExhausted, "pool_full"));
  EXPECT_EQ(cache_->stats().acquires_refused, 1u);
}

TEST_F(CacheAcquireTest, WaitingAcquireIsCancelledWhenItsSessionCloses) {
  Start({.pool_blocks = 2});
  machine_->loop.Hold(machine_->device->source());
  Put(Sequence(1, 2));
  const PendingAcquire answer = BeginAcquire(kBob, {}, 1);
  ASSERT_FALSE(answer.answered());
  cache_->CloseSession(kBob);
  ASSERT_TRUE(answer.answered());
  EXPECT_THAT(answer.result(), IsErrorOf(ErrorCode::kCancelled, "session_closed"));
  machine_->loop.LetGo(machine_->device->source());
  Settle();
  EXPECT_EQ(PoolGaugesNow().private_blocks, 0u);
}

TEST_F(CacheAcquireTest, HitsOfAWaitingAcquireAreNotEvictedMeanwhile) {
  Start({.pool_blocks = 6});
  Put(Sequence(1, 2));
  machine_->loop.Hold(machine_->device->source());
  Put(Sequence(2, 4));
  const PendingAcquire answer = BeginAcquire(kBob, Sequence(1, 2), 2);
  ASSERT_FALSE(answer.answered());
  AdvanceAndTick(setup_.options.max_wait_ms + 1);
  ASSERT_TRUE(answer.succeeded());
  EXPECT_THAT(TiersOf(answer.reply()), ElementsAre(Tier::kPool, Tier::kPool));
  machine_->loop.LetGo(machine_->device->source());
  Settle();
}

// The walk looks for a block behind the one before it, where it stands if it was committed next.
TEST_F(CacheAcquireTest, APrefixIsFoundInWhateverOrderItsBlocksWereCommitted) {
  Start();
  const Hashes all = Sequence(1, 6);
  Put({all[3], all[4]});
  Put({all[5], all[0]});
  Put({all[2], all[1]});
  EXPECT_EQ(Acquire(kAlice, all).hits.size(), 6u);
  const Hashes other = {all[3], all[4], Sequence(2, 1)[0], all[5]};
  EXPECT_EQ(Acquire(kBob, other).hits.size(), 2u);
}

TEST_F(CacheAcquireTest, AReusedRowIsNotTakenForTheNextBlock) {
  Start();
  const Hashes all = Sequence(1, 3);
  Put(all);
  EXPECT_EQ(cache_->Evict({NamespaceId(0), all[1]}, std::nullopt), EvictOutcome::kEvicted);
  Settle();
  EXPECT_EQ(Acquire(kAlice, all).hits.size(), 1u);
}

}  // namespace
}  // namespace kvtier
