// SPDX-License-Identifier: Apache-2.0
// One model on several devices: what they share, and what each has for itself.
#include <gtest/gtest.h>

#include "base/digest.h"
#include "tests/unit/tiers/cache_fixture.h"

namespace kvtier {
namespace {

using ::testing::ElementsAre;

class CacheDevicesTest : public CacheTest {
 protected:
  void StartTwo(CacheSetup setup = {}) {
    setup.devices = 2;
    Start(setup);
  }
  // The gauges of the device's pool.
  [[nodiscard]] PoolGauges PoolOn(uint32_t device) const {
    for (const PoolGauges& pool : cache_->Gauges().pools) {
      if (pool.device == DeviceIndex(device)) return pool;
    }
    return {};
  }
  void ExpectBytes(const AcquireReply& reply, const Hashes& hashes) {
    ASSERT_EQ(reply.hits.size(), hashes.size());
    for (size_t i = 0; i < hashes.size(); ++i) {
      EXPECT_TRUE(MatchesHash(hashes[i], Bytes(reply.hits[i].handle))) << i;
    }
  }
};

TEST_F(CacheDevicesTest, EachDeviceHasAPoolOfItsOwn) {
  StartTwo();
  const PoolInfo first = pool_;
  UseDevice(1);
  EXPECT_NE(pool_.id, first.id);
  EXPECT_NE(pool_.generation, first.generation);
  const CacheGauges gauges = cache_->Gauges();
  ASSERT_EQ(gauges.devices.size(), 2u);
  EXPECT_EQ(gauges.devices[0].pool_used_bytes, first.bytes);
  EXPECT_EQ(gauges.devices[1].pool_used_bytes, pool_.bytes);
}

TEST_F(CacheDevicesTest, ADeviceThatIsNotThereIsAnError) {
  StartTwo();
  EXPECT_THAT(cache_->AttachPool(Identity("tenant", 1), 0, DeviceIndex(2)),
              IsErrorOf(ErrorCode::kNotFound, "unknown_device"));
}

TEST_F(CacheDevicesTest, ABlockOfOnePoolComesToTheOtherThroughHost) {
  StartTwo();
  Put(Sequence(1, 3));
  ASSERT_FALSE(Presence(TestHash(1, 0)).host);
  UseDevice(1);
  const AcquireReply reply = Acquire(kAlice, Sequence(1, 3));
  EXPECT_THAT(TiersOf(reply), ElementsAre(Tier::kHost, Tier::kHost, Tier::kHost));
  EXPECT_EQ(LastProgress(reply.load).ready, 3u);
  ExpectBytes(reply, Sequence(1, 3));
  EXPECT_TRUE(Presence(TestHash(1, 0)).host);
  EXPECT_EQ(PoolOn(0).cached, 3u);
  EXPECT_EQ(PoolOn(1).referenced, 3u);
}

TEST_F(CacheDevicesTest, ABlockInBothPoolsIsServedByEach) {
  StartTwo();
  Put(Sequence(1, 2));
  UseDevice(1);
  Use(Sequence(1, 2));
  for (const uint32_t device : {0, 1}) {
    UseDevice(device);
    const AcquireReply reply = Acquire(kAlice, Sequence(1, 2));
    EXPECT_THAT(TiersOf(reply), ElementsAre(Tier::kPool, Tier::kPool));
    ExpectBytes(reply, Sequence(1, 2));
  }
}

TEST_F(CacheDevicesTest, BothDevicesMayComputeAndCommitTheSameBlock) {
  StartTwo();
  Put(Sequence(1, 1));
  UseDevice(1);
  const BlockHandle allocated = Acquire(kBob, {}, 1).new_blocks[0];
  const Result<CommitReply> committed = TryCommit(kBob, allocated, {.hash = TestHash(1, 0)});
  ASSERT_TRUE(committed);
  EXPECT_FALSE(committed->duplicate);
  Release(kBob, {allocated});
  Settle();
  EXPECT_EQ(PoolOn(0).cached + PoolOn(1).cached, 2u);
}

TEST_F(CacheDevicesTest, WhatLeavesOnePoolIsStillServedByTheOther) {
  StartTwo();
  Put(Sequence(1, 2));
  UseDevice(1);
  Use(Sequence(1, 2));
  UseDevice(0);
  EvictFromPool();
  EXPECT_FALSE(Presence(TestHash(1, 0)).pool);
  UseDevice(1);
  EXPECT_TRUE(Presence(TestHash(1, 0)).pool);
  EXPECT_THAT(TiersOf(Acquire(kAlice, Sequence(1, 2))), ElementsAre(Tier::kPool, Tier::kPool));
}

TEST_F(CacheDevicesTest, OneReadFromDiskServesLoadsOfBothDevices) {
  StartTwo();
  Put(Sequence(1, 4));
  DrainAndRestart();
  const uint64_t reads = machine_->disk_reads();
  const PendingAcquire first = BeginAcquire(kAlice, Sequence(1, 4));
  UseDevice(1);
  const PendingAcquire second = BeginAcquire(kBob, Sequence(1, 4));
  Settle();
  EXPECT_EQ(machine_->disk_reads() - reads, 4u);
  EXPECT_EQ(LastProgress(first.reply().load).ready, 4u);
  EXPECT_EQ(LastProgress(second.reply().load).ready, 4u);
  ExpectBytes(second.reply(), Sequence(1, 4));
}

TEST_F(CacheDevicesTest, AReadThatFailsEndsTheLoadsOfBothDevices) {
  StartTwo();
  Put(Sequence(1, 1));
  DrainAndRestart();
  machine_->SetDiskFaultRates({.read_eio = 1});
  const PendingAcquire first = BeginAcquire(kAlice, Sequence(1, 1));
  UseDevice(1);
  const PendingAcquire second = BeginAcquire(kBob, Sequence(1, 1));
  Settle();
  for (const PendingAcquire& pending : {first, second}) {
    const LoadProgress last = LastProgress(pending.reply().load);
    EXPECT_TRUE(last.finished);
    EXPECT_EQ(last.ready, 0u);
    EXPECT_EQ(last.miss, MissReason::kReadError);
  }
}

TEST_F(CacheDevicesTest, ACopyOutOfTheOtherPoolThatFailsIsAMissNotALie) {
  StartTwo();
  Put(Sequence(1, 1));
  UseDevice(1);
  machine_->devices[0]->FailNextCopies(1);
  const AcquireReply failed = Acquire(kAlice, Sequence(1, 1));
  ASSERT_EQ(failed.hits.size(), 1u);
  EXPECT_TRUE(LastProgress(failed.load).finished);
  EXPECT_EQ(LastProgress(failed.load).ready, 0u);
  Release(kAlice, HandlesOf(failed));
  // The next who asks makes a new try.
  const AcquireReply again = Acquire(kBob, Sequence(1, 1));
  EXPECT_EQ(LastProgress(again.load).ready, 1u);
  ExpectBytes(again, Sequence(1, 1));
}

TEST_F(CacheDevicesTest, ACopyIsOnTheDeviceThatHasThePool) {
  StartTwo();
  Put(Sequence(1, 2));
  UseDevice(1);
  Use(Sequence(1, 2));
  EXPECT_EQ(machine_->devices[0]->copies_completed(), 2u);  // down
  EXPECT_EQ(machine_->devices[1]->copies_completed(), 2u);  // up
}

TEST_F(CacheDevicesTest, AReferenceOnAnyDeviceKeepsTheBlockFromExpiry) {
  StartTwo();
  Put(Sequence(1, 1), RetentionClass::kMemory);
  UseDevice(1);
  const AcquireReply reply = Acquire(kAlice, Sequence(1, 1));
  AdvanceAndTick(setup_.options.memory_ttl_ms + 5000);
  ExpectBytes(reply, Sequence(1, 1));
  EXPECT_TRUE(Presence(TestHash(1, 0)).pool);
  Release(kAlice, HandlesOf(reply));
  AdvanceAndTick(setup_.options.memory_ttl_ms + 5000);
  EXPECT_FALSE(Presence(TestHash(1, 0)).anywhere());
  EXPECT_EQ(PoolOn(0).free, PoolOn(0).blocks);
  EXPECT_EQ(PoolOn(1).free, PoolOn(1).blocks);
}

TEST_F(CacheDevicesTest, AChecksumIsComparedWithTheBytesItWasGivenFor) {
  StartTwo();
  Handles handles;
  for (const uint32_t device : {0, 1}) {
    UseDevice(device);
    const BlockHandle allocated = Acquire(kAlice, {}, 1).new_blocks[0];
    // As two GPUs compute it: not bit by bit the same.
    CommitRequest request{.block = allocated, .hash = TestHash(1, 0), .tokens = kBlockTokens};
    FillFromHash(TestHash(9, device), Bytes(allocated));
    request.checksum = ChecksumPayload(Bytes(allocated));
    ASSERT_TRUE(cache_->Commit(kAlice, pool_.id, request));
    handles.push_back(allocated);
  }
  Drain();
  EXPECT_EQ(Drops(Tier::kPool, DropReason::kClientWroteCommitted), 0u);
  EXPECT_TRUE(Presence(TestHash(1, 0)).disk);
}

TEST_F(CacheDevicesTest, ADroppedBlocksChecksumDoesNotJudgeTheNextOfItsName) {
  Start({.pool_blocks = 4});
  Put(Sequence(1, 1));
  DrainAndRestart();
  // On disk only. A client commits it anew and lets go of it.
  const auto commit = [&](std::optional<PayloadChecksum> checksum) {
    const BlockHandle allocated = Acquire(kAlice, {}, 1).new_blocks[0];
    FillFromHash(TestHash(1, 0), Bytes(allocated));
    CommitRequest request{.block = allocated, .hash = TestHash(1, 0), .tokens = kBlockTokens};
    request.checksum = checksum;
    ASSERT_TRUE(cache_->Commit(kAlice, pool_.id, request));
    Release(kAlice, {allocated});
  };
  commit(PayloadChecksum{});
  EXPECT_EQ(cache_->Evict({NamespaceId(0), TestHash(1, 0)}, Tier::kPool), EvictOutcome::kEvicted);
  commit(std::nullopt);
  EvictFromPool();
  EXPECT_EQ(Drops(Tier::kPool, DropReason::kClientWroteCommitted), 0u);
}

TEST_F(CacheDevicesTest, EachDeviceHasACapOfItsOwn) {
  StartTwo({.pool_blocks = 4});
  UseDevice(1);
  EXPECT_THAT(cache_->AttachPool(Identity("tenant", 2), kBlockBytes, DeviceIndex(1)),
              IsErrorOf(ErrorCode::kResourceExhausted, "pool_bytes_exhausted"));
  EXPECT_EQ(PoolOn(0).blocks, 4u);
  EXPECT_EQ(PoolOn(1).blocks, 4u);
}

// One GPU's bus is busy while the other's is idle, and all of the tenant's copies are large.
class CacheBusesTest : public CacheDevicesTest {
 protected:
  void StartWithOneCopyAtATime() {
    CacheSetup setup;
    setup.options.max_load_bytes = setup.options.max_offload_bytes = kBlockBytes;
    StartTwo(setup);
  }
  // Blocks of both sequences, on disk alone.
  void StoreBoth() {
    Put(Sequence(1, 4));
    Put(Sequence(2, 4));
    DrainAndRestart();
  }
  // The first device's copies take as long as the test likes.
  void HoldFirst() { machine_->loop.Hold(machine_->devices[0]->source()); }
};

TEST_F(CacheBusesTest, ALoadOfOneDeviceWaitsForNoCopyOfAnother) {
  StartWithOneCopyAtATime();
  StoreBoth();
  HoldFirst();
  const PendingAcquire first = BeginAcquire(kAlice, Sequence(1, 4));
  UseDevice(1);
  const PendingAcquire second = BeginAcquire(kAlice, Sequence(2, 4));
  machine_->loop.RunAll();
  EXPECT_FALSE(LastProgress(first.reply().load).finished);
  EXPECT_EQ(LastProgress(second.reply().load).ready, 4u);
  machine_->loop.LetGo(machine_->devices[0]->source());
  Settle();
  EXPECT_EQ(LastProgress(first.reply().load).ready, 4u);
}

TEST_F(CacheBusesTest, ALoadInLayersOfOneDeviceWaitsForNoCopyOfAnother) {
  StartWithOneCopyAtATime();
  StoreBoth();
  Use(Sequence(1, 4));
  Use(Sequence(2, 4));
  EvictFromPool();
  HoldFirst();
  const PendingAcquire first = BeginCounted(kAlice, Sequence(1, 4), 4);
  UseDevice(1);
  const PendingAcquire second = BeginCounted(kAlice, Sequence(2, 4), 4);
  machine_->loop.RunAll();
  EXPECT_EQ(Counted(first.reply()), 0u);
  EXPECT_EQ(LastProgress(second.reply().load).ready, 4u);
  machine_->loop.LetGo(machine_->devices[0]->source());
  Settle();
  EXPECT_EQ(LastProgress(first.reply().load).ready, 4u);
}

TEST_F(CacheBusesTest, BlocksOfOneDeviceComeToHostWhileAnotherCopiesItsOwn) {
  StartWithOneCopyAtATime();
  HoldFirst();
  (void)Store(kAlice, Sequence(1, 4));
  UseDevice(1);
  (void)Store(kAlice, Sequence(2, 4));
  cache_->Drain([] {});
  machine_->loop.RunAll();
  EXPECT_TRUE(Presence(TestHash(2, 3)).host);
  EXPECT_FALSE(Presence(TestHash(1, 3)).host);
  machine_->loop.LetGo(machine_->devices[0]->source());
  Settle();
  EXPECT_TRUE(Presence(TestHash(1, 3)).host);
}

}  // namespace
}  // namespace kvtier
