// SPDX-License-Identifier: Apache-2.0
// Loads from the pool of another device that this one can read.
#include <gtest/gtest.h>

#include "base/digest.h"
#include "tests/unit/tiers/cache_fixture.h"

namespace kvtier {
namespace {

class CacheNeighboursTest : public CacheTest {
 protected:
  void StartNeighbours(CacheSetup setup = {}) {
    setup.devices = 2;
    setup.neighbours = true;
    Start(setup);
  }
  // Blocks that the first device's pool holds, and no tier below; the verbs then speak of the
  // second device's pool.
  void PutOnFirst(const Hashes& hashes) {
    Put(hashes);
    ASSERT_FALSE(Presence(hashes.front()).host);
    first_ = pool_;
    UseDevice(1);
  }
  void ExpectBytes(const AcquireReply& reply, const Hashes& hashes) {
    ASSERT_EQ(LastProgress(reply.load).ready, hashes.size());
    for (size_t i = 0; i < hashes.size(); ++i) {
      EXPECT_TRUE(MatchesHash(hashes[i], Bytes(reply.hits[i].handle))) << i;
    }
  }
  [[nodiscard]] PoolGauges PoolOn(uint32_t device) const {
    for (const PoolGauges& pool : cache_->Gauges().pools) {
      if (pool.device == DeviceIndex(device)) return pool;
    }
    return {};
  }
  // The second device's copies take as long as the test likes.
  void HoldSecond() { machine_->loop.Hold(machine_->devices[1]->source()); }
  void LetGoSecond() {
    machine_->loop.LetGo(machine_->devices[1]->source());
    Settle();
  }

