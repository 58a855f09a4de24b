// SPDX-License-Identifier: Apache-2.0
// A tenant's blocks are erased, and none comes back with memory or a disk that outlives the daemon.
// cache_encryption_test.cc tests the additions of encryption.

#include <algorithm>
#include <optional>
#include <vector>

#include "tests/unit/tiers/cache_fixture.h"

namespace kvtier {
namespace {

class CacheErasureTest : public CacheTest {
 protected:
  // As DieAndAdopt, with nothing in host looked at yet.
  void DieAndBegin() {
    cache_.reset();
    machine_->Crash(FakeMachine::HostMemory::kKept);
    cache_ = std::make_unique<Cache>(setup_.options, machine_->Environment(), machine_->Snapshot());
    cache_->OpenSession(kAlice, [this](const LoadProgress& p) { progress_.push_back(p); });
    UseDevice(0);
  }
  void BeginErasure(const std::string& tenant, uint32_t end_hour = EraseRequest().end_hour) {
    ended_ = false;
    cache_->Erase({.tenant = tenant, .end_hour = end_hour},
                  [this](const EraseReport&, const Status& status) {
                    EXPECT_TRUE(status);
                    ended_ = true;
                  });
  }
  // The daemon gets as far as to have the index remember it.
  void BeginErasureThatIsRemembered(const std::string& tenant) {
    BeginErasure(tenant);
    ASSERT_TRUE(machine_->loop.RunOneOf(machine_->index->source()));
  }
  // Each tick checks again the blocks that had to be waited for.
  [[nodiscard]] bool FinishErasure() {
    Settle();
    for (int ticks = 0; ticks < 5 && !ended_; ++ticks) AdvanceAndTick(1);
    return ended_;
  }
  // A read error takes the tenant's only block from the disk, and the index refuses to forget it.
  void LoseFromDiskButNotFromIndex() {
    Put(Sequence(1, 1));
    DrainAndRestart();
    file().ScriptReads({ReadFault::kEio, ReadFault::kEio});
    machine_->index->RefuseNextBatches(1);
    (void)BeginAcquire(kAlice, Sequence(1, 1));
    Settle();
    ASSERT_EQ(Drops(Tier::kDisk, DropReason::kReadError), 1u);
    ASSERT_EQ(machine_->Snapshot().records.size(), 1u);
    ASSERT_FALSE(Presence(TestHash(1, 0)).anywhere());
  }
  // The index keeps a block that had left the disk before, until the next tick.
  void FailErasure() {
    LoseFromDiskButNotFromIndex();
    std::optional<Status> told;
    cache_->Erase({.tenant = "tenant"},
                  [&](const EraseReport&, const Status& status) { told = status; });
    ASSERT_TRUE(machine_->loop.RunOneOf(machine_->index->source()));
    Settle();
    machine_->index->RefuseNextBatches(1);
    AdvanceAndTick(1);
    ASSERT_TRUE(told);
    EXPECT_THAT(*told, IsErrorOf(ErrorCode::kIoError, "index_write"));
    ASSERT_EQ(machine_->Snapshot().erasures.size(), 1u);
  }
  [[nodiscard]] uint32_t InHost(const Hashes& hashes) const {
    const auto present = cache_->Lookup(pool_.id, hashes);
    return static_cast<uint32_t>(std::ranges::count(present, true, &BlockPresence::host));
  }
  [[nodiscard]] static uint64_t Of(AdoptionDrop reason, const auto& drops) {
    return drops[static_cast<size_t>(reason)];
  }

