// SPDX-License-Identifier: Apache-2.0
// Nothing goes wrong in silence: the owner hears of each fault, with its place and its reason.

#include <algorithm>
#include <string>
#include <vector>

#include "base/digest.h"
#include "tests/unit/tiers/cache_cold_fixture.h"
#include "tests/unit/tiers/cache_fixture.h"
#include "tiers/types/cache_stats.h"

namespace kvtier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// The incidents of one kind that the owner was told.
std::vector<Incident> Told(const FakeMachine& machine, IncidentKind kind) {
  std::vector<Incident> told;
  std::ranges::copy_if(machine.owner.incidents, std::back_inserter(told),
                       [kind](const Incident& incident) { return incident.kind == kind; });
  return told;
}

class CacheIncidentsTest : public CacheTest {
 protected:
  [[nodiscard]] std::vector<Incident> Told(IncidentKind kind) const {
    return kvtier::Told(*machine_, kind);
  }
  void PutOnDisk(const Hashes& hashes) {
    Put(hashes);
    DrainAndRestart();
  }
  void DamageContents() {
    for (std::byte& byte : file().contents()) {
      if (byte != std::byte{0}) byte ^= std::byte{0x10};
    }
  }
  // Flips a bit of each block in host, and tells how many there are.
  size_t DamageHost() {
    size_t blocks = 0;
    FakeArena& arena = *machine_->arena;
    for (uint64_t at = 0; at + 2 * kBlockBytes <= arena.capacity_bytes(); at += 4 * kKiB) {
      const std::span<std::byte> slot(arena.data() + at, 2 * kBlockBytes);
      if (!DecodeSlotHeader(slot.first<kSlotHeaderBytes>())) continue;
      slot[kSlotHeaderBytes + 100] ^= std::byte{1};
      ++blocks;
    }
    return blocks;
  }
  void Load(const Hashes& hashes) {
    Release(kAlice, HandlesOf(Acquire(kAlice, hashes)));
    Settle();
  }
  // The first slot of the first slab.
  static constexpr uint64_t kFirstSlot = kFirstSlabOffset + kSlabHeaderBytes;
};

TEST_F(CacheIncidentsTest, NothingIsToldOfACacheThatIsWell) {
  Start();
  PutOnDisk(Sequence(1, 4));
  Load(Sequence(1, 4));
  EXPECT_THAT(machine_->owner.incidents, IsEmpty());
}

TEST_F(CacheIncidentsTest, DamageOnDiskIsToldWithFilePlaceReasonAndTenant) {
  Start();
  PutOnDisk(Sequence(1, 1));
  DamageContents();
  Load(Sequence(1, 1));
  const auto told = Told(IncidentKind::kDamaged);
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_EQ(told[0].place, (SlotPlace{0, kFirstSlot}));
  EXPECT_EQ(told[0].reason, "checksum_mismatch");
  EXPECT_EQ(told[0].whose.value().tenant, "tenant");
}

TEST_F(CacheIncidentsTest, DamageThatAVerificationFindsIsTold) {
  Start();
  PutOnDisk(Sequence(1, 3));
  DamageContents();
  cache_->VerifyStep(0, 100, [](const VerifyResult&) {});
  Settle();
  EXPECT_THAT(Told(IncidentKind::kDamaged), SizeIs(3));
}

TEST_F(CacheIncidentsTest, ReadThatFailsForGoodIsToldAndOneThatIsRepairedIsNot) {
  Start();
  PutOnDisk(Sequence(1, 1));
  file().ScriptReads({ReadFault::kEio});
  Load(Sequence(1, 1));
  EXPECT_THAT(Told(IncidentKind::kReadFailed), IsEmpty());
  EvictFromPool();
  CrashAndRestart();
  file().ScriptReads({ReadFault::kEio, ReadFault::kEio});
  Load(Sequence(1, 1));
  const auto told = Told(IncidentKind::kReadFailed);
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_EQ(told[0].place, (SlotPlace{0, kFirstSlot}));
  EXPECT_THAT(told[0].reason, HasSubstr("io_error"));
}

