// SPDX-License-Identifier: Apache-2.0
// The blocks that are left after a crash.

#include <algorithm>
#include <functional>

#include "base/units.h"
#include "tests/unit/tiers/cache_fixture.h"

namespace kvtier {
namespace {

using ::testing::Each;

class CacheRestartTest : public CacheTest {};

TEST_F(CacheRestartTest, DrainedBlocksAreServedFromDiskWithTheirBytes) {
  Start();
  Put(Sequence(1, 10));
  DrainAndRestart();
  EXPECT_EQ(cache_->stats().restored_blocks, 10u);
  const AcquireReply reply = Acquire(kAlice, Sequence(1, 10));
  EXPECT_EQ(reply.hits.size(), 10u);
  EXPECT_THAT(TiersOf(reply), Each(Tier::kDisk));
  EXPECT_EQ(LastProgress(reply.load).ready, 10u);
  for (uint32_t i = 0; i < 10; ++i) {
    EXPECT_TRUE(MatchesHash(TestHash(1, i), Bytes(reply.hits[i].handle)));
  }
}

TEST_F(CacheRestartTest, WhatWasNotPersistedIsGone) {
  Start();
  Put(Sequence(1, 2));
  CrashAndRestart();
  EXPECT_FALSE(Presence(TestHash(1, 0)).anywhere());
  EXPECT_EQ(Acquire(kAlice, Sequence(1, 2)).miss, MissReason::kUnknown);
}

// The process may have written slots before its end of which the index never heard.
TEST_F(CacheRestartTest, GenerationsLeaveOutThoseOfWritesThatTheIndexNeverHeardOf) {
  constexpr uint32_t kLeftOut = 65536;
  Start();
  Put(Sequence(1, 1));
  DrainAndRestart();
  const uint32_t known = machine_->Snapshot().records.at(0).generation;
  Put(Sequence(2, 1));
  Drain();
  uint32_t newest = 0;
  for (const IndexRecord& record : machine_->Snapshot().records) {
    newest = std::max(newest, record.generation);
  }
  EXPECT_EQ(newest, known + 1 + kLeftOut);
}

// On a drive that lies about its flush an index can lose writes that it had acknowledged. Headers
// of then are still there, and a rebuild of the index must not take them for the later ones.
TEST_F(CacheRestartTest, GenerationsGoOnRisingThoughTheIndexHasLostAll) {
  Start();
  DrainAndRestart();
  DrainAndRestart();
  Put(Sequence(1, 1));
  Drain();
  const uint32_t lost = machine_->Snapshot().records.at(0).generation;
  machine_->index->LoseTail(machine_->index->batches_applied());
  CrashAndRestart();
  Put(Sequence(1, 1));
  Drain();
  EXPECT_GT(machine_->Snapshot().records.at(0).generation, lost);
}

TEST_F(CacheRestartTest, TokensSurvive) {
  Start();
  const BlockHandle block = Acquire(kAlice, {}, 1).new_blocks.front();
  ASSERT_TRUE(TryCommit(kAlice, block, {.hash = TestHash(1, 0), .tokens = 7}));
  DrainAndRestart();
  EXPECT_EQ(Acquire(kAlice, Sequence(1, 1)).hits.at(0).tokens, 7);
}

TEST_F(CacheRestartTest, TimeToLiveGoesOnWhileTheDaemonIsDown) {
  Start();
  Put(Sequence(1, 2));
  Drain();
  cache_.reset();
  machine_->clock.Advance(25 * 60 * 60 * 1000);
  CrashAndRestart();
  EXPECT_TRUE(Acquire(kAlice, Sequence(1, 2)).hits.empty());
  AdvanceAndTick(1000);
  EXPECT_EQ(cache_->Gauges().disk_blocks, 0u);
}

constexpr int64_t kHourMs = 60 * 60 * 1000;

TEST_F(CacheRestartTest, PinsOutliveADeathAndEndWithTheirTime) {
  Start({.pool_blocks = 8, .host_slots = 8, .disk_slots = 16});
  Put(Sequence(1, 4));
  Drain();
  ASSERT_TRUE(cache_->Pin(kAlice, pool_.id, Sequence(1, 4), 48 * kHourMs));
  Settle();
  for (int deaths = 0; deaths < 3; ++deaths) CrashAndRestart();
  EXPECT_EQ(cache_->Gauges().pinned_blocks, 4u);
  // Others come and go, and the time to live passes.
  for (uint64_t stream = 2; stream < 12; ++stream) {
    Put(Sequence(stream, 4));
    Drain();
  }
  AdvanceAndTick(47 * kHourMs);
  CrashAndRestart();
  EXPECT_EQ(Acquire(kBob, Sequence(1, 4)).hits.size(), 4u);
  AdvanceAndTick(kHourMs + 10 * 60'000);
  EXPECT_EQ(cache_->Gauges().pinned_blocks, 0u);
}

TEST_F(CacheRestartTest, PinsOfBlocksThatOnlyHostHasOutliveADeath) {
  Start({.pool_blocks = 16, .host_slots = 16, .keep_host = true, .disk_slots = 0});
  Put(Sequence(1, 10));
  EvictFromPool();
  ASSERT_TRUE(cache_->Pin(kAlice, pool_.id, Sequence(1, 2), 72 * kHourMs));
  DieAndAdopt();
  EXPECT_EQ(cache_->Gauges().pinned_blocks, 2u);
  cache_.reset();
  machine_->clock.Advance(48 * kHourMs);
  DieAndAdopt();
  EXPECT_EQ(cache_->Gauges().entries, 2u) << "the others have passed their time to live";
}

TEST_F(CacheRestartTest, APinThatComesWhileTheRecordIsBeingWrittenOutlivesADeath) {
  constexpr uint32_t kMoments = 24;
  Start({.disk_slots = 64});
  for (uint32_t moment = 0; moment < kMoments; ++moment) {
    Put(Sequence(moment, 1));
    bool drained = false;
    cache_->Drain([&] { drained = true; });
    for (uint32_t event = 0; event < moment && !drained; ++event) machine_->loop.RunOne();
    ASSERT_TRUE(cache_->Pin(kAlice, pool_.id, Sequence(moment, 1), 48 * kHourMs));
    Settle();
    EXPECT_TRUE(drained);
  }
  CrashAndRestart();
  EXPECT_EQ(cache_->Gauges().pinned_blocks, kMoments);
}

TEST_F(CacheRestartTest, PinsThatWereTakenBackDoNotComeBack) {
  Start();
  Put(Sequence(1, 2));
  Drain();
  ASSERT_TRUE(cache_->Pin(kAlice, pool_.id, Sequence(1, 2), 48 * kHourMs));
  Settle();
  ASSERT_TRUE(cache_->Pin(kAlice, pool_.id, Sequence(1, 1), 0));
  Settle();
  CrashAndRestart();
  EXPECT_EQ(cache_->Gauges().pinned_blocks, 1u);
  ASSERT_TRUE(cache_->Pin(kAlice, pool_.id, Sequence(1, 2), 0));
  EXPECT_EQ(cache_->Gauges().pinned_blocks, 1u) << "no client of today has made this pin";
}

TEST_F(CacheRestartTest, APinOfMomentsCostsNoWriteOfTheIndexAndEndsWithTheProcess) {
  Start();
  Put(Sequence(1, 4));
  Drain();
  const uint64_t batches = machine_->index->batches_applied();
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(cache_->Pin(kAlice, pool_.id, Sequence(1, 4), 60'000));
    AdvanceAndTick(1000);
    Settle();
  }
  EXPECT_EQ(machine_->index->batches_applied(), batches);
  CrashAndRestart();
  EXPECT_EQ(cache_->Gauges().pinned_blocks, 0u);
}

TEST_F(CacheRestartTest, APinThatIsProlongedAgainAndAgainIsSeldomWrittenAnew) {
  Start();
  Put(Sequence(1, 4));
  Drain();
  const uint64_t batches = machine_->index->batches_applied();
  for (int i = 0; i < 60; ++i) {
    ASSERT_TRUE(cache_->Pin(kAlice, pool_.id, Sequence(1, 4), 24 * kHourMs));
    AdvanceAndTick(1000);
    Settle();
  }
  EXPECT_LE(machine_->index->batches_applied(), batches + 2);
}

// A daemon begins with records that say when the pins of blocks end.
class CachePinRecordsTest : public CacheTest {
 protected:
  void StartWithPins(const std::function<uint32_t(size_t)>& end_s_of) {
    CacheSetup setup{.disk_slots = 16};
    setup.options.pin_fraction = 0.5;
    Start(setup);
    Put(Sequence(1, 16));
    Drain();
    IndexSnapshot snapshot = machine_->Snapshot();
    for (size_t i = 0; i < snapshot.records.size(); ++i) {
      snapshot.records[i].pinned_until_s = end_s_of(i);
    }
    cache_.reset();
    machine_->Crash();
    cache_ = std::make_unique<Cache>(setup_.options, machine_->Environment(), std::move(snapshot));
  }
  // Ends are recorded in tens of minutes.
  [[nodiscard]] uint32_t InAnHour() const {
    return static_cast<uint32_t>((machine_->clock.WallMs() / 1000 + 3600) / 600 * 600);
  }
};

TEST_F(CachePinRecordsTest, RecordsPinNoMoreThanClientsMay) {
  StartWithPins([this](size_t) { return InAnHour(); });
  EXPECT_GT(cache_->Gauges().pinned_blocks, 0u);
  EXPECT_LE(cache_->Gauges().pinned_blocks, 8u);
  AdvanceAndTick(2 * kHourMs);
  EXPECT_EQ(cache_->Gauges().pinned_blocks, 0u);
}

TEST_F(CachePinRecordsTest, AnEndInWhichABitHasChangedPinsNothing) {
  for (const size_t shift : {0, 16}) {
    cache_.reset();
    StartWithPins([&](size_t i) { return InAnHour() ^ (1u << ((shift + i) % 32)); });
    EXPECT_EQ(cache_->Gauges().pinned_blocks, 0u) << shift;
  }
}

TEST_F(CacheRestartTest, RestoredBlocksAreEvictedColdestFirst) {
  Start({.pool_blocks = 8, .host_slots = 8, .disk_slots = 8});
  Put(Sequence(1, 4));
  Drain();
  AdvanceAndTick(60 * 60 * 1000);
  Put(Sequence(2, 4));
  DrainAndRestart();
  Put(Sequence(3, 4));
  Drain();
  EXPECT_FALSE(Presence(TestHash(1, 0)).disk);
  for (const BlockHash& hash : Sequence(2, 4)) EXPECT_TRUE(Presence(hash).disk);
}

TEST_F(CacheRestartTest, SlotsOfRestoredBlocksAreNotGivenAway) {
  Start({.pool_blocks = 16, .host_slots = 16, .disk_slots = 32});
  Put(Sequence(1, 16));
  DrainAndRestart();
  Put(Sequence(2, 16));
  DrainAndRestart();
  for (const uint64_t stream : {1, 2}) {
    const AcquireReply reply = Acquire(kAlice, Sequence(stream, 16));
    EXPECT_EQ(LastProgress(reply.load).ready, 16u);
    for (uint32_t i = 0; i < reply.hits.size(); ++i) {
      EXPECT_TRUE(MatchesHash(TestHash(stream, i), Bytes(reply.hits[i].handle)));
    }
    Release(kAlice, HandlesOf(reply));
    Settle();
  }
}

TEST_F(CacheRestartTest, SlabHeaderThatIsRightIsReadOnceAndNotWrittenAgain) {
  Start();
  Put(Sequence(1, 1));
  DrainAndRestart();
  const uint64_t reads = file().reads();
  const uint64_t writes = file().writes();
  Put(Sequence(2, 3));
  Drain();
  EXPECT_EQ(file().reads() - reads, 1u);
  EXPECT_EQ(file().writes() - writes, 3u);
}

TEST_F(CacheRestartTest, RecordsOutsideTheFilesAreDroppedAndCounted) {
  Start();
  Put(Sequence(1, 2));
  Drain();
  IndexSnapshot snapshot = machine_->Snapshot();
  ASSERT_EQ(snapshot.records.size(), 2u);
  snapshot.records[0].location = DiskLocation{1'000'000 * kSlabBytes + 4096};
  IndexRecord misplaced = snapshot.records[1];
  misplaced.key.hash = TestHash(3, 3);
  misplaced.location.offset += 4096;
  snapshot.records.push_back(misplaced);
  cache_.reset();
  machine_->Crash();
  cache_ = std::make_unique<Cache>(setup_.options, machine_->Environment(), snapshot);
  cache_->CheckInvariants();
  EXPECT_EQ(cache_->stats().restored_blocks, 1u);
  EXPECT_EQ(Drops(Tier::kDisk, DropReason::kStaleIndex), 2u);
}

TEST_F(CacheRestartTest, TwoRecordsOfOneSlotAreNotBothBelieved) {
  Start();
  Put(Sequence(1, 1));
  Drain();
  IndexSnapshot snapshot = machine_->Snapshot();
  IndexRecord twin = snapshot.records.at(0);
  twin.key.hash = TestHash(3, 3);
  snapshot.records.push_back(twin);
  cache_.reset();
  machine_->Crash();
  cache_ = std::make_unique<Cache>(setup_.options, machine_->Environment(), snapshot);
  cache_->CheckInvariants();
  EXPECT_EQ(cache_->stats().restored_blocks, 1u);
  EXPECT_EQ(Drops(Tier::kDisk, DropReason::kStaleIndex), 1u);
}

TEST_F(CacheRestartTest, RecordsOfAnUnknownSpaceAreDropped) {
  Start();
  Put(Sequence(1, 1));
  Drain();
  IndexSnapshot snapshot = machine_->Snapshot();
  snapshot.namespaces.clear();
  cache_.reset();
  machine_->Crash();
  cache_ = std::make_unique<Cache>(setup_.options, machine_->Environment(), snapshot);
  cache_->CheckInvariants();
  EXPECT_EQ(cache_->stats().restored_blocks, 0u);
}

TEST_F(CacheRestartTest, StaleIndexEntryIsAMissAndNotAnotherBlock) {
  Start({.pool_blocks = 8, .host_slots = 8, .disk_slots = 8});
  Put(Sequence(1, 8));
  Drain();
  const IndexSnapshot old = machine_->Snapshot();
  EvictFromPool();
  Put(Sequence(2, 8));
  Drain();
  ASSERT_TRUE(Presence(TestHash(2, 0)).disk);
  cache_.reset();
  machine_->Crash();
  cache_ = std::make_unique<Cache>(setup_.options, machine_->Environment(), old);
  cache_->OpenSession(kAlice, [this](const LoadProgress& p) { progress_.push_back(p); });
  pool_ = *cache_->AttachPool(Identity("tenant", 1), 0);
  uint32_t mismatches = 0;
  for (const BlockHash& hash : Sequence(1, 8)) {
    const AcquireReply reply = Acquire(kAlice, {hash});
    ASSERT_EQ(reply.hits.size(), 1u);
    const LoadProgress last = LastProgress(reply.load);
    EXPECT_TRUE(last.ready == 0 || MatchesHash(hash, Bytes(reply.hits[0].handle)));
    mismatches += last.miss == MissReason::kIdentityMismatch;
  }
  EXPECT_GT(mismatches, 0u);
}

TEST_F(CacheRestartTest, CrashInMidWriteLosesOnlyWhatWasInFlight) {
  Start();
  Put(Sequence(1, 4));
  Drain();
  Put(Sequence(2, 8));
  cache_->Drain([] {});
  for (int i = 0; i < 6; ++i) machine_->loop.RunOne();
  const auto before = cache_->Lookup(pool_.id, Sequence(2, 8));
  CrashAndRestart();
  for (const BlockHash& hash : Sequence(1, 4)) EXPECT_TRUE(Presence(hash).disk);
  const auto after = cache_->Lookup(pool_.id, Sequence(2, 8));
  for (size_t i = 0; i < 8; ++i) EXPECT_TRUE(!before[i].disk || after[i].disk);
}

TEST_F(CacheRestartTest, MemoryClassDoesNotSurvive) {
  Start();
  Put(Sequence(1, 2), RetentionClass::kMemory);
  DrainAndRestart();
  EXPECT_FALSE(Presence(TestHash(1, 0)).anywhere());
}

TEST_F(CacheRestartTest, PoolGenerationDiffersAfterARestart) {
  Start();
  const uint64_t before = pool_.generation;
  machine_->clock.Advance(1);
  CrashAndRestart();
  EXPECT_NE(pool_.generation, before);
}

TEST_F(CacheRestartTest, UseOfAPersistedBlockIsRememberedOverARestart) {
  Start();
  Put(Sequence(1, 2));
  DrainAndRestart();
  AdvanceAndTick(20 * kHourMs);
  Use(Sequence(1, 2));
  CrashAndRestart();
  AdvanceAndTick(10 * kHourMs);
  EXPECT_TRUE(Presence(TestHash(1, 0)).disk);
}

TEST_F(CacheRestartTest, UseOfABlockWhoseRecordIsBeingWrittenIsRememberedOverARestart) {
  Start();
  Put(Sequence(1, 1));
  machine_->loop.Hold(machine_->index->source());
  cache_->Drain([] {});
  Settle();
  AdvanceAndTick(20 * kHourMs);
  Use(Sequence(1, 1));
  machine_->loop.LetGo(machine_->index->source());
  Settle();
  CrashAndRestart();
  AdvanceAndTick(10 * kHourMs);
  EXPECT_TRUE(Presence(TestHash(1, 0)).disk);
}

TEST_F(CacheRestartTest, UseThatTheIndexRefusedIsWrittenAgain) {
  constexpr uint64_t kStreams = 8;
  Start();
  for (uint64_t stream = 0; stream < kStreams; ++stream) Put(Sequence(stream, 1));
  DrainAndRestart();
  AdvanceAndTick(20 * kHourMs);
  for (uint64_t stream = 0; stream < kStreams; ++stream) {
    machine_->index->FailNextBatches(1);
    Use(Sequence(stream, 1));
    AdvanceAndTick(1000);
  }
  CrashAndRestart();
  AdvanceAndTick(10 * kHourMs);
  for (uint64_t stream = 0; stream < kStreams; ++stream) {
    EXPECT_TRUE(Presence(TestHash(stream, 0)).disk) << stream;
  }
}

TEST_F(CacheRestartTest, CommitOfAnExpiredBlockThatIsStillOnDiskIsRememberedOverARestart) {
  Start();
  Put(Sequence(1, 1));
  DrainAndRestart();
  machine_->clock.Advance(25 * kHourMs);
  Put(Sequence(1, 1));
  DrainAndRestart();
  EXPECT_EQ(Acquire(kAlice, Sequence(1, 1)).hits.size(), 1u);
}

TEST_F(CacheRestartTest, RecencyIsWrittenCoarsely) {
  Start();
  Put(Sequence(1, 8));
  Drain();
  const size_t batches = machine_->index->batches_applied();
  for (int i = 0; i < 20; ++i) {
    AdvanceAndTick(10 * 1000);
    Use(Sequence(1, 8));
  }
  EXPECT_LE(machine_->index->batches_applied(), batches + 1);
}

TEST_F(CacheRestartTest, WriteBudgetSpentBeforeARestartStaysSpent) {
  CacheSetup setup;
  setup.options.disk_write_budget_bytes_per_day = 4 * 2 * kBlockBytes;
  Start(setup);
  Put(Sequence(1, 3));
  DrainAndRestart();
  EXPECT_EQ(cache_->Gauges().write_budget_left_bytes, 2 * kBlockBytes);
  Put(Sequence(2, 4));
  Drain();
  EXPECT_EQ(cache_->Gauges().disk_blocks, 4u);
}

TEST_F(CacheRestartTest, BlocksComeBackFromTheirHeadersWhenTheIndexIsLost) {
  Start();
  Put(Sequence(1, 4));
  Drain();
  LoseIndexAndRestart();
  EXPECT_EQ(Acquire(kAlice, Sequence(1, 4)).hits.size(), 4u);
}

TEST_F(CacheRestartTest, BlockEvictedByHandDoesNotComeBackWhenTheIndexIsLost) {
  Start();
  Put(Sequence(1, 4));
  Drain();
  ASSERT_EQ(cache_->Evict({NamespaceId(0), TestHash(1, 3)}, std::nullopt), EvictOutcome::kEvicted);
  std::optional<Status> durable;
  cache_->WhenEvictionsAreDurable([&](const Status& status) { durable = status; });
  EXPECT_FALSE(durable) << "neither its index entry nor its header is gone yet";
  Settle();
  ASSERT_TRUE(durable && *durable);
  LoseIndexAndRestart();
  EXPECT_EQ(Acquire(kAlice, Sequence(1, 4)).hits.size(), 3u);
}

TEST_F(CacheRestartTest, EvictionByHandIsNotDurableBeforeTheVoidHeaderIsSynced) {
  Start();
  Put(Sequence(1, 1));
  Drain();
  const uint64_t syncs = file().syncs();
  const uint64_t used_bytes = cache_->Gauges().disk_used_bytes;
  machine_->loop.Hold(file().source());
  ASSERT_EQ(cache_->Evict({NamespaceId(0), TestHash(1, 0)}, Tier::kDisk), EvictOutcome::kEvicted);
  bool durable = false;
  cache_->WhenEvictionsAreDurable([&](const Status& status) { durable = status.has_value(); });
  Settle();
  ASSERT_TRUE(machine_->loop.RunOneOf(file().source()));
  Settle();
  EXPECT_FALSE(durable) << "written, but not synced";
  EXPECT_EQ(cache_->Gauges().disk_used_bytes, used_bytes) << "its slot is not free yet";
  machine_->loop.LetGo(file().source());
  Settle();
  EXPECT_TRUE(durable);
  EXPECT_EQ(file().syncs(), syncs + 1);
  EXPECT_LT(cache_->Gauges().disk_used_bytes, used_bytes);
}

TEST_F(CacheRestartTest, EvictionByHandThatTheDiskRefusesIsTriedAgain) {
  Start();
  Put(Sequence(1, 1));
  Drain();
  file().ScriptWrites({WriteFault::kEio});
  ASSERT_EQ(cache_->Evict({NamespaceId(0), TestHash(1, 0)}, std::nullopt), EvictOutcome::kEvicted);
  std::optional<Status> durable;
  cache_->WhenEvictionsAreDurable([&](const Status& status) { durable = status; });
  Settle();
  EXPECT_FALSE(durable.has_value()) << "its header is still there";
  AdvanceAndTick(1000);
  ASSERT_TRUE(durable && *durable);
  LoseIndexAndRestart();
  EXPECT_EQ(Acquire(kAlice, Sequence(1, 1)).hits.size(), 0u);
}

TEST_F(CacheRestartTest, OfManyHeadersToBeVoidedOnlyThoseThatTheDiskRefusedAreWrittenAgain) {
  Start();
  Put(Sequence(1, 8));
  Drain();
  for (const BlockHash& hash : Sequence(1, 8)) {
    ASSERT_EQ(cache_->Evict({NamespaceId(0), hash}, std::nullopt), EvictOutcome::kEvicted);
  }
  file().ScriptWrites({WriteFault::kNone, WriteFault::kEio, WriteFault::kNone, WriteFault::kEio});
  const uint64_t writes = file().writes();
  Settle();
  EXPECT_EQ(file().writes() - writes, 8u);
  // One of the two is refused again.
  file().ScriptWrites({WriteFault::kEio});
  AdvanceAndTick(1000);
  EXPECT_EQ(file().writes() - writes, 8u + 2u);
  AdvanceAndTick(1000);
  EXPECT_EQ(file().writes() - writes, 8u + 2u + 1u);
  AdvanceAndTick(1000);
  EXPECT_EQ(file().writes() - writes, 8u + 2u + 1u);
  EXPECT_EQ(cache_->Gauges().disk_used_bytes, 0u);
  LoseIndexAndRestart();
  EXPECT_EQ(cache_->stats().restored_blocks, 0u);
}

TEST_F(CacheRestartTest, AHeaderThatTheDiskNeverVoidsIsGivenUpAndSaidSoAndADrainEnds) {
  Start();
  Put(Sequence(1, 2));
  Drain();
  ASSERT_EQ(cache_->Evict({NamespaceId(0), TestHash(1, 1)}, std::nullopt), EvictOutcome::kEvicted);
  std::optional<Status> durable;
  cache_->WhenEvictionsAreDurable([&](const Status& status) { durable = status; });
  file().SetFaultRates({.write_eio = 1.0});
  const uint64_t writes = file().writes();
  bool drained = false;
  cache_->Drain([&] { drained = true; });
  for (int ticks = 0; ticks < 20 && !drained; ++ticks) AdvanceAndTick(1000);
  EXPECT_TRUE(drained);
  EXPECT_LE(file().writes() - writes, 10u);
  ASSERT_TRUE(durable && !*durable);
  EXPECT_EQ(durable->error().code, ErrorCode::kIoError);
  EXPECT_EQ(cache_->stats().headers_not_voided, 1u);
  EXPECT_EQ(cache_->stats().slots_quarantined, 1u);
  durable.reset();
  cache_->WhenEvictionsAreDurable([&](const Status& status) { durable = status; });
  EXPECT_TRUE(durable && *durable);
}

TEST_F(CacheRestartTest, AFileThatTakesNoHeaderForTenSecondsIsNotTriedAnyMore) {
  Start();
  Put(Sequence(1, 8));
  Drain();
  file().SetFaultRates({.write_eio = 1.0});
  const uint64_t writes = file().writes();
  const auto evict = [&](uint32_t depth) {
    return cache_->Evict({NamespaceId(0), TestHash(1, depth)}, std::nullopt);
  };
  ASSERT_EQ(evict(7), EvictOutcome::kEvicted);
  Settle();
  AdvanceAndTick(10'000);
  EXPECT_EQ(cache_->stats().headers_not_voided, 1u);
  ASSERT_EQ(evict(6), EvictOutcome::kEvicted);
  Settle();
  EXPECT_EQ(cache_->stats().headers_not_voided, 2u);
  EXPECT_EQ(file().writes() - writes, 3u);
  // Until it takes one.
  file().SetFaultRates({});
  ASSERT_EQ(evict(5), EvictOutcome::kEvicted);
  Settle();
  file().ScriptWrites({WriteFault::kEio});
  ASSERT_EQ(evict(4), EvictOutcome::kEvicted);
  Settle();
  AdvanceAndTick(1000);
  EXPECT_EQ(cache_->stats().headers_not_voided, 2u);
}

TEST_F(CacheRestartTest, EvictionsOfWhatIsNotOnDiskAreDurableAtOnce) {
  Start();
  Put(Sequence(1, 1));
  ASSERT_EQ(cache_->Evict({NamespaceId(0), TestHash(1, 0)}, std::nullopt), EvictOutcome::kEvicted);
  bool durable = false;
  cache_->WhenEvictionsAreDurable([&](const Status& status) { durable = status.has_value(); });
  EXPECT_TRUE(durable);
}

}  // namespace
}  // namespace kvtier
