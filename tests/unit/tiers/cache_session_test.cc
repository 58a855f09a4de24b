// SPDX-License-Identifier: Apache-2.0
// The blocks that the end of a session gives back, and when; and a session that leaves a pool and
// goes on.

#include "tests/unit/tiers/cache_fixture.h"

namespace kvtier {
namespace {

class CacheSessionTest : public CacheTest {};

TEST_F(CacheSessionTest, APoolSmallerThanABlockIsRefusedAsSuch) {
  Start();
  EXPECT_THAT(cache_->AttachPool(Identity("tenant", 2), 1),
              IsErrorOf(ErrorCode::kInvalidArgument, "pool_below_block"));
}

TEST_F(CacheSessionTest, ClosingDropsAllReferencesAtOnce) {
  Start();
  (void)Store(kAlice, Sequence(1, 3));
  (void)Acquire(kAlice, Sequence(1, 2));
  cache_->CloseSession(kAlice);
  EXPECT_EQ(PoolGaugesNow().referenced, 0u);
  EXPECT_EQ(PoolGaugesNow().cached, 3u);
  EXPECT_EQ(cache_->Gauges().references, 0u);
  EXPECT_EQ(cache_->Gauges().sessions, 1u);
}

TEST_F(CacheSessionTest, ClosingLeavesTheReferencesOfOthers) {
  Start();
  (void)Store(kAlice, Sequence(1, 2));
  const Handles bob = HandlesOf(Acquire(kBob, Sequence(1, 2)));
  cache_->CloseSession(kAlice);
  EXPECT_EQ(PoolGaugesNow().referenced, 2u);
  Release(kBob, bob);
  EXPECT_EQ(PoolGaugesNow().cached, 2u);
}

TEST_F(CacheSessionTest, PrivateBlocksOfAClosedSessionAreWithheld) {
  Start({.pool_blocks = 4});
  (void)Acquire(kAlice, {}, 3);
  cache_->CloseSession(kAlice);
  EXPECT_EQ(PoolGaugesNow().quarantined, 3u);
  EXPECT_EQ(PoolGaugesNow().private_blocks, 0u);
  const PendingAcquire answer = BeginAcquire(kBob, {}, 2);
  Settle();
  AdvanceAndTick(setup_.options.max_wait_ms + 1);
  ASSERT_TRUE(answer.answered());
  EXPECT_FALSE(answer.succeeded());
}

TEST_F(CacheSessionTest, QuarantinedBlocksAreFreeOnceTheProcessIsGone) {
  Start({.pool_blocks = 4});
  (void)Acquire(kAlice, {}, 3);
  cache_->CloseSession(kAlice);
  cache_->ReleaseQuarantine(kAlice);
  EXPECT_EQ(PoolGaugesNow().quarantined, 0u);
  EXPECT_EQ(PoolGaugesNow().free, 4u);
  EXPECT_TRUE(TryAcquire(kBob, {}, 4));
}

TEST_F(CacheSessionTest, ClosingASessionServesAWaitingAcquire) {
  Start({.pool_blocks = 4});
  (void)Store(kAlice, Sequence(1, 2));
  machine_->loop.Hold(machine_->device->source());
  Put(Sequence(2, 2));
  const PendingAcquire answer = BeginAcquire(kBob, {}, 2);
  EXPECT_FALSE(answer.answered());
  cache_->CloseSession(kAlice);
  machine_->loop.LetGo(machine_->device->source());
  Settle();
  EXPECT_TRUE(answer.succeeded());
}

TEST_F(CacheSessionTest, QuarantineReleaseOfASessionWithoutPrivateBlocksDoesNothing) {
  Start();
  (void)Store(kAlice, Sequence(1, 2));
  cache_->CloseSession(kAlice);
  cache_->ReleaseQuarantine(kAlice);
  cache_->ReleaseQuarantine(SessionId(777));
  EXPECT_EQ(PoolGaugesNow().cached, 2u);
}

TEST_F(CacheSessionTest, NothingIsReportedAfterTheSessionClosed) {
  Start({.pool_blocks = 4});
  Put(Sequence(1, 4));
  EvictFromPool();
  const PendingAcquire answer = BeginAcquire(kAlice, Sequence(1, 4));
  cache_->CloseSession(kAlice);
  progress_.clear();
  Settle();
  EXPECT_TRUE(progress_.empty());
}

TEST_F(CacheSessionTest, BlocksLoadedForAClosedSessionStayCached) {
  Start({.pool_blocks = 4});
  Put(Sequence(1, 4));
  EvictFromPool();
  const PendingAcquire answer = BeginAcquire(kAlice, Sequence(1, 4));
  cache_->CloseSession(kAlice);
  Settle();
  EXPECT_EQ(PoolGaugesNow().loading, 0u);
  EXPECT_EQ(PoolGaugesNow().referenced, 0u);
  const AcquireReply reply = Acquire(kBob, Sequence(1, 4));
  EXPECT_EQ(reply.hits.size(), 4u);
  EXPECT_TRUE(MatchesHash(TestHash(1, 3), Bytes(reply.hits[3].handle)));
}

TEST_F(CacheSessionTest, CommitOfAClosedSessionIsRefused) {
  Start();
  const BlockHandle block = Acquire(kAlice, {}, 1).new_blocks.front();
  cache_->CloseSession(kAlice);
  EXPECT_FALSE(
      cache_->Commit(kAlice, pool_.id, {.block = block, .hash = TestHash(1, 0), .tokens = 16}));
  EXPECT_FALSE(Presence(TestHash(1, 0)).anywhere());
}

TEST_F(CacheSessionTest, ClosingManySessionsLeavesTheCacheIdle) {
  Start({.pool_blocks = 8});
  for (uint64_t i = 10; i < 60; ++i) {
    const SessionId session(i);
    cache_->OpenSession(session, [](const LoadProgress&) {});
    (void)BeginAcquire(session, Sequence(i % 5, 3), 2);
    Settle();
    cache_->CloseSession(session);
    cache_->ReleaseQuarantine(session);
    Settle();
  }
  EXPECT_TRUE(cache_->Idle());
  EXPECT_EQ(PoolGaugesNow().private_blocks + PoolGaugesNow().quarantined, 0u);
  EXPECT_EQ(PoolGaugesNow().free, 8u);
}

// A waiting acquire that has found one block in the pool, of which the session holds a reference,
// too. It waits for an offload, which the test lets go.
class CacheHeldReferenceTest : public CacheTest {
 protected:
  void SetUp() override {
    Start({.pool_blocks = 16});
    machine_->loop.Hold(machine_->device->source());
    blocks_ = Store(kAlice, Sequence(1, 16));
    Release(kAlice, Handles(blocks_.begin() + 1, blocks_.end()));
    waiting_ = BeginAcquire(kAlice, Sequence(1, 1), 8);
    ASSERT_FALSE(waiting_.answered());
  }