  PoolInfo first_;
};

TEST_F(CacheNeighboursTest, ABlockOfTheNeighboursPoolComesFromThereAndNotThroughHost) {
  StartNeighbours();
  PutOnFirst(Sequence(1, 3));
  const AcquireReply reply = Acquire(kAlice, Sequence(1, 3));
  ExpectBytes(reply, Sequence(1, 3));
  EXPECT_FALSE(Presence(TestHash(1, 0)).host);
  EXPECT_EQ(cache_->stats().neighbour_blocks, 3u);
  EXPECT_EQ(cache_->stats().neighbour_bytes, 3 * kBlockBytes);
  EXPECT_EQ(cache_->stats().onload_blocks, 0u);
  EXPECT_EQ(machine_->devices[0]->copies_completed(), 0u);
  // The neighbour's block is its own again.
  EXPECT_EQ(PoolOn(0).cached, 3u);
}

TEST_F(CacheNeighboursTest, EachDeviceSaysWhosePoolsItReads) {
  StartNeighbours();
  ASSERT_EQ(cache_->Gauges().devices.size(), 2u);
  EXPECT_EQ(cache_->Gauges().devices[0].neighbours, 2u);
  EXPECT_EQ(cache_->Gauges().devices[1].neighbours, 1u);
}

TEST_F(CacheNeighboursTest, DevicesThatCannotReadEachOtherSayItAndGoThroughHost) {
  Start({.devices = 2});
  PutOnFirst(Sequence(1, 2));
  ExpectBytes(Acquire(kAlice, Sequence(1, 2)), Sequence(1, 2));
  EXPECT_EQ(cache_->Gauges().devices[0].neighbours, 0u);
  EXPECT_EQ(cache_->stats().neighbour_blocks, 0u);
  EXPECT_EQ(cache_->stats().onload_blocks, 2u);
}

TEST_F(CacheNeighboursTest, TheNeighbourIsAskedBeforeHostMemory) {
  StartNeighbours();
  Put(Sequence(1, 2));
  Drain();
  ASSERT_TRUE(Presence(TestHash(1, 0)).host);
  UseDevice(1);
  ExpectBytes(Acquire(kAlice, Sequence(1, 2)), Sequence(1, 2));
  EXPECT_EQ(cache_->stats().neighbour_blocks, 2u);
}

TEST_F(CacheNeighboursTest, ANeighbourThatWasMeasuredToBeSlowerThanHostIsNotAsked) {
  StartNeighbours();
  Put(Sequence(1, 4));
  Drain();
  UseDevice(1);
  // Seconds for a block: a sample of any size is one.
  HoldSecond();
  const PendingAcquire slow = BeginAcquire(kAlice, Sequence(1, 2));
  machine_->loop.RunAll();
  machine_->clock.Advance(10'000);
  LetGoSecond();
  ASSERT_EQ(cache_->stats().neighbour_blocks, 2u);
  const AcquireReply reply = Acquire(kAlice, Sequence(1, 4));
  EXPECT_EQ(cache_->stats().neighbour_blocks, 2u);
  EXPECT_EQ(cache_->stats().onload_blocks, 2u);
  EXPECT_TRUE(MatchesHash(TestHash(1, 3), Bytes(reply.hits[3].handle)));
}

TEST_F(CacheNeighboursTest, ACopyThatFailsIsMadeUpForByHost) {
  StartNeighbours();
  PutOnFirst(Sequence(1, 3));
  machine_->devices[1]->FailNextCopies(1);
  ExpectBytes(Acquire(kAlice, Sequence(1, 3)), Sequence(1, 3));
  EXPECT_EQ(cache_->stats().neighbour_fallbacks, 3u);
  EXPECT_EQ(cache_->stats().neighbour_blocks, 0u);
  EXPECT_EQ(cache_->stats().onload_blocks, 3u);
}

TEST_F(CacheNeighboursTest, ADeviceWhoseCopiesFailAgainAndAgainAsksNoNeighbourAnyMore) {
  StartNeighbours({.pool_blocks = 32});
  for (uint32_t sequence = 1; sequence <= 8; ++sequence) {
    UseDevice(0);
    PutOnFirst(Sequence(sequence, 1));
    machine_->devices[1]->FailNextCopies(1);
    Release(kAlice, HandlesOf(Acquire(kAlice, Sequence(sequence, 1))));
  }
  ASSERT_EQ(cache_->stats().neighbour_fallbacks, 8u);
  EXPECT_EQ(cache_->Gauges().devices[1].neighbours, 0u);
  EXPECT_EQ(cache_->Gauges().devices[0].neighbours, 2u);
  UseDevice(0);
  PutOnFirst(Sequence(9, 1));
  ExpectBytes(Acquire(kAlice, Sequence(9, 1)), Sequence(9, 1));
  EXPECT_EQ(cache_->stats().neighbour_fallbacks, 8u);
  EXPECT_EQ(cache_->stats().neighbour_blocks, 0u);
}

TEST_F(CacheNeighboursTest, ABlockThatNoWayBringsIsAMiss) {
  StartNeighbours();
  PutOnFirst(Sequence(1, 1));
  machine_->devices[1]->FailNextCopies(1);
  machine_->devices[0]->FailNextCopies(1);
  const AcquireReply reply = Acquire(kAlice, Sequence(1, 1));
  EXPECT_TRUE(LastProgress(reply.load).finished);
  EXPECT_EQ(LastProgress(reply.load).ready, 0u);
  Release(kAlice, HandlesOf(reply));
  EXPECT_EQ(PoolOn(0).cached, 1u);
}

TEST_F(CacheNeighboursTest, ABlockStaysInItsPoolWhileItIsCopiedFrom) {
  StartNeighbours({.pool_blocks = 4});
  PutOnFirst(Sequence(1, 4));
  HoldSecond();
  const PendingAcquire load = BeginAcquire(kAlice, Sequence(1, 2));
  machine_->loop.RunAll();
  // All of the first pool is asked for; two of its blocks are being copied.
  UseDevice(0);
  const PendingAcquire all = BeginAcquire(kBob, {}, 4);
  machine_->loop.RunAll();
  EXPECT_FALSE(all.succeeded());
  UseDevice(1);
  LetGoSecond();
  ExpectBytes(load.reply(), Sequence(1, 2));
}

TEST_F(CacheNeighboursTest, APoolIsClosedWhenTheCopyFromItHasLandedAndNotBefore) {
  StartNeighbours({.pool_blocks = 4});
  cache_->UsePool(kBob, pool_.id);
  PutOnFirst(Sequence(1, 2));
  HoldSecond();
  const PendingAcquire load = BeginAcquire(kAlice, Sequence(1, 2));
  machine_->loop.RunAll();
  // In mid-copy its last session ends, and another model wants its memory.
  cache_->CloseSession(kBob);
  const auto attach_other = [this] {
    machine_->loop.RunAll();
    return cache_->AttachPool(Identity("tenant", 2), 0, DeviceIndex(0)).has_value();
  };
  for (int tries = 0; tries < 10; ++tries) EXPECT_FALSE(attach_other());
  EXPECT_EQ(machine_->devices[0]->allocated_bytes(), first_.bytes);
  LetGoSecond();
  ExpectBytes(load.reply(), Sequence(1, 2));
  bool attached = false;
  for (int tries = 0; tries < 10 && !attached; ++tries) attached = attach_other();
  EXPECT_TRUE(attached);
}

TEST_F(CacheNeighboursTest, BytesThatTheirPoolTurnsOutNotToVouchForDoNotArrive) {
  StartNeighbours();
  const BlockHandle allocated = Acquire(kAlice, {}, 1).new_blocks[0];
  CommitRequest request{.block = allocated, .hash = TestHash(1, 0), .tokens = kBlockTokens};
  FillFromHash(TestHash(1, 0), Bytes(allocated));
  request.checksum = ChecksumPayload(Bytes(allocated));
  ASSERT_TRUE(cache_->Commit(kAlice, pool_.id, request));
  // The client writes to it against the rules, and its copy to host finds that.
  FillFromHash(TestHash(9, 9), Bytes(allocated));
  UseDevice(1);
  HoldSecond();
  const PendingAcquire load = BeginAcquire(kBob, Sequence(1, 1));
  machine_->loop.RunAll();
  cache_->Drain([] {});
  machine_->loop.RunAll();
  ASSERT_EQ(Drops(Tier::kPool, DropReason::kClientWroteCommitted), 1u);
  LetGoSecond();
  EXPECT_TRUE(LastProgress(load.reply().load).finished);
  EXPECT_EQ(LastProgress(load.reply().load).ready, 0u);
  EXPECT_EQ(cache_->stats().neighbour_fallbacks, 1u);
}

TEST_F(CacheNeighboursTest, TheChecksumOfTheCommitGoesWithTheBytes) {
  StartNeighbours();
  const BlockHandle allocated = Acquire(kAlice, {}, 1).new_blocks[0];
  CommitRequest request{.block = allocated, .hash = TestHash(1, 0), .tokens = kBlockTokens};
  FillFromHash(TestHash(1, 0), Bytes(allocated));
  request.checksum = ChecksumPayload(Bytes(allocated));
  ASSERT_TRUE(cache_->Commit(kAlice, pool_.id, request));
  Release(kAlice, {allocated});
  UseDevice(1);
  const AcquireReply reply = Acquire(kBob, Sequence(1, 1));
  FillFromHash(TestHash(9, 9), Bytes(reply.hits[0].handle));
  Release(kBob, HandlesOf(reply));
  // The copy that came last is the first to go down.
  Drain();
  EXPECT_EQ(Drops(Tier::kPool, DropReason::kClientWroteCommitted), 1u);
}

TEST_F(CacheNeighboursTest, ALoadThatIsGivenUpBeforeItsTurnCopiesNothing) {
  CacheSetup setup;
  setup.options.max_load_bytes = kBlockBytes;
  StartNeighbours(setup);
  PutOnFirst(Sequence(1, 1));
  UseDevice(0);
  PutOnFirst(Sequence(2, 1));
  HoldSecond();
  const PendingAcquire first = BeginAcquire(kAlice, Sequence(1, 1));
  const PendingAcquire second = BeginAcquire(kBob, Sequence(2, 1));
  machine_->loop.RunAll();
  Release(kBob, HandlesOf(second.reply()));
  LetGoSecond();
  ExpectBytes(first.reply(), Sequence(1, 1));
  EXPECT_EQ(cache_->stats().neighbour_blocks, 1u);
  EXPECT_EQ(PoolOn(1).blocks - PoolOn(1).free, 1u);
  EXPECT_EQ(PoolOn(0).cached, 2u);
}

TEST_F(CacheNeighboursTest, ALoadInLayersCountsWhatComesFromTheNeighbour) {
  StartNeighbours();
  Put(Sequence(1, 2));
  Drain();
  UseDevice(1);
  const PendingAcquire load = BeginCounted(kAlice, Sequence(1, 2), 4);
  Settle();
  ExpectBytes(load.reply(), Sequence(1, 2));
  EXPECT_GE(Counted(load.reply()), 4u);
  EXPECT_EQ(cache_->stats().neighbour_blocks, 2u);
}

}  // namespace
}  // namespace kvtier