  bool ended_ = false;
};

TEST_F(CacheErasureTest, BlocksThatAreErasedBeforeTheyAreVerifiedAreNotAdopted) {
  Start({.keep_host = true, .disk_slots = 0});
  Put(Sequence(1, 4));
  EvictFromPool();
  ASSERT_EQ(InHost(Sequence(1, 4)), 4u);
  DieAndBegin();
  const uint64_t waiting = cache_->Gauges().adoption_waiting;
  ASSERT_GE(waiting, 4u);
  BeginErasure("tenant");
  ASSERT_TRUE(FinishErasure());
  EXPECT_EQ(Of(AdoptionDrop::kEvictedByHand, cache_->stats().adoption_drops), waiting);
  EXPECT_EQ(InHost(Sequence(1, 4)), 0u);
  DieAndAdopt();
  EXPECT_EQ(cache_->stats().adopted_blocks, 0u);
}

// Much of a large arena is not ready for minutes.
TEST_F(CacheErasureTest, WhatIsEvictedWhileTheArenaGrowsDoesNotComeBack) {
  Start({.pool_blocks = 16,
         .host_slots = 16,
         .host_slots_ready = 8,
         .keep_host = true,
         .disk_slots = 32});
  machine_->arena->Grow(kSlabBytes);
  Put(Sequence(1, 10));
  Drain();
  EvictFromPool();
  DieAndBegin();
  Settle();
  const uint64_t adopted = cache_->stats().adopted_blocks;
  ASSERT_LT(adopted, 10u) << "some lie in what is not ready";
  for (const BlockHash& hash : Sequence(1, 10)) {
    EXPECT_EQ(cache_->Evict({pool_.namespace_id, hash}, std::nullopt), EvictOutcome::kEvicted);
  }
  machine_->arena->Grow(kSlabBytes);
  Settle();
  EXPECT_TRUE(cache_->AdoptionEnded());
  EXPECT_EQ(cache_->stats().adopted_blocks, adopted);
  EXPECT_EQ(Of(AdoptionDrop::kEvictedByHand, cache_->stats().adoption_drops), 10 - adopted);
  for (const BlockHash& hash : Sequence(1, 10)) EXPECT_FALSE(Presence(hash).anywhere());
}

// However many ticks a large arena takes to grow.
TEST_F(CacheErasureTest, AnErasureWaitsForAnArenaThatGrowsForLong) {
  Start({.pool_blocks = 16,
         .host_slots = 16,
         .host_slots_ready = 8,
         .keep_host = true,
         .disk_slots = 0});
  machine_->arena->Grow(kSlabBytes);
  Put(Sequence(1, 10));
  EvictFromPool();
  ASSERT_EQ(InHost(Sequence(1, 10)), 10u);
  DieAndBegin();
  BeginErasure("tenant");
  Settle();
  for (int ticks = 0; ticks < 300; ++ticks) AdvanceAndTick(100);
  EXPECT_FALSE(ended_) << "some of its blocks may lie in what is not ready";
  machine_->arena->Grow(kSlabBytes);
  ASSERT_TRUE(FinishErasure());
  EXPECT_EQ(InHost(Sequence(1, 10)), 0u);
  EXPECT_EQ(cache_->stats().adopted_blocks, 0u);
}

TEST_F(CacheErasureTest, AnErasureEndsAfterAdoptionAndLeavesOtherTenantsBlocks) {
  Start({.keep_host = true, .disk_slots = 0});
  Put(Sequence(1, 4));
  EvictFromPool();
  DieAndBegin();
  BeginErasure("another");
  EXPECT_FALSE(ended_) << "what waits to be adopted may be the tenant's";
  ASSERT_TRUE(FinishErasure());
  EXPECT_EQ(InHost(Sequence(1, 4)), 4u);
}

TEST_F(CacheErasureTest, WhatADaemonBeganToEraseIsNoHitInPoolsThatOutliveIt) {
  Start({.keep_pools = true});
  Put(Sequence(1, 4));
  (void)Store(kAlice, Sequence(2, 4));
  BeginErasureThatIsRemembered("tenant");
  DieAndAdopt();
  (void)cache_->TakeAbsentClients();
  EXPECT_EQ(Of(AdoptionDrop::kEvictedByHand, cache_->stats().pool_adoption_drops), 8u);
  EXPECT_FALSE(Presence(TestHash(1, 0)).anywhere());
  EXPECT_FALSE(Presence(TestHash(2, 0)).anywhere());
  // A client of the earlier life may still read these.
  EXPECT_EQ(PoolGaugesNow().free, 12u);
}

TEST_F(CacheErasureTest, WhatADaemonBeganToEraseTheNextOneErasesFromAPlainDisk) {
  Start();
  Put(Sequence(1, 4));
  Drain();
  BeginErasureThatIsRemembered("tenant");
  CrashAndRestart();
  Settle();
  EXPECT_TRUE(machine_->Snapshot().records.empty());
  EXPECT_TRUE(machine_->Snapshot().erasures.empty());
  LoseIndexAndRestart();
  EXPECT_EQ(cache_->stats().restored_blocks, 0u);
}

TEST_F(CacheErasureTest, WhatHadLeftTheDiskBeforeAnErasureDoesNotComeBackWithTheIndex) {
  Start();
  LoseFromDiskButNotFromIndex();
  BeginErasure("tenant");
  Settle();
  EXPECT_FALSE(ended_) << "the index is asked again with the next tick";
  ASSERT_TRUE(FinishErasure());
  EXPECT_TRUE(machine_->Snapshot().records.empty());
  CrashAndRestart();
  EXPECT_FALSE(Presence(TestHash(1, 0)).anywhere());
}

TEST_F(CacheErasureTest, AnErasureFailsWhileTheIndexRefusesToForgetWhatHadLeftTheDiskBefore) {
  Start();
  FailErasure();
  CrashAndRestart();
  Settle();
  EXPECT_FALSE(Presence(TestHash(1, 0)).anywhere()) << "a start finishes what failed";
  EXPECT_TRUE(machine_->Snapshot().records.empty());
  EXPECT_TRUE(machine_->Snapshot().erasures.empty());
}

TEST_F(CacheErasureTest, ARepeatedErasureThatSucceedsEndsTheEarlierOne) {
  Start();
  FailErasure();
  BeginErasure("tenant");
  ASSERT_TRUE(FinishErasure());
  EXPECT_TRUE(machine_->Snapshot().erasures.empty());
  Put(Sequence(1, 1));
  Drain();
  CrashAndRestart();
  Settle();
  EXPECT_TRUE(Presence(TestHash(1, 0)).disk) << "it was written since";
}

TEST_F(CacheErasureTest, AnErasureOfOlderHoursOrOfAnotherTenantDoesNotEndOneThatFailed) {
  Start();
  FailErasure();
  BeginErasure("tenant", /*end_hour=*/1);
  ASSERT_TRUE(FinishErasure());
  BeginErasure("another");
  ASSERT_TRUE(FinishErasure());
  const std::vector<ErasureRecord> left = machine_->Snapshot().erasures;
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0].tenant, "tenant");
  EXPECT_EQ(left[0].end_hour, EraseRequest().end_hour);
}