  Handles blocks_;
  PendingAcquire waiting_;
};

TEST_F(CacheHeldReferenceTest, SessionCannotReleaseWhatItsWaitingAcquireHolds) {
  const BlockHandle first = blocks_.front();
  const auto errors = cache_->Release(kAlice, pool_.id, Handles{first, first});
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].position, 1u);
  EXPECT_EQ(errors[0].error.reason, "not_held");
  cache_->CloseSession(kAlice);
  ASSERT_TRUE(waiting_.answered());
  EXPECT_THAT(waiting_.result(), IsErrorOf(ErrorCode::kCancelled, "session_closed"));
  machine_->loop.LetGo(machine_->device->source());
  Settle();
  EXPECT_EQ(PoolGaugesNow().cached, 16u);
}

TEST_F(CacheHeldReferenceTest, BlockStaysForTheAcquireThoughTheSessionReleasedItsOwnReference) {
  Release(kAlice, {blocks_.front()});
  EXPECT_EQ(PoolGaugesNow().referenced, 1u);
  machine_->loop.LetGo(machine_->device->source());
  Settle();
  ASSERT_TRUE(waiting_.succeeded());
  ASSERT_EQ(waiting_.reply().hits.size(), 1u);
  EXPECT_EQ(waiting_.reply().hits[0].handle, blocks_.front());
  EXPECT_EQ(TryRelease(kAlice, blocks_.front()), std::nullopt);
  EXPECT_TRUE(TryRelease(kAlice, blocks_.front()).has_value());
}

