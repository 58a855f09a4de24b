// SPDX-License-Identifier: Apache-2.0
// Sequences that go on at a known time find their blocks in the pool.

#include "tests/unit/tiers/cache_fixture.h"
#include "tiers/transfer/return_prefetch.h"

namespace kvtier {
namespace {

class CacheReturnTest : public CacheTest {
 protected:
  // After a restart sequences 1 to 3, of eight blocks each, are on disk alone.
  void StartWithBlocksOnDisk(CacheSetup setup = {.pool_blocks = 32, .host_slots = 32}) {
    Start(setup);
    for (uint64_t stream = 1; stream <= 3; ++stream) Put(Sequence(stream, 8));
    DrainAndRestart();
  }
  void Expect(const Hashes& hashes, int64_t returns_in_ms, SessionId session = kAlice) {
    ASSERT_TRUE(cache_->Hint(session, pool_.id, hashes, SequenceHint::kReturns, returns_in_ms, {}));
    Settle();
  }
  [[nodiscard]] uint32_t InPool(const Hashes& hashes) const {
    uint32_t count = 0;
    for (const BlockHash& hash : hashes) count += Presence(hash).pool;
    return count;
  }
  void PassTime(int64_t ms) {
    AdvanceAndTick(ms);
    Settle();
  }
  [[nodiscard]] uint64_t Ended(ReturnOutcome outcome) const {
    return cache_->stats().returns[static_cast<size_t>(outcome)];
  }
};

TEST_F(CacheReturnTest, BlocksAreInThePoolShortlyBeforeTheyAreExpected) {
  StartWithBlocksOnDisk();
  Expect(Sequence(1, 8), 10'000);
  PassTime(5'000);
  EXPECT_EQ(InPool(Sequence(1, 8)), 0u) << "too early";
  PassTime(4'600);
  EXPECT_EQ(InPool(Sequence(1, 8)), 8u);
  EXPECT_EQ(Ended(ReturnOutcome::kComplete), 1u);
  EXPECT_EQ(cache_->stats().return_blocks, 8u);
  EXPECT_EQ(cache_->stats().return_bytes, 8 * kBlockBytes);
  EXPECT_EQ(InPool(Sequence(2, 8)), 0u) << "of which nothing was said";
  const AcquireReply reply = Acquire(kAlice, Sequence(1, 8));
  EXPECT_THAT(TiersOf(reply), testing::Each(Tier::kPool));
}

TEST_F(CacheReturnTest, ASequenceThatGoesOnAtOnceIsBroughtUpAtTheNextTick) {
  StartWithBlocksOnDisk();
  Expect(Sequence(1, 8), 200);
  PassTime(100);
  EXPECT_EQ(InPool(Sequence(1, 8)), 8u);
}

TEST_F(CacheReturnTest, OneEventSeesToOneSequenceOfAPoolAlsoWhereNothingIsToBeLoaded) {
  Start({.pool_blocks = 32, .host_slots = 32});
  for (uint64_t stream = 1; stream <= 3; ++stream) Put(Sequence(stream, 8));
  for (uint64_t stream = 1; stream <= 3; ++stream) Expect(Sequence(stream, 8), 200);
  machine_->clock.Advance(100);
  cache_->Tick();
  EXPECT_EQ(Ended(ReturnOutcome::kComplete), 1u);
  Settle();
  EXPECT_EQ(Ended(ReturnOutcome::kComplete), 3u);
}

TEST_F(CacheReturnTest, OnlyTheCachedPrefixIsBroughtUp) {
  StartWithBlocksOnDisk();
  Hashes hashes = Sequence(1, 4);
  hashes.push_back(TestHash(7, 4));
  hashes.push_back(TestHash(1, 5));
  Expect(hashes, 200);
  PassTime(100);
  EXPECT_EQ(InPool(Sequence(1, 8)), 4u);
  EXPECT_EQ(Ended(ReturnOutcome::kComplete), 1u);
}

TEST_F(CacheReturnTest, ASequenceThatEndsMeanwhileIsNotBroughtUp) {
  StartWithBlocksOnDisk();
  Expect(Sequence(1, 8), 10'000);
  ASSERT_TRUE(cache_->Hint(kAlice, pool_.id, Sequence(1, 8), SequenceHint::kClosed, 0, {}));
  PassTime(9'600);
  EXPECT_EQ(InPool(Sequence(1, 8)), 0u);
  EXPECT_EQ(Ended(ReturnOutcome::kCancelled), 1u);
}

TEST_F(CacheReturnTest, ASequenceThatIsUsedBeforeItsTimeIsNotBroughtUp) {
  StartWithBlocksOnDisk({.pool_blocks = 8, .host_slots = 32});
  Expect(Sequence(1, 8), 10'000);
  Use(Sequence(1, 8));
  EvictFromPool();
  PassTime(9'600);
  EXPECT_EQ(InPool(Sequence(1, 8)), 0u);
  EXPECT_EQ(Ended(ReturnOutcome::kCancelled), 1u);
}

TEST_F(CacheReturnTest, ALaterHintReplacesTheFirst) {
  StartWithBlocksOnDisk();
  Expect(Sequence(1, 8), 1'000);
  Expect(Sequence(1, 8), 60'000);
  PassTime(900);
  EXPECT_EQ(InPool(Sequence(1, 8)), 0u);
  PassTime(58'700);
  EXPECT_EQ(InPool(Sequence(1, 8)), 8u);
}

TEST_F(CacheReturnTest, ASequenceThatWentOnIsExpectedAtItsNewTime) {
  StartWithBlocksOnDisk();
  Expect(Sequence(1, 6), 1'000);
  Expect(Sequence(1, 8), 60'000);
  PassTime(900);
  EXPECT_EQ(InPool(Sequence(1, 8)), 0u);
}

TEST_F(CacheReturnTest, NothingIsBroughtUpOnceTheClientHasGone) {
  StartWithBlocksOnDisk();
  Expect(Sequence(1, 8), 10'000, kAlice);
  Expect(Sequence(2, 8), 10'000, kBob);
  cache_->CloseSession(kAlice);
  PassTime(9'600);
  EXPECT_EQ(InPool(Sequence(1, 8)), 0u);
  EXPECT_EQ(InPool(Sequence(2, 8)), 8u) << "of another client";
  EXPECT_EQ(Ended(ReturnOutcome::kCancelled), 1u);
}

TEST_F(CacheReturnTest, ATimeThatHasPassedBringsNothingUp) {
  StartWithBlocksOnDisk();
  Expect(Sequence(1, 8), 1'000);
  PassTime(3'000);
  EXPECT_EQ(InPool(Sequence(1, 8)), 0u);
  EXPECT_EQ(Ended(ReturnOutcome::kShort), 1u);
}

TEST_F(CacheReturnTest, ToBeBroughtUpIsNoUse) {
  StartWithBlocksOnDisk();
  const auto last_use_s = [&] {
    return cache_->Inspect({pool_.namespace_id, TestHash(1, 0)})->last_use_s;
  };
  const uint32_t before_s = last_use_s();
  machine_->clock.Advance(60'000);
  Expect(Sequence(1, 8), 200);
  PassTime(100);
  ASSERT_EQ(InPool(Sequence(1, 8)), 8u);
  EXPECT_EQ(last_use_s(), before_s);
}

TEST_F(CacheReturnTest, TheColdestMakeWay) {
  StartWithBlocksOnDisk({.pool_blocks = 16, .host_slots = 32});
  Use(Sequence(2, 8));
  Use(Sequence(3, 8));
  Expect(Sequence(1, 4), 200);
  PassTime(100);
  EXPECT_EQ(InPool(Sequence(1, 4)), 4u);
  EXPECT_EQ(InPool(Sequence(2, 8)), 4u);
  EXPECT_EQ(InPool(Sequence(3, 8)), 8u);
}

TEST_F(CacheReturnTest, BlocksThatAreExpectedThemselvesDoNotMakeWay) {
  StartWithBlocksOnDisk({.pool_blocks = 12, .host_slots = 32});
  Use(Sequence(2, 8));
  Use(Sequence(3, 4));
  Expect(Sequence(2, 8), 60'000);
  Expect(Sequence(1, 8), 200);
  PassTime(100);
  EXPECT_EQ(InPool(Sequence(2, 8)), 8u);
  EXPECT_EQ(InPool(Sequence(1, 8)), 4u);
  EXPECT_EQ(Ended(ReturnOutcome::kShort), 1u);
}

TEST_F(CacheReturnTest, BlocksInUseDoNotMakeWay) {
  StartWithBlocksOnDisk({.pool_blocks = 8, .host_slots = 32});
  const AcquireReply held = Acquire(kBob, Sequence(2, 8));
  Expect(Sequence(1, 8), 200);
  PassTime(100);
  EXPECT_EQ(InPool(Sequence(1, 8)), 0u);
  EXPECT_EQ(Ended(ReturnOutcome::kShort), 1u);
  Release(kBob, HandlesOf(held));
}

TEST_F(CacheReturnTest, AnAcquireThatWaitsForRoomGoesFirst) {
  StartWithBlocksOnDisk({.pool_blocks = 8, .host_slots = 32});
  Put(Sequence(4, 8));
  // Nothing of the pool may leave before it is in host.
  Expect(Sequence(1, 8), 200);
  machine_->clock.Advance(100);
  const PendingAcquire waiting = BeginAcquire(kBob, {}, 8);
  ASSERT_FALSE(waiting.answered());
  cache_->Tick();
  EXPECT_EQ(cache_->stats().return_blocks, 0u);
  Settle();
  EXPECT_TRUE(waiting.succeeded());
}

TEST_F(CacheReturnTest, NoMoreIsUnderWayThanHalfOfWhatLoadsMay) {
  CacheSetup setup{.pool_blocks = 32, .host_slots = 32};
  setup.options.max_load_bytes = 6 * kBlockBytes;
  StartWithBlocksOnDisk(setup);
  Expect(Sequence(1, 8), 200);
  machine_->clock.Advance(100);
  cache_->Tick();
  uint64_t most = 0;
  do {
    most = std::max(most, PoolGaugesNow().loading);
  } while (machine_->loop.RunOne());
  EXPECT_EQ(most, 3u);
  EXPECT_EQ(InPool(Sequence(1, 8)), 8u);
  EXPECT_EQ(Ended(ReturnOutcome::kComplete), 1u);
}

TEST_F(CacheReturnTest, ALongSequenceIsBroughtUpInParts) {
  CacheSetup setup{.pool_blocks = 32, .host_slots = 32};
  setup.options.acquire_part_blocks = 2;
  StartWithBlocksOnDisk(setup);
  Expect(Sequence(1, 8), 200);
  machine_->clock.Advance(100);
  cache_->Tick();
  EXPECT_EQ(cache_->stats().return_blocks, 2u);
  Settle();
  EXPECT_EQ(InPool(Sequence(1, 8)), 8u);
}

TEST_F(CacheReturnTest, WhatATenantExpectsBeyondWhatIsRememberedIsCounted) {
  CacheSetup setup{.devices = 2};
  setup.options.tenants = {{.name = "other"}};
  Start(setup);
  const size_t most = ReturnPrefetch::kMostSequences;
  for (uint64_t stream = 0; stream <= most; ++stream) {
    Put(Sequence(100 + stream, 1));
    Expect(Sequence(100 + stream, 1), 60'000);
  }
  EXPECT_EQ(Ended(ReturnOutcome::kForgotten), 1u);
  pool_ = *cache_->AttachPool(Identity("other", 1), 0, DeviceIndex(1));
  Put(Sequence(1, 1));
  Expect(Sequence(1, 1), 200);
  PassTime(100);
  EXPECT_EQ(Ended(ReturnOutcome::kForgotten), 1u) << "another tenant has its own share";
  EXPECT_EQ(Ended(ReturnOutcome::kComplete), 1u);
}

}  // namespace
}  // namespace kvtier