// A start that finds it would take later blocks.
TEST_F(CacheErasureTest, AnErasureFailsThatTheIndexGoesOnRememberingAndARepeatedOneEndsIt) {
  Start();
  std::optional<Status> told;
  cache_->Erase({.tenant = "tenant"},
                [&](const EraseReport&, const Status& status) { told = status; });
  ASSERT_TRUE(machine_->loop.RunOneOf(machine_->index->source()));
  machine_->index->RefuseNextBatches(1);
  Settle();
  ASSERT_TRUE(told);
  EXPECT_THAT(*told, IsErrorOf(ErrorCode::kIoError, "index_write"));
  ASSERT_EQ(machine_->Snapshot().erasures.size(), 1u);
  BeginErasure("tenant");
  ASSERT_TRUE(FinishErasure());
  EXPECT_TRUE(machine_->Snapshot().erasures.empty());
}

TEST_F(CacheErasureTest, AnEvictionByHandWaitsForTheIndexToForgetAnEarlierCopy) {
  Start();
  LoseFromDiskButNotFromIndex();
  Put(Sequence(1, 1));
  ASSERT_EQ(cache_->Evict({NamespaceId(0), TestHash(1, 0)}, std::nullopt), EvictOutcome::kEvicted);
  std::optional<Status> durable;
  cache_->WhenEvictionsAreDurable([&](const Status& status) { durable = status; });
  Settle();
  EXPECT_FALSE(durable);
  AdvanceAndTick(1);
  ASSERT_TRUE(durable && *durable);
  CrashAndRestart();
  EXPECT_FALSE(Presence(TestHash(1, 0)).anywhere());
}

TEST_F(CacheErasureTest, AClockThatWasSetBackKeepsNothingFromBeingErased) {
  Start();
  machine_->clock.StepWall(-60 * 60 * 1000);
  Put(Sequence(1, 4));
  Drain();
  BeginErasure("tenant");
  ASSERT_TRUE(FinishErasure());
  EXPECT_FALSE(Presence(TestHash(1, 0)).anywhere());
}

}  // namespace
}  // namespace kvtier