TEST_F(CacheHeldReferenceTest, SessionMayNotReadWhatOnlyItsWaitingAcquireHolds) {
  Release(kAlice, {blocks_.front()});
  EXPECT_THAT(cache_->ReadableMemory(kAlice, pool_.id, Handles{blocks_.front()}),
              IsErrorOf(ErrorCode::kNotOwner, "not_held"));
  machine_->loop.LetGo(machine_->device->source());
  Settle();
  EXPECT_TRUE(cache_->ReadableMemory(kAlice, pool_.id, Handles{blocks_.front()}).has_value());
}

// Acquires of Alice that wait for blocks to become free, each of which holds four blocks that were
// found in the pool.
class CacheCancelInPartsTest : public CacheTest {
 protected:
  static constexpr uint32_t kHeldByEach = 4;
  static constexpr uint32_t kPart = 10;
  static constexpr uint32_t kWaiting = 8;

  void SetUp() override {
    CacheSetup setup{.pool_blocks = 16};
    setup.options.close_part_blocks = kPart;
    Start(setup);
    machine_->loop.Hold(machine_->device->source());
    Release(kAlice, Store(kAlice, Sequence(1, 16)));
    for (uint32_t i = 0; i < kWaiting; ++i) {
      waiting_.push_back(BeginAcquire(kAlice, Sequence(1, kHeldByEach), 12));
      ASSERT_FALSE(waiting_.back().answered());
    }
    ASSERT_EQ(References(), kWaiting * kHeldByEach);
  }
  [[nodiscard]] uint64_t References() const { return cache_->Gauges().references; }
  void RunPart() { ASSERT_TRUE(machine_->loop.RunOneOf(FakeLoop::kPosted)); }

  std::vector<PendingAcquire> waiting_;
};

TEST_F(CacheCancelInPartsTest, NoEventDropsMoreReferencesThanAPart) {
  cache_->CloseSession(kAlice);
  for (const PendingAcquire& acquire : waiting_) {
    ASSERT_TRUE(acquire.answered());
    EXPECT_THAT(acquire.result(), IsErrorOf(ErrorCode::kCancelled, "session_closed"));
  }
  uint64_t before = kWaiting * kHeldByEach;
  uint32_t events = 1;
  for (; References() > 0; ++events) {
    EXPECT_LE(before - References(), kPart);
    EXPECT_EQ(cache_->Gauges().sessions_closing, 1u);
    before = References();
    RunPart();
  }
  EXPECT_GE(events, kWaiting * kHeldByEach / kPart);
  EXPECT_EQ(cache_->Gauges().sessions_closing, 0u);
  EXPECT_EQ(PoolGaugesNow().referenced, 0u);
}

TEST_F(CacheCancelInPartsTest, AnotherSessionsAcquireIsServedWhenTheBlocksAreDropped) {
  const PendingAcquire other = BeginAcquire(kBob, {}, 16);
  cache_->CloseSession(kAlice);
  cache_->ReleaseQuarantine(kAlice);
  EXPECT_FALSE(other.answered());
  machine_->loop.LetGo(machine_->device->source());
  Settle();
  EXPECT_TRUE(other.succeeded());
  EXPECT_EQ(References(), 0u);
  EXPECT_TRUE(cache_->Idle());
}

class CacheCloseInPartsTest : public CacheTest {
 protected:
  static constexpr uint32_t kPart = 8192;
  static constexpr uint32_t kBlocks = 2 * kPart;

  // Alice holds all blocks of the pool as private ones.
  void SetUp() override {
    Start({.pool_blocks = kBlocks});
    const PendingAcquire acquired = BeginAcquire(kAlice, {}, kBlocks);
    Settle();
    ASSERT_TRUE(acquired.succeeded());
    blocks_ = acquired.reply().new_blocks;
  }
  void RunPart() { ASSERT_TRUE(machine_->loop.RunOneOf(FakeLoop::kPosted)); }

  Handles blocks_;
};

TEST_F(CacheCloseInPartsTest, ReferencesAreDroppedInSeveralEvents) {
  for (uint32_t i = 0; i < kBlocks; ++i) {
    ASSERT_TRUE(cache_->Commit(kAlice, pool_.id,
                               {.block = blocks_[i], .hash = TestHash(1, i), .tokens = 16}));
  }
  cache_->CloseSession(kAlice);
  EXPECT_EQ(PoolGaugesNow().referenced, kBlocks - kPart) << "no event is longer than a part";
  EXPECT_EQ(cache_->Gauges().sessions_closing, 1u);
  // Meanwhile the session has none that it could use.
  EXPECT_TRUE(TryRelease(kAlice, blocks_.back()).has_value());
  EXPECT_FALSE(cache_->ReadableMemory(kAlice, pool_.id, Handles{blocks_.back()}).has_value());
  EXPECT_EQ(cache_->Gauges().references, kBlocks - kPart);
  RunPart();
  EXPECT_EQ(PoolGaugesNow().referenced, 0u);
  EXPECT_EQ(cache_->Gauges().references, 0u);
  EXPECT_EQ(cache_->Gauges().sessions_closing, 0u);
}

