// SPDX-License-Identifier: Apache-2.0
// Host memory that outlives the process: the blocks that the next one serves, and the others.

#include <algorithm>
#include <cstring>

#include "base/units.h"
#include "tests/fakes/seeded_random.h"
#include "tests/unit/tiers/cache_fixture.h"
#include "tiers/storage/slot_header.h"

namespace kvtier {
namespace {

using ::testing::Each;

class CacheAdoptionTest : public CacheTest {
 protected:
  static constexpr uint64_t kSlotBytes = 2 * kBlockBytes;
  const NamespaceIdentity larger_ = Identity("tenant", 2, 2 * kBlockBytes);

  [[nodiscard]] static CacheSetup KeptSetup() {
    return {.pool_blocks = 16, .host_slots = 16, .keep_host = true, .disk_slots = 0};
  }
  // Stores the blocks and has them leave the pool.
  void Sink(const Hashes& hashes, RetentionClass retention = RetentionClass::kExtended) {
    Put(hashes, retention);
    EvictFromPool();
  }
  // As DieAndAdopt, with nothing looked at yet, and with this pool alone.
  void DieAndBegin(const NamespaceIdentity& identity = Identity("tenant", 1)) {
    cache_.reset();
    machine_->Crash(FakeMachine::HostMemory::kKept);
    CacheEnvironment environment = machine_->Environment();
    machine_->owner.on_adopted = [this](const AdoptionReport& report) {
      reports_.push_back(report);
    };
    cache_ = std::make_unique<Cache>(setup_.options, std::move(environment), machine_->Snapshot());
    for (const SessionId session : {kAlice, kBob}) {
      cache_->OpenSession(session, [this](const LoadProgress& p) { progress_.push_back(p); });
    }
    const Result<PoolInfo> pool = cache_->AttachPool(identity, 0);
    ASSERT_TRUE(pool) << pool.error().ToString();
    pool_ = *pool;
  }
  void DieAndAdoptFor(const NamespaceIdentity& identity) {
    DieAndBegin(identity);
    Settle();
  }
  [[nodiscard]] uint32_t InHost(const Hashes& hashes) const {
    const auto present = cache_->Lookup(pool_.id, hashes);
    return static_cast<uint32_t>(std::ranges::count(present, true, &BlockPresence::host));
  }
  // Where the block's slot lies in the arena.
  [[nodiscard]] std::span<std::byte> SlotOf(const BlockHash& hash) const {
    FakeArena& arena = *machine_->arena;
    for (uint64_t at = 0; at + kSlotBytes <= arena.capacity_bytes(); at += 4 * kKiB) {
      const std::span<std::byte> slot(arena.data() + at, kSlotBytes);
      const auto header = DecodeSlotHeader(slot.first<kSlotHeaderBytes>());
      if (header && header->hash == hash) return slot;
    }
    ADD_FAILURE() << "the block is not in the arena";
    return {};
  }
  [[nodiscard]] uint64_t AddressOf(const BlockHash& hash) const {
    return static_cast<uint64_t>(SlotOf(hash).data() - machine_->arena->data());
  }
  [[nodiscard]] uint64_t Dropped(AdoptionDrop reason) const {
    return cache_->stats().adoption_drops[static_cast<size_t>(reason)];
  }
  [[nodiscard]] uint64_t DroppedInAll() const {
    uint64_t dropped = 0;
    for (const uint64_t each : cache_->stats().adoption_drops) dropped += each;
    return dropped;
  }
  // All are hits of host, with their bytes.
  void ExpectHostHits(const Hashes& hashes) {
    const AcquireReply reply = Acquire(kAlice, hashes);
    ASSERT_EQ(reply.hits.size(), hashes.size());
    EXPECT_THAT(TiersOf(reply), Each(Tier::kHost));
    EXPECT_EQ(LastProgress(reply.load).ready, hashes.size());
    for (size_t i = 0; i < hashes.size(); ++i) {
      EXPECT_TRUE(MatchesHash(hashes[i], Bytes(reply.hits[i].handle)));
    }
    Release(kAlice, HandlesOf(reply));
    Settle();
  }

