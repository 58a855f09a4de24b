// SPDX-License-Identifier: Apache-2.0
// What the end of a session gives back, and when.

#include "tests/unit/tiers/cache_fixture.h"

namespace kvtier {
namespace {

class CacheSessionTest : public CacheTest {};

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
// too. What it waits for is an offload, which the test lets go.
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

}  // namespace
}  // namespace kvtier