TEST_F(CacheCloseInPartsTest, PrivateBlocksAreWithheldAndFreedInSeveralEvents) {
  cache_->CloseSession(kAlice);
  EXPECT_EQ(PoolGaugesNow().quarantined, kPart);
  // The process is gone before all of them are withheld.
  cache_->ReleaseQuarantine(kAlice);
  RunPart();
  EXPECT_EQ(PoolGaugesNow().quarantined, 2 * kPart);
  EXPECT_EQ(PoolGaugesNow().free, 0u);
  Settle();
  EXPECT_EQ(PoolGaugesNow().quarantined, 0u);
  EXPECT_EQ(PoolGaugesNow().free, kBlocks);
}

class CacheLeavePoolTest : public CacheTest {
 protected:
  void StartUsed(const CacheSetup& setup = {}) {
    Start(setup);
    UsePool();
  }
  void UsePool() { cache_->UsePool(kAlice, pool_.id, {.process = {71, 5}, .session = kAlice}); }
  [[nodiscard]] Status CommitOf(BlockHandle block, const BlockHash& hash) {
    const Result<CommitReply> committed = TryCommit(kAlice, block, {.hash = hash});
    return committed ? Status() : tl::unexpected(committed.error());
  }
};

TEST_F(CacheLeavePoolTest, ReferencesAreDroppedAndPrivateBlocksFree) {
  StartUsed();
  (void)Store(kAlice, Sequence(1, 3));
  (void)Acquire(kAlice, Sequence(1, 2), 4);
  cache_->LeavePool(kAlice, pool_.id);
  const PoolGauges pool = PoolGaugesNow();
  EXPECT_EQ(pool.referenced, 0u);
  EXPECT_EQ(pool.cached, 3u);
  EXPECT_EQ(pool.private_blocks, 0u);
  EXPECT_EQ(pool.quarantined, 0u);
  EXPECT_EQ(pool.free, pool.blocks - 3);
  EXPECT_EQ(cache_->Gauges().references, 0u);
  EXPECT_EQ(cache_->Gauges().sessions, 2u);
  EXPECT_EQ(Acquire(kBob, Sequence(1, 3)).hits.size(), 3u) << "what was committed stays";
}

TEST_F(CacheLeavePoolTest, AnotherSessionHasTheRoom) {
  StartUsed({.pool_blocks = 4});
  (void)Store(kAlice, Sequence(1, 2));
  (void)Acquire(kAlice, {}, 2);
  ASSERT_FALSE(TryAcquire(kBob, {}, 4));
  cache_->LeavePool(kAlice, pool_.id);
  EXPECT_EQ(Acquire(kBob, {}, 4).new_blocks.size(), 4u);
}

TEST_F(CacheLeavePoolTest, WhatOtherSessionsHoldStays) {
  StartUsed();
  const Handles held = Store(kBob, Sequence(1, 2));
  (void)Acquire(kBob, {}, 1);
  (void)Acquire(kAlice, Sequence(1, 2), 1);
  cache_->LeavePool(kAlice, pool_.id);
  EXPECT_EQ(PoolGaugesNow().referenced, 2u);
  EXPECT_EQ(PoolGaugesNow().private_blocks, 1u);
  Release(kBob, held);
}

TEST_F(CacheLeavePoolTest, WhatIsHeldInAnotherPoolStays) {
  StartUsed({.devices = 2});
  (void)Store(kAlice, Sequence(1, 2));
  const PoolId left = pool_.id;
  UseDevice(1);
  UsePool();
  const Handles held = Store(kAlice, Sequence(2, 3));
  (void)Acquire(kAlice, {}, 1);
  cache_->LeavePool(kAlice, left);
  Settle();
  const CacheGauges gauges = cache_->Gauges();
  EXPECT_EQ(gauges.pools.at(1).referenced, 3u);
  EXPECT_EQ(gauges.pools.at(1).private_blocks, 1u);
  EXPECT_EQ(gauges.references, 3u);
  Release(kAlice, held);
}