TEST_F(CacheIncidentsTest, WriteErrorIsToldAndThatWritesPauseAndThatTheyGoOn) {
  Start();
  file().ScriptWrites({WriteFault::kNone, WriteFault::kEnospc});  // the slab's header comes first
  Put(Sequence(1, 1));
  Drain();
  const auto told = Told(IncidentKind::kWriteFailed);
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_EQ(told[0].place, (SlotPlace{0, kFirstSlot}));
  EXPECT_THAT(Told(IncidentKind::kWritesPaused), SizeIs(1));
  EXPECT_THAT(Told(IncidentKind::kWritesResumed), IsEmpty());
  AdvanceAndTick(11'000);
  Put(Sequence(2, 1));
  Drain();
  EXPECT_THAT(Told(IncidentKind::kWritesResumed), SizeIs(1));
}

TEST_F(CacheIncidentsTest, DiskThatRefusesForHoursIsToldToPauseOnce) {
  Start();
  file().SetFaultRates({.write_enospc = 1.0});
  for (uint64_t hour = 0; hour < 5; ++hour) {
    Put(Sequence(hour, 1));
    Drain();
    AdvanceAndTick(60'000);
  }
  EXPECT_THAT(Told(IncidentKind::kWriteFailed), SizeIs(5));
  EXPECT_THAT(Told(IncidentKind::kWritesPaused), SizeIs(1));
}

TEST_F(CacheIncidentsTest, FailedIndexIsToldAndThatWritesPauseAndThatTheyGoOn) {
  Start();
  Put(Sequence(1, 1));
  machine_->index->RefuseNextBatches(1);
  Drain();
  EXPECT_THAT(Told(IncidentKind::kIndexFailed), SizeIs(1));
  EXPECT_THAT(Told(IncidentKind::kWritesPaused), SizeIs(1));
  AdvanceAndTick(1000);
  Put(Sequence(2, 1));
  Drain();
  EXPECT_THAT(Told(IncidentKind::kWritesResumed), SizeIs(1));
}

TEST_F(CacheIncidentsTest, DrainEndsThoughTheIndexRefusesForGoodAndTellsWhatIsLost) {
  Start();
  Put(Sequence(1, 4));
  Drain();
  // A deletion is tried again for as long as the daemon lives.
  ASSERT_EQ(cache_->Evict({NamespaceId(0), TestHash(1, 3)}, Tier::kDisk), EvictOutcome::kEvicted);
  machine_->index->RefuseNextBatches(1'000'000);
  Put(Sequence(2, 3));
  bool drained = false;
  cache_->Drain([&] { drained = true; });
  for (int ticks = 0; ticks < 10 && !drained; ++ticks) AdvanceAndTick(500);
  EXPECT_TRUE(drained);
  EXPECT_EQ(BlocksGivenUp(cache_->stats()), 3u);
}

TEST_F(CacheIncidentsTest, HeaderThatTheDiskNeverVoidsIsTold) {
  Start();
  Put(Sequence(1, 1));
  Drain();
  ASSERT_EQ(cache_->Evict({NamespaceId(0), TestHash(1, 0)}, std::nullopt), EvictOutcome::kEvicted);
  file().SetFaultRates({.write_eio = 1.0});
  for (int ticks = 0; ticks < 20; ++ticks) AdvanceAndTick(1000);
  EXPECT_THAT(Told(IncidentKind::kHeaderKept), SizeIs(1));
}

TEST_F(CacheIncidentsTest, SpentBudgetIsToldOnceADay) {
  CacheSetup setup;
  setup.options.disk_write_budget_bytes_per_day = 2 * 2 * kBlockBytes;
  Start(setup);
  Put(Sequence(1, 4));
  Drain();
  Put(Sequence(2, 4));
  Drain();
  EXPECT_THAT(Told(IncidentKind::kBudgetSpent), SizeIs(1));
  AdvanceAndTick(25 * 60 * 60 * 1000);
  Put(Sequence(3, 4));
  Drain();
  EXPECT_THAT(Told(IncidentKind::kBudgetSpent), SizeIs(2));
}

TEST_F(CacheIncidentsTest, PoolWithoutRoomIsTold) {
  Start({.pool_blocks = 4});
  (void)Store(kAlice, Sequence(1, 4));
  EXPECT_FALSE(TryAcquire(kBob, {}, 1));
  const auto told = Told(IncidentKind::kPoolExhausted);
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_THAT(told[0].reason, HasSubstr("pool_full"));
}

TEST_F(CacheIncidentsTest, RequestBeyondALimitOfItsSessionIsNoFaultOfThePool) {
  CacheSetup setup;
  setup.options.max_references_per_session = 1;
  Start(setup);
  Put(Sequence(1, 2));
  EXPECT_FALSE(TryAcquire(kAlice, Sequence(1, 2)));
  EXPECT_THAT(machine_->owner.incidents, IsEmpty());
}

TEST_F(CacheIncidentsTest, ClientThatWritesToACommittedBlockIsTold) {
  Start({.pool_blocks = 4});
  const BlockHandle block = Acquire(kAlice, {}, 1).new_blocks.front();
  FillFromHash(TestHash(1, 0), Bytes(block));
  const PayloadChecksum checksum = ChecksumPayload(Bytes(block));
  ASSERT_TRUE(TryCommit(kAlice, block, {.hash = TestHash(1, 0), .checksum = checksum}));
  Bytes(block)[100] ^= std::byte{1};
  Release(kAlice, {block});
  Settle();
  EvictFromPool();
  const auto told = Told(IncidentKind::kOverwritten);
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_EQ(told[0].whose.value().tenant, "tenant");
}

TEST_F(CacheIncidentsTest, FailedCopiesAreToldInBothDirections) {
  Start({.pool_blocks = 8});
  machine_->device->FailNextCopies(1);
  Put(Sequence(1, 8));
  EXPECT_THAT(Told(IncidentKind::kCopyFailed), SizeIs(1));
  Put(Sequence(2, 8));
  Release(kBob, Acquire(kBob, {}, 8).new_blocks);
  machine_->device->FailNextCopies(1);
  Load(Sequence(2, 8));
  EXPECT_THAT(Told(IncidentKind::kCopyFailed), SizeIs(2));
}

TEST_F(CacheIncidentsTest, DamageInKeptHostMemoryIsTold) {
  CacheSetup setup;
  setup.keep_host = true;
  Start(setup);
  Put(Sequence(1, 2));
  EvictFromPool();
  const size_t damaged = DamageHost();
  ASSERT_GT(damaged, 0u);
  DieAndAdopt();
  EXPECT_THAT(Told(IncidentKind::kRestartDamaged), SizeIs(damaged));
}

// All of the slab's blocks are lost with it.
TEST_F(CacheIncidentsTest, ADamagedCutOfAKeptSlabIsCountedAndTold) {
  Start({.keep_host = true});
  Put(Sequence(1, 2));
  EvictFromPool();
  // It stands before the records, on the page after the head.
  machine_->arena->table_bytes()[4096] ^= std::byte{1};
  DieAndAdopt();
  EXPECT_THAT(Told(IncidentKind::kRestartDamaged), SizeIs(1));
  const auto corrupt = static_cast<size_t>(AdoptionDrop::kCorrupt);
  EXPECT_EQ(cache_->stats().adoption_drops[corrupt], 1u);
  DieAndAdopt();
  EXPECT_EQ(cache_->stats().adoption_drops[corrupt], 0u) << "it is told once";
}

class CacheColdIncidentsTest : public CacheColdTest {
 protected:
  [[nodiscard]] std::vector<Incident> Told(IncidentKind kind) const {
    return kvtier::Told(*machine_, kind);
  }
};

TEST_F(CacheColdIncidentsTest, DamagedObjectIsTold) {
  WriteByAnotherHost(hashes_);
  for (auto& [name, object] : store_.objects) object.bytes[5000] ^= std::byte{1};
  GiveBack(Acquire(kAlice, hashes_));
  const auto told = Told(IncidentKind::kColdDamaged);
  ASSERT_FALSE(told.empty());
  EXPECT_THAT(told[0].reason, HasSubstr("checksum_mismatch"));
  EXPECT_EQ(told[0].whose.value().tenant, "tenant");
}

TEST_F(CacheColdIncidentsTest, ForgottenObjectIsNoIncident) {
  WriteByAnotherHost(hashes_);
  store_.holds = true;
  const PendingAcquire pending = BeginAcquire(kAlice, hashes_);
  Settle();
  store_.Answer();
  Settle();
  store_.objects.clear();
  store_.Answer();
  Settle();
  ASSERT_TRUE(pending.succeeded());
  EXPECT_THAT(machine_->owner.incidents, IsEmpty());
}

TEST_F(CacheColdIncidentsTest, StoreThatTakesNothingIsTold) {
  Start(ColdSetup());
  Put(hashes_);
  Use(hashes_);
  EvictFromPool();
  store_.refuses = true;
  AdvanceAndTick(kAfterMs);
  const auto told = Told(IncidentKind::kColdFailed);
  ASSERT_THAT(told, SizeIs(4));
  EXPECT_THAT(told[0].reason, HasSubstr("no_connection"));
}

TEST_F(CacheColdIncidentsTest, AQuestionThatTheStoreRefusesIsTold) {
  Start(ColdSetup());
  store_.refuses = true;
  store_.refusal = {ErrorCode::kIoError, "cold_store_refused", "no permissions"};
  EXPECT_THAT(Acquire(kAlice, hashes_).hits, IsEmpty());
  const auto told = Told(IncidentKind::kColdFailed);
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_THAT(told[0].reason, HasSubstr("no permissions"));
}

// The breaker's owner tells that, once.
TEST_F(CacheColdIncidentsTest, AStoreThatIsLateOrAwayIsNotToldByEachQuestion) {
  Start(ColdSetup());
  store_.refuses = true;
  EXPECT_THAT(Acquire(kAlice, hashes_).hits, IsEmpty());
  store_.refuses = false;
  store_.holds = true;
  const PendingAcquire pending = BeginAcquire(kAlice, hashes_);
  Settle();
  store_.TimeOut();
  Settle();
  ASSERT_TRUE(pending.succeeded());
  EXPECT_THAT(machine_->owner.incidents, IsEmpty());
}

}  // namespace
}  // namespace kvtier