  std::vector<AdoptionReport> reports_;
};

TEST_F(CacheAdoptionTest, BlocksInHostAreHitsOfHostInTheNextProcess) {
  Start(KeptSetup());
  Sink(Sequence(1, 10));
  ASSERT_EQ(InHost(Sequence(1, 10)), 10u);
  DieAndAdopt();
  EXPECT_EQ(cache_->stats().adopted_blocks, 10u);
  EXPECT_EQ(cache_->stats().adopted_bytes, 10 * kBlockBytes);
  EXPECT_EQ(DroppedInAll(), 0u);
  EXPECT_EQ(cache_->Gauges().adoption_waiting, 0u);
  ExpectHostHits(Sequence(1, 10));
}

TEST_F(CacheAdoptionTest, NothingIsServedBeforeItIsVerified) {
  Start(KeptSetup());
  Sink(Sequence(1, 4));
  DieAndBegin();
  EXPECT_EQ(InHost(Sequence(1, 4)), 0u);
  EXPECT_EQ(cache_->Gauges().adoption_waiting, 4u);
  EXPECT_FALSE(cache_->Idle());
  Settle();
  EXPECT_EQ(InHost(Sequence(1, 4)), 4u);
  EXPECT_TRUE(cache_->Idle());
}

TEST_F(CacheAdoptionTest, SeveralDeathsInARowLoseNothing) {
  Start(KeptSetup());
  Sink(Sequence(1, 6));
  for (int death = 0; death < 3; ++death) {
    DieAndAdopt();
    EXPECT_EQ(InHost(Sequence(1, 6)), 6u);
  }
  ExpectHostHits(Sequence(1, 6));
}

TEST_F(CacheAdoptionTest, ADeathDuringTheAdoptionLosesNothing) {
  Start(KeptSetup());
  Sink(Sequence(1, 6));
  DieAndBegin();
  DieAndAdopt();
  ExpectHostHits(Sequence(1, 6));
}

TEST_F(CacheAdoptionTest, WithoutKeptMemoryNothingIsThere) {
  Start(KeptSetup());
  Sink(Sequence(1, 4));
  CrashAndRestart();
  Settle();
  EXPECT_FALSE(Presence(TestHash(1, 0)).anywhere());
  EXPECT_EQ(cache_->stats().adopted_blocks, 0u);
}

TEST_F(CacheAdoptionTest, AnotherTenantDoesNotSeeTheBlocks) {
  Start(KeptSetup());
  Sink(Sequence(1, 4));
  DieAndAdoptFor(Identity("another", 1));
  EXPECT_EQ(cache_->stats().adopted_blocks, 4u);
  EXPECT_EQ(Acquire(kBob, Sequence(1, 4)).hits.size(), 0u);
  DieAndAdoptFor(Identity("tenant", 1));
  ExpectHostHits(Sequence(1, 4));
}

TEST_F(CacheAdoptionTest, TimeToLiveGoesOnWhileTheDaemonIsDown) {
  Start(KeptSetup());
  Sink(Sequence(1, 2));
  AdvanceAndTick(kHourMs);
  Sink(Sequence(2, 2));
  cache_.reset();
  machine_->clock.Advance(setup_.options.extended_ttl_ms - kHourMs / 2);
  DieAndAdopt();
  EXPECT_EQ(Dropped(AdoptionDrop::kExpired), 2u);
  EXPECT_EQ(InHost(Sequence(1, 2)), 0u);
  EXPECT_EQ(InHost(Sequence(2, 2)), 2u);
  AdvanceAndTick(kHourMs);
  EXPECT_EQ(InHost(Sequence(2, 2)), 0u);
}

// The header was sealed when the block came to host; later uses stand in the table.
TEST_F(CacheAdoptionTest, ALaterUseCountsForTheTimeToLiveAndUsesAreKept) {
  Start(KeptSetup());
  Sink(Sequence(1, 1));
  AdvanceAndTick(setup_.options.extended_ttl_ms - kHourMs);
  Use(Sequence(1, 1));
  const auto before = cache_->Inspect({pool_.namespace_id, TestHash(1, 0)});
  cache_.reset();
  machine_->clock.Advance(2 * kHourMs);
  DieAndAdopt();
  ASSERT_EQ(InHost(Sequence(1, 1)), 1u);
  const auto after = cache_->Inspect({pool_.namespace_id, TestHash(1, 0)});
  ASSERT_TRUE(before && after);
  EXPECT_EQ(after->uses, before->uses);
  EXPECT_GT(after->uses, 0u);
  EXPECT_EQ(after->last_use_s, before->last_use_s);
  EXPECT_EQ(after->created_s, before->created_s);
  EXPECT_EQ(after->tokens, before->tokens);
  EXPECT_EQ(after->depth, before->depth);
}

TEST_F(CacheAdoptionTest, ABlockThatIsCommittedAnewIsYoungAgain) {
  CacheSetup setup = KeptSetup();
  setup.options.max_age_ms = 2 * kHourMs;
  Start(setup);
  Sink(Sequence(1, 1));
  AdvanceAndTick(kHourMs);
  // The use goes first, in the same moment.
  Use(Sequence(1, 1));
  const BlockHandle block = Acquire(kAlice, {}, 1).new_blocks.front();
  ASSERT_TRUE(TryCommit(kAlice, block, {.hash = TestHash(1, 0)}));
  cache_.reset();
  machine_->clock.Advance(kHourMs + kMinuteMs);
  DieAndAdopt();
  EXPECT_EQ(InHost(Sequence(1, 1)), 1u);
}

TEST_F(CacheAdoptionTest, ABlockThatIsStoredAnewFromARegionIsYoungAgain) {
  CacheSetup setup = KeptSetup();
  setup.options.max_age_ms = 2 * kHourMs;
  Start(setup);
  Sink(Sequence(1, 1));
  AdvanceAndTick(kHourMs);
  // The use goes first, in the same moment.
  Use(Sequence(1, 1));
  const Result<PoolId> region = cache_->OpenRegion(
      kAlice, Identity("tenant", 1),
      {.lent = {.bytes = kBlockBytes}, .blocks = 1, .pieces = {{0, kBlockBytes, kBlockBytes}}});
  ASSERT_TRUE(region);
  const std::vector<BlockIndex> blocks = {BlockIndex(0)};
  ASSERT_TRUE(cache_->BeginTransfer(*region, TransferId(1), blocks, [](const TransferEnd&) {}, {}));
  cache_->Store(*region, std::vector<StoreRequest>{
                             {.block = blocks[0], .hash = TestHash(1, 0), .tokens = kBlockTokens}});
  Settle();
  cache_.reset();
  machine_->clock.Advance(kHourMs + kMinuteMs);
  DieAndAdopt();
  EXPECT_EQ(InHost(Sequence(1, 1)), 1u);
}

TEST_F(CacheAdoptionTest, ACorruptPayloadOrHeaderIsDroppedAndNeverServed) {
  Start(KeptSetup());
  Sink(Sequence(1, 4));
  SlotOf(TestHash(1, 1))[kSlotHeaderBytes + 100] ^= std::byte{1};
  SlotOf(TestHash(1, 2))[2000] ^= std::byte{1};
  DieAndAdopt();
  EXPECT_EQ(Dropped(AdoptionDrop::kCorrupt), 2u);
  EXPECT_EQ(InHost(Sequence(1, 4)), 2u);
  EXPECT_FALSE(Presence(TestHash(1, 1)).anywhere());
  EXPECT_FALSE(Presence(TestHash(1, 2)).anywhere());
  EXPECT_EQ(cache_->Gauges().host_used_bytes, 2 * kSlotBytes);
  ExpectHostHits(Sequence(1, 1));
}

TEST_F(CacheAdoptionTest, WhatHadLeftHostIsNotThere) {
  CacheSetup setup = KeptSetup();
  setup.host_slots = 8;
  Start(setup);
  Sink(Sequence(1, 4), RetentionClass::kMemory);
  Sink(Sequence(2, 8), RetentionClass::kMemory);
  const uint32_t left = InHost(Sequence(1, 4)) + InHost(Sequence(2, 8));
  DieAndAdopt();
  EXPECT_EQ(cache_->stats().adopted_blocks, left);
  EXPECT_EQ(DroppedInAll(), 0u);
  EXPECT_EQ(InHost(Sequence(1, 4)), 0u);
}

// A write of the dead process may still reach the slot: it is given to no block for a while.
TEST_F(CacheAdoptionTest, SlotsThatWereBeingFilledAreDroppedAndStayEmptyForAWhile) {
  Start(KeptSetup());
  Put(Sequence(1, 16));
  const PendingAcquire evicting = BeginAcquire(kBob, {}, 8);
  const uint64_t filling =
      cache_->Gauges().host_used_bytes / kSlotBytes - cache_->Gauges().host_blocks;
  ASSERT_GT(filling, 0u);
  const uint64_t complete = cache_->Gauges().host_blocks;
  DieAndAdopt();
  EXPECT_EQ(Dropped(AdoptionDrop::kUnfinished), filling);
  EXPECT_EQ(cache_->stats().adopted_blocks, complete);
  EXPECT_EQ(cache_->Gauges().host_used_bytes, (complete + filling) * kSlotBytes);
  AdvanceAndTick(4 * kSecondMs);
  EXPECT_EQ(cache_->Gauges().host_used_bytes, (complete + filling) * kSlotBytes);
  AdvanceAndTick(2 * kSecondMs);
  EXPECT_EQ(cache_->Gauges().host_used_bytes, complete * kSlotBytes);
}

TEST_F(CacheAdoptionTest, EndsWhenTheArenaHasGrownAsFarAsItCan) {
  CacheSetup setup = KeptSetup();
  setup.host_slots_ready = 8;
  Start(setup);
  machine_->arena->Grow(kSlabBytes);
  Sink(Sequence(1, 10), RetentionClass::kMemory);
  DieAndBegin();
  Settle();
  EXPECT_FALSE(cache_->AdoptionEnded()) << "more of the arena is to come";
  machine_->arena->table()->BeginAdoption();
  EXPECT_TRUE(reports_.empty());
  machine_->arena->EndGrowth();
  AdvanceAndTick(1 * kSecondMs);
  EXPECT_TRUE(cache_->AdoptionEnded());
  EXPECT_EQ(machine_->arena->table()->unfinished_adoptions(), 0u);
  ASSERT_EQ(reports_.size(), 1u);
  EXPECT_GT(reports_[0].blocks, 0u);
}

// The lock of the directory that the dead daemon read from is not this daemon's.
TEST_F(CacheAdoptionTest, AfterAChangeOfDiskDirectoryUnfinishedSlotsStayEmptyForLonger) {
  CacheSetup setup = KeptSetup();
  setup.disk_slots = 32;
  Start(setup);
  Put(Sequence(1, 16));
  const PendingAcquire evicting = BeginAcquire(kBob, {}, 8);
  const uint64_t complete = cache_->Gauges().host_blocks;
  ASSERT_GT(cache_->Gauges().host_used_bytes, complete * kSlotBytes);
  machine_->disk_set.bytes[0] = 2;
  DieAndBegin();
  AdvanceAndTick(29 * kSecondMs);
  // One that follows soon has to wait as long, though it has the same directory.
  DieAndBegin();
  AdvanceAndTick(29 * kSecondMs);
  EXPECT_GT(cache_->Gauges().host_used_bytes, cache_->Gauges().host_blocks * kSlotBytes);
  AdvanceAndTick(2 * kSecondMs);
  EXPECT_EQ(cache_->Gauges().host_used_bytes, cache_->Gauges().host_blocks * kSlotBytes);
  DieAndBegin();
  AdvanceAndTick(6 * kSecondMs);
  EXPECT_EQ(cache_->Gauges().host_used_bytes, cache_->Gauges().host_blocks * kSlotBytes);
}

TEST_F(CacheAdoptionTest, BlocksThatAreOnDiskTooAreAdoptedAsCleanOnes) {
  CacheSetup setup = KeptSetup();
  setup.disk_slots = 32;
  Start(setup);
  Put(Sequence(1, 8));
  Drain();
  EvictFromPool();
  ASSERT_EQ(InHost(Sequence(1, 8)), 8u);
  DieAndAdopt();
  EXPECT_EQ(cache_->stats().restored_blocks, 8u);
  EXPECT_EQ(cache_->stats().adopted_blocks, 8u);
  EXPECT_EQ(cache_->Gauges().entries, 8u);
  EXPECT_EQ(cache_->Gauges().unpersisted_blocks, 0u);
  ExpectHostHits(Sequence(1, 8));
  EXPECT_EQ(machine_->disk_reads(), 1u) << "of the slab's header, when it was new";
}

TEST_F(CacheAdoptionTest, DirtyBlocksArePersistedLater) {
  CacheSetup setup = KeptSetup();
  setup.disk_slots = 32;
  setup.options.persist_after_ms = kMinuteMs;
  Start(setup);
  Put(Sequence(1, 12));
  EvictFromPool();
  const Hashes sequence = Sequence(1, 12);
  const uint32_t in_host = InHost(sequence);
  ASSERT_GT(in_host, 0u);
  DieAndAdopt();
  EXPECT_EQ(InHost(sequence), in_host);
  AdvanceAndTick(2 * kMinuteMs);
  AdvanceAndTick(2 * kMinuteMs);
  for (const BlockHash& hash : sequence) {
    EXPECT_EQ(Presence(hash).disk, Presence(hash).host);
  }
}

TEST_F(CacheAdoptionTest, ADrainWritesWhatIsStillToBeVerified) {
  CacheSetup setup = KeptSetup();
  setup.disk_slots = 32;
  Start(setup);
  Put(Sequence(1, 12));
  EvictFromPool();
  const Hashes sequence = Sequence(1, 12);
  DieAndBegin();
  Drain();
  const uint64_t adopted = cache_->stats().adopted_blocks;
  EXPECT_GT(adopted, 0u);
  EXPECT_EQ(cache_->Gauges().unpersisted_blocks, 0u);
  for (const BlockHash& hash : sequence) EXPECT_TRUE(!Presence(hash).host || Presence(hash).disk);
}

TEST_F(CacheAdoptionTest, AProcessThatIsAboutToEndLooksAtNoMore) {
  Start(KeptSetup());
  Sink(Sequence(1, 6));
  DieAndBegin();
  cache_->StopDraining();
  machine_->loop.RunAll();
  EXPECT_TRUE(cache_->Idle());
  DieAndAdopt();
  ExpectHostHits(Sequence(1, 6));
}

// The header in host is changed before the block is written to disk.
TEST_F(CacheAdoptionTest, ABlockThatIsBeingWrittenToDiskIsAdopted) {
  CacheSetup setup = KeptSetup();
  setup.disk_slots = 32;
  Start(setup);
  Put(Sequence(1, 4));
  cache_->Drain([] {});
  for (int events = 0; cache_->Gauges().disk_writes_in_flight == 0 && events < 100; ++events) {
    machine_->loop.RunOne();
  }
  ASSERT_GT(cache_->Gauges().disk_writes_in_flight, 0u);
  const uint64_t complete = cache_->Gauges().host_blocks;
  DieAndAdopt();
  EXPECT_EQ(cache_->stats().adopted_blocks, complete);
  EXPECT_EQ(Dropped(AdoptionDrop::kCorrupt), 0u);
}

TEST_F(CacheAdoptionTest, ABlockThatCameBackBeforeItsTurnIsKeptAsItIs) {
  Start(KeptSetup());
  Sink(Sequence(1, 4));
  DieAndBegin();
  // Computed anew while the verification is under way.
  std::optional<AcquireReply> reply;
  cache_->Acquire({.session = kAlice, .pool = pool_.id, .new_blocks = 4},
                  [&](Result<AcquireReply> result) { reply = std::move(*result); });
  ASSERT_TRUE(reply);
  for (uint32_t i = 0; i < 4; ++i) Commit(kAlice, reply->new_blocks[i], TestHash(1, i), i);
  Settle();
  EXPECT_EQ(cache_->stats().adopted_blocks + Dropped(AdoptionDrop::kDuplicate), 4u);
  EXPECT_EQ(InHost(Sequence(1, 4)), 4u);
  Release(kAlice, reply->new_blocks);
  EvictFromPool();
  ExpectHostHits(Sequence(1, 4));
}

TEST_F(CacheAdoptionTest, TheColdestOfWhatWasAdoptedLeavesFirst) {
  CacheSetup setup = KeptSetup();
  setup.host_slots = 16;
  setup.host_slots_ready = 8;
  Start(setup);
  Sink(Sequence(1, 4), RetentionClass::kMemory);
  AdvanceAndTick(5 * kSecondMs);
  machine_->arena->Grow(kSlabBytes);
  Settle();
  Sink(Sequence(2, 4), RetentionClass::kMemory);
  AdvanceAndTick(5 * kSecondMs);
  Sink(Sequence(3, 4), RetentionClass::kMemory);
  AdvanceAndTick(5 * kSecondMs);
  Use(Sequence(1, 4));
  EvictFromPool();
  AdvanceAndTick(5 * kSecondMs);
  ASSERT_EQ(InHost(Sequence(1, 4)) + InHost(Sequence(2, 4)) + InHost(Sequence(3, 4)), 12u);
  DieAndAdopt();
  machine_->arena->Grow(kSlabBytes);
  Settle();
  ASSERT_EQ(cache_->stats().adopted_blocks, 12u);
  Sink(Sequence(4, 8), RetentionClass::kMemory);
  EXPECT_EQ(InHost(Sequence(2, 4)), 0u);
  EXPECT_EQ(InHost(Sequence(1, 4)), 4u);
  EXPECT_EQ(InHost(Sequence(3, 4)), 4u);
}

TEST_F(CacheAdoptionTest, ALoweredCapHoldsForWhatIsAdopted) {
  CacheSetup setup = KeptSetup();
  setup.options.tenants = {{.name = "tenant"}};
  Start(setup);
  Sink(Sequence(1, 10));
  ASSERT_EQ(InHost(Sequence(1, 10)), 10u);
  setup_.options.tenants[0].tiers[1].max_bytes = 6 * kSlotBytes;
  DieAndAdopt();
  EXPECT_EQ(cache_->stats().adopted_blocks, 6u);
  EXPECT_EQ(Dropped(AdoptionDrop::kTenantCap), 4u);
  EXPECT_EQ(cache_->Gauges().host_used_bytes, 6 * kSlotBytes);
}

TEST_F(CacheAdoptionTest, BlocksOfATenantWhoseQuotasAreGoneAreStillItsOwn) {
  CacheSetup setup = KeptSetup();
  setup.options.tenants = {{.name = "tenant"}};
  setup.options.tenants[0].tiers[1].reserved_bytes = kSlabBytes;
  Start(setup);
  Sink(Sequence(1, 6));
  setup_.options.tenants.clear();
  DieAndAdopt();
  ExpectHostHits(Sequence(1, 6));
  DieAndAdoptFor(Identity("another", 1));
  EXPECT_EQ(Acquire(kBob, Sequence(1, 6)).hits.size(), 0u);
}

TEST_F(CacheAdoptionTest, ASlabOfATenantWithAReserveIsItsOwnAgain) {
  CacheSetup setup = KeptSetup();
  setup.options.tenants = {{.name = "tenant"}};
  setup.options.tenants[0].tiers[1].reserved_bytes = kSlabBytes;
  Start(setup);
  Sink(Sequence(1, 6));
  DieAndAdopt();
  EXPECT_EQ(cache_->Gauges().tenants.at(0).own_slab_bytes[1], kSlabBytes);
  EXPECT_EQ(cache_->Gauges().tenants.at(0).used_bytes[1], 6 * kSlotBytes);
}

TEST_F(CacheAdoptionTest, SlotsOfSeveralSizesAreAdopted) {
  Start(KeptSetup());
  Sink(Sequence(1, 4));
  DieAndAdoptFor(larger_);
  Sink(Sequence(2, 3));
  DieAndAdopt();
  EXPECT_EQ(cache_->stats().adopted_blocks, 7u);
  ExpectHostHits(Sequence(1, 4));
  DieAndAdoptFor(larger_);
  ExpectHostHits(Sequence(2, 3));
}

TEST_F(CacheAdoptionTest, AnotherModelGetsSpaceFromAdoptedBlocks) {
  Start(KeptSetup());
  Sink(Sequence(1, 16), RetentionClass::kMemory);
  DieAndAdoptFor(larger_);
  Sink(Sequence(2, 4), RetentionClass::kMemory);
  EXPECT_EQ(InHost(Sequence(2, 4)), 4u);
}

// Adoption goes on between the events of clients that need space in the same memory.
TEST_F(CacheAdoptionTest, ClientsAcquireAndEvictMeanwhile) {
  CacheSetup setup = KeptSetup();
  setup.host_slots_ready = 8;
  Start(setup);
  machine_->arena->Grow(kSlabBytes);
  Sink(Sequence(1, 14), RetentionClass::kMemory);
  DieAndBegin();
  const PendingAcquire first = BeginAcquire(kAlice, Sequence(1, 14), 2);
  machine_->loop.RunOne();
  machine_->arena->Grow(kSlabBytes);
  const PendingAcquire second = BeginAcquire(kBob, Sequence(1, 14));
  Settle();
  ASSERT_TRUE(first.succeeded());
  ASSERT_TRUE(second.succeeded());
  Release(kAlice, first.reply().new_blocks);
  Release(kAlice, HandlesOf(first.reply()));
  Release(kBob, HandlesOf(second.reply()));
  Sink(Sequence(2, 8), RetentionClass::kMemory);
  EXPECT_EQ(InHost(Sequence(2, 8)), 8u);
}

TEST_F(CacheAdoptionTest, WhatAnAdministratorEvictsBeforeItsTurnDoesNotComeBack) {
  CacheSetup setup = KeptSetup();
  setup.disk_slots = 32;
  Start(setup);
  Put(Sequence(1, 2));
  Drain();
  EvictFromPool();
  DieAndBegin();
  EXPECT_EQ(cache_->Evict({pool_.namespace_id, TestHash(1, 1)}, std::nullopt),
            EvictOutcome::kEvicted);
  Settle();
  EXPECT_EQ(Dropped(AdoptionDrop::kEvictedByHand), 1u);
  EXPECT_FALSE(Presence(TestHash(1, 1)).anywhere());
  EXPECT_TRUE(Presence(TestHash(1, 0)).host);
}

TEST_F(CacheAdoptionTest, AChildFindsItsParentAgain) {
  CacheSetup setup = KeptSetup();
  setup.options.keep_unusable_ms = kMinuteMs;
  Start(setup);
  const AcquireReply reply = Acquire(kAlice, {}, 3);
  for (uint32_t i = 0; i < 3; ++i) {
    CommitRequest request{.hash = TestHash(1, i), .depth = i};
    if (i > 0) request.parent = TestHash(1, i - 1);
    ASSERT_TRUE(TryCommit(kAlice, reply.new_blocks[i], request));
  }
  Release(kAlice, reply.new_blocks);
  EvictFromPool();
  ASSERT_EQ(InHost(Sequence(1, 3)), 3u);
  DieAndAdopt();
  EXPECT_EQ(cache_->Evict({pool_.namespace_id, TestHash(1, 0)}, std::nullopt),
            EvictOutcome::kEvicted);
  Settle();
  EXPECT_EQ(cache_->Gauges().unusable_blocks[1], 1u);
  AdvanceAndTick(2 * kMinuteMs);
  EXPECT_EQ(InHost(Sequence(1, 3)), 0u);
}

TEST_F(CacheAdoptionTest, WhatHasBecomeOfItIsReportedOnce) {
  Start(KeptSetup());
  Sink(Sequence(1, 3));
  SlotOf(TestHash(1, 2))[5000] ^= std::byte{1};
  DieAndBegin();
  Settle();
  ASSERT_EQ(reports_.size(), 1u);
  EXPECT_EQ(reports_[0].blocks, 2u);
  EXPECT_EQ(reports_[0].bytes, 2 * kBlockBytes);
  EXPECT_EQ(reports_[0].dropped, 1u);
}

// Whatever lies in table and arena: never a crash, never a wrong byte.
TEST_F(CacheAdoptionTest, GarbageInTheTableNeverServesAWrongByte) {
  SeededRandom random(11);
  for (int round = 0; round < 60; ++round) {
    Start(KeptSetup());
    Sink(Sequence(1, 12));
    const auto table = machine_->arena->table_bytes();
    const auto used = table.subspan(4096);
    for (uint64_t i = random.Between(1, 40); i > 0; --i) {
      // Mostly where the records of the first slots lie.
      const uint64_t at = random.Chance(0.8) ? random.Below(2) * 4096 + random.Below(256)
                                             : random.Below(used.size());
      used[at] = static_cast<std::byte>(random.Below(random.Chance(0.5) ? 4 : 256));
    }
    for (uint64_t i = random.Below(4); i > 0; --i) {
      machine_->arena->data()[random.Below(machine_->arena->capacity_bytes())] ^= std::byte{4};
    }
    DieAndAdopt();
    const AcquireReply reply = Acquire(kAlice, Sequence(1, 12));
    for (size_t i = 0; i < reply.hits.size(); ++i) {
      ASSERT_TRUE(MatchesHash(TestHash(1, static_cast<uint32_t>(i)), Bytes(reply.hits[i].handle)));
    }
    Release(kAlice, HandlesOf(reply));
    Sink(Sequence(2, 12));
    AdvanceAndTick(kMinuteMs);
    cache_.reset();
    machine_->loop.DropAll();
  }
}

}  // namespace
}  // namespace kvtier