TEST_F(CacheLeavePoolTest, WhatIsAcquiredAnewMeanwhileIsTheSessionsOwn) {
  CacheSetup setup;
  setup.options.close_part_blocks = 2;
  StartUsed(setup);
  (void)Store(kAlice, Sequence(1, 4));
  (void)Acquire(kAlice, {}, 6);
  cache_->LeavePool(kAlice, pool_.id);
  ASSERT_EQ(PoolGaugesNow().private_blocks, 6u) << "only the first part is given back";
  UsePool();
  const PendingAcquire again = BeginAcquire(kAlice, Sequence(1, 4), 2);
  ASSERT_TRUE(again.succeeded());
  Settle();
  EXPECT_EQ(PoolGaugesNow().referenced, 4u);
  EXPECT_EQ(PoolGaugesNow().private_blocks, 2u);
  EXPECT_EQ(PoolGaugesNow().free, 10u);
  EXPECT_EQ(cache_->Gauges().references, 4u);
  Commit(kAlice, again.reply().new_blocks[0], TestHash(1, 4), 4);
  Release(kAlice, HandlesOf(again.reply()));
  Release(kAlice, again.reply().new_blocks);
}

// A client that sends messages out of order must not reach blocks that are being given back: they
// are in a list that is not the session's any more.
TEST_F(CacheLeavePoolTest, LateMessagesAboutFormerBlocksAreRefused) {
  CacheSetup setup;
  setup.options.close_part_blocks = 2;
  StartUsed(setup);
  const Handles committed = Store(kAlice, Sequence(1, 4));
  const Handles former = Acquire(kAlice, {}, 6).new_blocks;
  cache_->LeavePool(kAlice, pool_.id);
  UsePool();
  const Handles own = BeginAcquire(kAlice, {}, 1).reply().new_blocks;
  EXPECT_THAT(CommitOf(former.back(), TestHash(3, 0)),
              IsErrorOf(ErrorCode::kNotOwner, "foreign_block"));
  EXPECT_EQ(TryRelease(kAlice, former.back())->reason, "not_held");
  EXPECT_EQ(TryRelease(kAlice, committed.back())->reason, "not_held");
  EXPECT_FALSE(cache_->ReadableMemory(kAlice, pool_.id, former));
  EXPECT_TRUE(CommitOf(own.front(), TestHash(4, 0)));
  Settle();
  EXPECT_EQ(PoolGaugesNow().private_blocks, 0u);
  EXPECT_EQ(PoolGaugesNow().referenced, 1u);
  EXPECT_EQ(TryRelease(kAlice, former.back())->reason, "stale_generation");
}

TEST_F(CacheLeavePoolTest, ASessionThatClosesMeanwhileLeavesNothingBehind) {
  CacheSetup setup;
  setup.options.close_part_blocks = 2;
  StartUsed(setup);
  (void)Store(kAlice, Sequence(1, 4));
  (void)Acquire(kAlice, {}, 3);
  cache_->LeavePool(kAlice, pool_.id);
  UsePool();
  (void)BeginAcquire(kAlice, Sequence(1, 2), 2);
  cache_->CloseSession(kAlice);
  Settle();
  EXPECT_EQ(PoolGaugesNow().referenced, 0u);
  EXPECT_EQ(PoolGaugesNow().quarantined, 2u) << "those that it had after it came back";
  cache_->ReleaseQuarantine(kAlice);
  Settle();
  EXPECT_EQ(PoolGaugesNow().free, 12u);
  EXPECT_EQ(cache_->Gauges().sessions_closing, 0u);
}

TEST_F(CacheLeavePoolTest, AnAcquireThatWaitsIsCancelledAndTakesNothingLater) {
  StartUsed({.pool_blocks = 4});
  machine_->loop.Hold(machine_->device->source());
  Put(Sequence(1, 4));
  const PendingAcquire waits = BeginAcquire(kAlice, Sequence(1, 1), 3);
  ASSERT_FALSE(waits.answered());
  cache_->LeavePool(kAlice, pool_.id);
  ASSERT_TRUE(waits.answered());
  EXPECT_THAT(waits.result(), IsErrorOf(ErrorCode::kCancelled, "pool_detached"));
  machine_->loop.LetGo(machine_->device->source());
  Settle();
  EXPECT_EQ(PoolGaugesNow().private_blocks, 0u);
  EXPECT_EQ(PoolGaugesNow().referenced, 0u);
  EXPECT_EQ(Acquire(kBob, {}, 4).new_blocks.size(), 4u);
}

