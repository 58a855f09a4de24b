// SPDX-License-Identifier: Apache-2.0
// Writing to disk, and every way in which a disk fails.

#include "base/digest.h"
#include "tests/unit/tiers/cache_fixture.h"

namespace kvtier {
namespace {

class CacheDiskTest : public CacheTest {
 protected:
  void PutOnDisk(const Hashes& hashes) {
    Put(hashes);
    DrainAndRestart();
    for (const BlockHash& hash : hashes) ASSERT_TRUE(Presence(hash).disk);
  }
  // Acquires one block that is on disk and returns what came of it.
  LoadProgress LoadOne(const BlockHash& hash) {
    const AcquireReply reply = Acquire(kAlice, {hash});
    if (reply.hits.empty()) return {.finished = true, .miss = reply.miss};
    Release(kAlice, HandlesOf(reply));
    Settle();
    return LastProgress(reply.load);
  }
  // Damages every byte of the file at rest that is not zero.
  void DamageContents() {
    for (std::byte& byte : file().contents()) {
      if (byte != std::byte{0}) byte ^= std::byte{0x10};
    }
  }
};

TEST_F(CacheDiskTest, HostTierLargerThanTheDiskDoesNotWriteInCircles) {
  CacheSetup setup{.pool_blocks = 32, .host_slots = 32, .disk_slots = 8};
  setup.options.host_clean_fraction = 0.9;
  Start(setup);
  Put(Sequence(1, 32));
  EvictFromPool();
  EXPECT_LE(machine_->disk_writes(), 40u);
}

TEST_F(CacheDiskTest, BlockIsNotReportedOnDiskBeforeItsIndexEntryIsDurable) {
  Start();
  Put(Sequence(1, 1));
  machine_->loop.Hold(machine_->index->source());
  cache_->Drain([] {});
  Settle();
  EXPECT_FALSE(Presence(TestHash(1, 0)).disk);
  machine_->loop.LetGo(machine_->index->source());
  Settle();
  EXPECT_TRUE(Presence(TestHash(1, 0)).disk);
}

TEST_F(CacheDiskTest, DataIsSyncedBeforeItsIndexEntryIsWritten) {
  Start();
  machine_->loop.Hold(file().source());
  Put(Sequence(1, 1));
  cache_->Drain([] {});
  Settle();
  while (machine_->index->batches_applied() == 0 && file().syncs() == 0) {
    ASSERT_TRUE(machine_->loop.RunOneOf(file().source()));
    Settle();
  }
  EXPECT_EQ(file().syncs(), 1u);
  EXPECT_FALSE(Presence(TestHash(1, 0)).disk);
  machine_->loop.LetGo(file().source());
  Settle();
  EXPECT_TRUE(Presence(TestHash(1, 0)).disk);
}

TEST_F(CacheDiskTest, MemoryClassNeverReachesTheDisk) {
  Start({.pool_blocks = 4, .host_slots = 8});
  for (uint64_t stream = 1; stream <= 8; ++stream) {
    Put(Sequence(stream, 4), RetentionClass::kMemory);
  }
  Drain();
  EXPECT_EQ(cache_->Gauges().disk_blocks, 0u);
  EXPECT_EQ(cache_->stats().disk_write_blocks, 0u);
  EXPECT_GT(Drops(Tier::kHost, DropReason::kMemoryClass), 0u);
}

TEST_F(CacheDiskTest, IdleBlockIsPersistedAfterItsTime) {
  CacheSetup setup;
  setup.options.persist_after_ms = 5'000;
  Start(setup);
  Put(Sequence(1, 2));
  AdvanceAndTick(3'000);
  EXPECT_FALSE(Presence(TestHash(1, 0)).disk);
  AdvanceAndTick(5'000);
  AdvanceAndTick(1'000);
  EXPECT_TRUE(Presence(TestHash(1, 0)).disk);
  EXPECT_TRUE(Presence(TestHash(1, 1)).disk);
}

TEST_F(CacheDiskTest, MemoryClassIsNotPersistedWhenIdle) {
  CacheSetup setup;
  setup.options.persist_after_ms = 5'000;
  Start(setup);
  Put(Sequence(1, 2), RetentionClass::kMemory);
  AdvanceAndTick(10'000);
  AdvanceAndTick(10'000);
  EXPECT_EQ(machine_->disk_writes(), 0u);
}

TEST_F(CacheDiskTest, WriteBudgetBoundsTheDaysBytes) {
  CacheSetup setup;
  setup.options.disk_write_budget_bytes_per_day = 3 * 2 * kBlockBytes;
  Start(setup);
  Put(Sequence(1, 8));
  Drain();
  EXPECT_LE(cache_->stats().disk_write_bytes, setup.options.disk_write_budget_bytes_per_day);
  EXPECT_LE(cache_->Gauges().disk_blocks, 3u);
  EXPECT_GT(Drops(Tier::kDisk, DropReason::kWriteBudget), 0u);
}

TEST_F(CacheDiskTest, WriteBudgetIsNewEachDayForBlocksThatItRefused) {
  CacheSetup setup;
  setup.options.disk_write_budget_bytes_per_day = 2 * 2 * kBlockBytes;
  Start(setup);
  Put(Sequence(1, 4));
  Drain();
  ASSERT_EQ(cache_->Gauges().disk_blocks, 2u);
  AdvanceAndTick(13 * kHourMs);
  Use(Sequence(1, 4));
  AdvanceAndTick(12 * kHourMs);
  EXPECT_GT(cache_->Gauges().write_budget_left_bytes, 0u);
  Use(Sequence(1, 4));
  Drain();
  EXPECT_EQ(cache_->Gauges().disk_blocks, 4u);
}

TEST_F(CacheDiskTest, FlippedBitOnOneReadIsRepairedByTheRetry) {
  Start();
  PutOnDisk(Sequence(1, 1));
  file().ScriptReads({ReadFault::kFlipped});
  const LoadProgress progress = LoadOne(TestHash(1, 0));
  EXPECT_EQ(progress.ready, 1u);
  EXPECT_EQ(cache_->stats().disk_read_retries, 1u);
  EXPECT_EQ(cache_->stats().disk_read_repaired, 1u);
  EXPECT_TRUE(Presence(TestHash(1, 0)).disk);
}

TEST_F(CacheDiskTest, DamageAtRestIsAMissAndTheSlotIsQuarantined) {
  Start();
  PutOnDisk(Sequence(1, 1));
  DamageContents();
  const LoadProgress progress = LoadOne(TestHash(1, 0));
  EXPECT_EQ(progress.ready, 0u);
  EXPECT_NE(progress.miss, MissReason::kNone);
  EXPECT_EQ(cache_->stats().slots_quarantined, 1u);
  EXPECT_EQ(Drops(Tier::kDisk, DropReason::kCorrupt), 1u);
  EXPECT_FALSE(Presence(TestHash(1, 0)).anywhere());
}

TEST_F(CacheDiskTest, QuarantinedBlockCanBeStoredAgain) {
  Start();
  PutOnDisk(Sequence(1, 1));
  DamageContents();
  (void)LoadOne(TestHash(1, 0));
  PutOnDisk(Sequence(1, 1));
  EXPECT_EQ(LoadOne(TestHash(1, 0)).ready, 1u);
}

TEST_F(CacheDiskTest, OneFailedReadIsRepairedByTheRetry) {
  Start();
  PutOnDisk(Sequence(1, 1));
  file().ScriptReads({ReadFault::kEio});
  EXPECT_EQ(LoadOne(TestHash(1, 0)).ready, 1u);
  EXPECT_GE(cache_->stats().disk_read_errors, 1u);
}

TEST_F(CacheDiskTest, ShortReadIsRepairedByTheRetry) {
  Start();
  PutOnDisk(Sequence(1, 1));
  file().ScriptReads({ReadFault::kShort});
  EXPECT_EQ(LoadOne(TestHash(1, 0)).ready, 1u);
}

TEST_F(CacheDiskTest, ReadThatFailsTwiceIsAMiss) {
  Start();
  PutOnDisk(Sequence(1, 1));
  file().ScriptReads({ReadFault::kEio, ReadFault::kEio});
  const LoadProgress progress = LoadOne(TestHash(1, 0));
  EXPECT_EQ(progress.ready, 0u);
  EXPECT_EQ(progress.miss, MissReason::kReadError);
  EXPECT_EQ(Drops(Tier::kDisk, DropReason::kReadError), 1u);
}

TEST_F(CacheDiskTest, FailureInMidLoadGivesTheReadyPrefixAndAReason) {
  Start();
  PutOnDisk(Sequence(1, 4));
  file().ScriptReads(
      {ReadFault::kNone, ReadFault::kNone, ReadFault::kEio, ReadFault::kNone, ReadFault::kEio});
  const AcquireReply reply = Acquire(kAlice, Sequence(1, 4));
  const LoadProgress& last = LastProgress(reply.load);
  EXPECT_EQ(last.ready, 2u);
  EXPECT_EQ(last.miss, MissReason::kReadError);
  EXPECT_TRUE(MatchesHash(TestHash(1, 1), Bytes(reply.hits[1].handle)));
}

TEST_F(CacheDiskTest, LostWriteIsAMissWhenItIsReadBack) {
  Start();
  Put(Sequence(1, 1));
  file().ScriptWrites({WriteFault::kNone, WriteFault::kLost});
  DrainAndRestart();
  EXPECT_EQ(LoadOne(TestHash(1, 0)).ready, 0u);
}

TEST_F(CacheDiskTest, TornWriteIsNeverServed) {
  Start();
  Put(Sequence(1, 4));
  file().ScriptWrites(std::vector(10, WriteFault::kTorn));
  DrainAndRestart();
  for (const BlockHash& hash : Sequence(1, 4)) EXPECT_EQ(LoadOne(hash).ready, 0u);
}

TEST_F(CacheDiskTest, MisdirectedWriteIsNeverServedAsAnother) {
  Start();
  Put(Sequence(1, 8));
  file().ScriptWrites(std::vector(16, WriteFault::kMisdirected));
  DrainAndRestart();
  for (const BlockHash& hash : Sequence(1, 8)) {
    const AcquireReply reply = Acquire(kAlice, {hash});
    if (reply.load.value == 0 || LastProgress(reply.load).ready == 0) continue;
    EXPECT_TRUE(MatchesHash(hash, Bytes(reply.hits[0].handle)));
  }
}

TEST_F(CacheDiskTest, FailedWriteLeavesTheBlockUnpersistedAndIsCounted) {
  Start();
  Put(Sequence(1, 1));
  file().ScriptWrites(std::vector(10, WriteFault::kEio));
  Drain();
  EXPECT_FALSE(Presence(TestHash(1, 0)).disk);
  EXPECT_TRUE(Presence(TestHash(1, 0)).pool);
  EXPECT_GE(cache_->stats().disk_write_errors, 1u);
  EXPECT_GE(Drops(Tier::kDisk, DropReason::kWriteError), 1u);
}

TEST_F(CacheDiskTest, FullDiskDegradesToMissesAndTheCacheLives) {
  Start({.pool_blocks = 4, .host_slots = 8});
  file().SetFaultRates({.write_enospc = 1.0});
  for (uint64_t stream = 1; stream <= 8; ++stream) Put(Sequence(stream, 4));
  EXPECT_EQ(cache_->Gauges().disk_persisted, 0u);
  EXPECT_TRUE(cache_->Gauges().disk_degraded);
  Use(Sequence(8, 4));
}

TEST_F(CacheDiskTest, DeadDiskDegradesToMissesAndTheCacheLives) {
  Start({.pool_blocks = 4, .host_slots = 8});
  PutOnDisk(Sequence(1, 4));
  file().SetFaultRates({.write_eio = 1.0, .read_eio = 1.0, .sync_eio = 1.0});
  EXPECT_EQ(LoadOne(TestHash(1, 0)).ready, 0u);
  for (uint64_t stream = 2; stream <= 8; ++stream) Put(Sequence(stream, 4));
  Use(Sequence(8, 4));
}

TEST_F(CacheDiskTest, FailedSyncLeavesTheBlockUnpersisted) {
  Start();
  Put(Sequence(1, 1));
  file().SetFaultRates({.sync_eio = 1.0});
  Drain();
  EXPECT_FALSE(Presence(TestHash(1, 0)).disk);
}

TEST_F(CacheDiskTest, FailedIndexBatchLeavesTheBlockUnpersistedAndIsCounted) {
  Start();
  Put(Sequence(1, 1));
  machine_->index->FailBatchesAtRate(1.0);
  Drain();
  EXPECT_FALSE(Presence(TestHash(1, 0)).disk);
  EXPECT_GE(cache_->stats().index_errors, 1u);
}

TEST_F(CacheDiskTest, ClientThatWritesIntoACommittedBlockIsCaughtByItsChecksum) {
  Start({.pool_blocks = 4});
  const BlockHandle block = Acquire(kAlice, {}, 1).new_blocks.front();
  FillFromHash(TestHash(1, 0), Bytes(block));
  const PayloadChecksum checksum = ChecksumPayload(Bytes(block));
  ASSERT_TRUE(TryCommit(kAlice, block, {.hash = TestHash(1, 0), .checksum = checksum}));
  Bytes(block)[100] ^= std::byte{1};
  Release(kAlice, {block});
  Settle();
  EvictFromPool();
  EXPECT_FALSE(Presence(TestHash(1, 0)).anywhere());
  EXPECT_EQ(Drops(Tier::kHost, DropReason::kClientWroteCommitted) +
                Drops(Tier::kPool, DropReason::kClientWroteCommitted),
            1u);
}

TEST_F(CacheDiskTest, RightChecksumAtCommitIsAccepted) {
  Start({.pool_blocks = 4});
  const BlockHandle block = Acquire(kAlice, {}, 1).new_blocks.front();
  FillFromHash(TestHash(1, 0), Bytes(block));
  ASSERT_TRUE(TryCommit(kAlice, block,
                        {.hash = TestHash(1, 0), .checksum = ChecksumPayload(Bytes(block))}));
  Release(kAlice, {block});
  EvictFromPool();
  EXPECT_TRUE(Presence(TestHash(1, 0)).host);
}

TEST_F(CacheDiskTest, WhatLeavesTheDiskUnreadIsCountedByItsAge) {
  CacheSetup setup;
  setup.options.extended_ttl_ms = 7 * kHourMs;
  Start(setup);
  Put(Sequence(1, 4));
  Drain();
  AdvanceAndTick(8 * kHourMs);
  ASSERT_FALSE(Presence(TestHash(1, 0)).disk);
  EXPECT_THAT(cache_->stats().disk_never_read.bytes,
              testing::ElementsAre(0, 0, 4 * 2 * kBlockBytes, 0));
}

TEST_F(CacheDiskTest, WhatWasLoadedFromDiskIsNotCountedAsUnread) {
  CacheSetup setup;
  setup.options.extended_ttl_ms = kHourMs / 2;
  Start(setup);
  Put(Sequence(1, 4));
  Drain();
  for (const BlockHash& hash : Sequence(1, 4)) {
    for (const Tier tier : {Tier::kPool, Tier::kHost}) {
      cache_->Evict({pool_.namespace_id, hash}, tier);
    }
  }
  Use(Sequence(1, 4));
  ASSERT_EQ(cache_->stats().disk_read_blocks, 4u);
  AdvanceAndTick(kHourMs);
  ASSERT_FALSE(Presence(TestHash(1, 0)).disk);
  EXPECT_EQ(cache_->stats().disk_never_read.bytes[0], 0u);
}

TEST_F(CacheDiskTest, OfWhatAnEarlierProcessWroteIsNotKnownWhetherItWasRead) {
  CacheSetup setup;
  setup.options.extended_ttl_ms = kHourMs / 2;
  Start(setup);
  Put(Sequence(1, 4));
  DrainAndRestart();
  AdvanceAndTick(kHourMs);
  ASSERT_FALSE(Presence(TestHash(1, 0)).disk);
  EXPECT_EQ(cache_->stats().disk_never_read.bytes[0], 0u);
}

TEST_F(CacheDiskTest, VerifyFindsDamageAndQuarantinesIt) {
  Start();
  PutOnDisk(Sequence(1, 4));
  DamageContents();
  std::optional<Cache::VerifyResult> result;
  cache_->VerifyStep(0, 100, [&](Cache::VerifyResult r) { result = r; });
  Settle();
  ASSERT_TRUE(result.has_value());
  EXPECT_TRUE(result->finished);
  EXPECT_EQ(result->checked, 4u);
  EXPECT_EQ(result->bad, 4u);
  EXPECT_EQ(cache_->Gauges().disk_persisted, 0u);
}

TEST_F(CacheDiskTest, VerifyDropsNoBlockThatTheDriveDoesNotReturn) {
  Start();
  PutOnDisk(Sequence(1, 4));
  file().SetFaultRates({.read_eio = 1.0});
  std::optional<Cache::VerifyResult> result;
  cache_->VerifyStep(0, 100, [&](Cache::VerifyResult r) { result = r; });
  Settle();
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->checked, 0u);
  EXPECT_EQ(result->bad, 0u);
  EXPECT_EQ(result->unread, 4u);
  EXPECT_EQ(cache_->Gauges().disk_persisted, 4u);
  file().SetFaultRates({});
  for (const BlockHash& hash : Sequence(1, 4)) EXPECT_EQ(LoadOne(hash).miss, MissReason::kNone);
}

TEST_F(CacheDiskTest, VerifyReadsABlockOnceMoreSinceAFaultMayLieOnTheWay) {
  Start();
  PutOnDisk(Sequence(1, 1));
  for (const ReadFault fault : {ReadFault::kFlipped, ReadFault::kEio}) {
    file().ScriptReads({fault});
    std::optional<Cache::VerifyResult> result;
    cache_->VerifyStep(0, 100, [&](Cache::VerifyResult r) { result = r; });
    Settle();
    ASSERT_TRUE(result.has_value());
    EXPECT_EQ(result->checked, 1u);
    EXPECT_EQ(result->bad, 0u);
    EXPECT_TRUE(Presence(TestHash(1, 0)).disk);
  }
  EXPECT_EQ(cache_->stats().disk_read_retries, 2u);
}

TEST_F(CacheDiskTest, VerifyOfSoundBlocksFindsNothingInAnyStepSize) {
  Start();
  PutOnDisk(Sequence(1, 10));
  uint64_t cursor = 0, checked = 0;
  for (bool finished = false; !finished;) {
    cache_->VerifyStep(cursor, 3, [&](const Cache::VerifyResult& r) {
      cursor = r.next_cursor;
      checked += r.checked;
      finished = r.finished;
      EXPECT_EQ(r.bad, 0u);
    });
    Settle();
  }
  EXPECT_EQ(checked, 10u);
}

TEST_F(CacheDiskTest, VerifyLooksAtABoundedPartOfManyBlocksThatOnlyPoolsHave) {
  constexpr uint32_t kBlocks = 10'000;
  Start({.pool_blocks = kBlocks});
  PutOnDisk(Sequence(1, 4));
  const Handles held = Store(kAlice, Sequence(2, kBlocks - 10), RetentionClass::kMemory);
  uint64_t cursor = 0, checked = 0;
  for (bool finished = false; !finished;) {
    const uint64_t before = cursor;
    cache_->VerifyStep(cursor, 100, [&](const Cache::VerifyResult& r) {
      cursor = r.next_cursor;
      checked += r.checked;
      finished = r.finished;
    });
    Settle();
    ASSERT_GT(cursor, before);
    EXPECT_LE(cursor - before, 4096u);
  }
  EXPECT_GE(cursor, kBlocks - 10);
  EXPECT_EQ(checked, 4u);
}

// A slab has more slots than the prefix has blocks: one open slab would put all on one drive.
TEST_F(CacheDiskTest, AShortPrefixIsReadFromAllDrives) {
  Start({.pool_blocks = 32, .host_slots = 32, .disk_slots = 64, .disk_files = 4});
  Put(Sequence(1, 8));
  DrainAndRestart();
  std::array<size_t, 4> before{};
  for (uint32_t drive = 0; drive < 4; ++drive) before[drive] = file(drive).reads();
  const AcquireReply reply = Acquire(kAlice, Sequence(1, 8));
  EXPECT_EQ(LastProgress(reply.load).ready, 8u);
  for (uint32_t drive = 0; drive < 4; ++drive) {
    EXPECT_EQ(file(drive).reads() - before[drive], 2u) << "drive " << drive;
  }
  for (uint32_t i = 0; i < 8; ++i) {
    EXPECT_TRUE(MatchesHash(TestHash(1, i), Bytes(reply.hits[i].handle)));
  }
}

TEST_F(CacheDiskTest, VictimsAreFoundWithoutSteppingOverPinnedBlocks) {
  Start({.disk_slots = 32});
  Put(Sequence(1, 14));
  Drain();
  ASSERT_EQ(cache_->Pin(kAlice, pool_.id, Sequence(1, 14), 60 * 60 * 1000), 14u);
  for (uint64_t stream = 2; stream < 8; ++stream) {
    Put(Sequence(stream, 10));
    Drain();
  }
  const uint64_t evicted =
      Drops(Tier::kDisk, DropReason::kLru) + Drops(Tier::kDisk, DropReason::kCopyAbove);
  ASSERT_GE(evicted, 30u);
  EXPECT_LE(cache_->stats().disk_eviction_steps, evicted);
  for (const BlockHash& hash : Sequence(1, 14)) EXPECT_TRUE(Presence(hash).disk);
}

TEST_F(CacheDiskTest, UnpinnedBlocksAreEvictedAgain) {
  Start({.disk_slots = 16});
  Put(Sequence(1, 6));
  Drain();
  ASSERT_EQ(cache_->Pin(kAlice, pool_.id, Sequence(1, 6), 60 * 60 * 1000), 6u);
  ASSERT_EQ(cache_->Pin(kAlice, pool_.id, Sequence(1, 6), 0), 6u);
  for (uint64_t stream = 2; stream < 6; ++stream) {
    Put(Sequence(stream, 8));
    Drain();
  }
  for (const BlockHash& hash : Sequence(1, 6)) EXPECT_FALSE(Presence(hash).disk);
}

TEST_F(CacheDiskTest, ABlockThatCannotBeReadStaysUntilItsRecordIsInTheIndex) {
  Start({.host_slots = kSlotsPerSlab});
  machine_->index->RefuseNextBatches(100);
  Put(Sequence(1, 1));
  cache_->Drain([] {});
  Settle();
  EvictFromPool();
  Put(Sequence(2, kSlotsPerSlab));
  EvictFromPool();
  ASSERT_EQ(cache_->Gauges().disk_persisted, 0u);
  // A check finds it whole, and its record is on the way to the index.
  machine_->index->RefuseNextBatches(0);
  AdvanceAndTick(1000);
  machine_->loop.Hold(machine_->index->source());
  cache_->VerifyStep(0, 100, [](const Cache::VerifyResult&) {});
  Settle();
  ASSERT_FALSE(Presence(TestHash(1, 0)).host);
  file().ScriptReads({ReadFault::kEio, ReadFault::kEio});
  const PendingAcquire failed = BeginAcquire(kAlice, Sequence(1, 1));
  Settle();
  EXPECT_TRUE(failed.succeeded());
  EXPECT_EQ(Drops(Tier::kDisk, DropReason::kReadError), 0u);
  machine_->loop.LetGo(machine_->index->source());
  Settle();
  file().ScriptReads({ReadFault::kEio, ReadFault::kEio});
  (void)BeginAcquire(kBob, Sequence(1, 1));
  Settle();
  EXPECT_EQ(Drops(Tier::kDisk, DropReason::kReadError), 1u);
}

// The reverse: a load has found the block whole while a check of it was under way.
TEST_F(CacheDiskTest, ABlockThatACheckFindsDamagedStaysUntilItsRecordIsInTheIndex) {
  Start();
  machine_->index->RefuseNextBatches(100);
  Put(Sequence(1, 1));
  cache_->Drain([] {});
  Settle();
  for (const Tier tier : {Tier::kPool, Tier::kHost}) {
    ASSERT_EQ(cache_->Evict({pool_.namespace_id, TestHash(1, 0)}, tier), EvictOutcome::kEvicted);
  }
  ASSERT_EQ(cache_->Gauges().disk_blocks, 1u);
  ASSERT_EQ(cache_->Gauges().disk_persisted, 0u);
  machine_->index->RefuseNextBatches(0);
  AdvanceAndTick(1000);
  // The bytes that the check was given are damaged, and are looked at late.
  machine_->loop.Hold(machine_->executor->source());
  file().ScriptReads({ReadFault::kFlipped, ReadFault::kNone, ReadFault::kFlipped});
  std::optional<Cache::VerifyResult> verified;
  cache_->VerifyStep(0, 100, [&](const Cache::VerifyResult& result) { verified = result; });
  while (machine_->loop.RunOneOf(machine_->executor->source())) {
  }  // It has a buffer.
  Settle();
  machine_->loop.Hold(machine_->index->source());
  const PendingAcquire load = BeginAcquire(kAlice, Sequence(1, 1));
  Settle();
  ASSERT_TRUE(Presence(TestHash(1, 0)).host);
  ASSERT_EQ(machine_->loop.pending(machine_->index->source()), 1u);
  machine_->loop.LetGo(machine_->executor->source());
  Settle();
  ASSERT_TRUE(verified.has_value());
  EXPECT_EQ(verified->bad, 1u);
  machine_->loop.LetGo(machine_->index->source());
  Settle();
  EXPECT_TRUE(load.succeeded());
}

TEST_F(CacheDiskTest, AFullFileSystemTakesNoSlotFromTheTier) {
  Start({.pool_blocks = 32, .host_slots = 32, .disk_slots = 32});
  file().SetFaultRates({.write_enospc = 1.0});
  for (uint64_t stream = 1; stream <= 8; ++stream) {
    Put(Sequence(stream, 8));
    Drain();
    AdvanceAndTick(11'000);
  }
  EXPECT_GT(cache_->stats().disk_write_errors, 0u);
  EXPECT_EQ(cache_->stats().slots_quarantined, 0u);
  file().SetFaultRates({});
  Put(Sequence(100, 8));
  Drain();
  for (const BlockHash& hash : Sequence(100, 8)) EXPECT_TRUE(Presence(hash).disk);
}

TEST_F(CacheDiskTest, SlotIsNotGivenToAnotherBlockBeforeItsDeletionIsDurable) {
  Start({.disk_slots = 16});
  Put(Sequence(1, 16));
  Drain();
  ASSERT_EQ(cache_->Gauges().disk_blocks, 16u);
  const uint64_t written = cache_->stats().disk_write_blocks;
  machine_->loop.Hold(machine_->index->source());
  Put(Sequence(2, 1));
  cache_->Drain([] {});
  Settle();
  EXPECT_EQ(cache_->Gauges().disk_blocks, 15u) << "the coldest has left";
  EXPECT_EQ(cache_->stats().disk_write_blocks, written) << "but its slot is not free yet";
  machine_->loop.LetGo(machine_->index->source());
  Settle();
  EXPECT_EQ(cache_->stats().disk_write_blocks, written + 1);
}

}  // namespace
}  // namespace kvtier