TEST_F(CacheLeavePoolTest, AnAcquireOfAnotherSessionThatWaitsIsServed) {
  StartUsed({.pool_blocks = 4});
  (void)Acquire(kAlice, {}, 2);
  machine_->loop.Hold(machine_->device->source());
  Put(Sequence(1, 2));
  const PendingAcquire waits = BeginAcquire(kBob, {}, 2);
  ASSERT_FALSE(waits.answered());
  cache_->LeavePool(kAlice, pool_.id);
  EXPECT_TRUE(waits.succeeded());
  machine_->loop.LetGo(machine_->device->source());
  Settle();
}

TEST_F(CacheLeavePoolTest, LoadsEndAsCancelledAndTheirBlocksArrive) {
  StartUsed({.pool_blocks = 4});
  Put(Sequence(1, 4));
  EvictFromPool();
  const PendingAcquire loads = BeginCounted(kAlice, Sequence(1, 4));
  ASSERT_TRUE(loads.succeeded());
  const LoadId load = loads.reply().load;
  ASSERT_NE(load.value, 0u);
  progress_.clear();
  cache_->LeavePool(kAlice, pool_.id);
  EXPECT_TRUE(LastProgress(load).finished);
  EXPECT_EQ(LastProgress(load).miss, MissReason::kCancelled);
  EXPECT_GT(Counted(loads.reply()), 4u) << "who waits on the counter sees that the load has ended";
  Settle();
  EXPECT_EQ(progress_.size(), 1u) << "nothing follows the end";
  EXPECT_EQ(PoolGaugesNow().loading, 0u);
  EXPECT_EQ(PoolGaugesNow().cached, 4u);
  EXPECT_EQ(Acquire(kBob, Sequence(1, 4)).hits.size(), 4u);
}

TEST_F(CacheLeavePoolTest, LoadsIntoAnotherPoolGoOn) {
  StartUsed({.devices = 2, .pool_blocks = 4});
  const PoolId left = pool_.id;
  UseDevice(1);
  UsePool();
  Put(Sequence(1, 2));
  EvictFromPool();
  const PendingAcquire loads = BeginAcquire(kAlice, Sequence(1, 2));
  ASSERT_TRUE(loads.succeeded());
  cache_->LeavePool(kAlice, left);
  Settle();
  EXPECT_EQ(LastProgress(loads.reply().load).ready, 2u);
}

TEST_F(CacheLeavePoolTest, APoolThatAllHaveLeftMakesWayForAnother) {
  StartUsed();
  Put(Sequence(1, 2));
  (void)Acquire(kAlice, Sequence(1, 2), 2);
  const auto attach_other = [this] { return cache_->AttachPool(Identity("tenant", 2), 0); };
  EXPECT_THAT(attach_other(), IsErrorOf(ErrorCode::kResourceExhausted, "pool_bytes_exhausted"));
  cache_->LeavePool(kAlice, pool_.id);
  Result<PoolInfo> other = attach_other();
  for (int tries = 0; tries < 10 && !other; ++tries) {
    Settle();
    other = attach_other();
  }
  EXPECT_TRUE(other) << other.error().ToString();
}

TEST_F(CacheLeavePoolTest, TheNextDaemonAwaitsNoneThatHadLeft) {
  StartUsed({.pool_blocks = 16, .keep_pools = true, .disk_slots = 0});
  (void)Store(kAlice, Sequence(1, 2));
  (void)Acquire(kAlice, {}, 3);
  cache_->LeavePool(kAlice, pool_.id);
  Settle();
  DieAndAdopt();
  EXPECT_EQ(PoolGaugesNow().quarantined, 0u);
  EXPECT_EQ(PoolGaugesNow().cached, 2u);
  for (const AbsentClients& absent : cache_->TakeAbsentClients()) {
    EXPECT_TRUE(absent.sessions.empty());
  }
}

}  // namespace
}  // namespace kvtier
