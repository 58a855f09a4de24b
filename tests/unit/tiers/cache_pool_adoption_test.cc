// SPDX-License-Identifier: Apache-2.0
// Pools that outlive the process: the blocks that the next one serves at once, and those that it
// leaves alone as long as processes of the earlier life may use them.

#include <algorithm>
#include <cstring>

#include "tests/unit/tiers/cache_fixture.h"

namespace kvtier {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

class CachePoolAdoptionTest : public CacheTest {
 protected:
  [[nodiscard]] static CacheSetup KeptSetup() {
    return {.pool_blocks = 16, .keep_pools = true, .disk_slots = 0};
  }
  // As DieAndAdopt; clients of the earlier life are still there.
  void DieWithClients() {
    DieAndAdopt();
    absent_ = cache_->TakeAbsentClients();
  }
  // The same, and they end with the process.
  void DieAlone() {
    DieWithClients();
    for (const AbsentClients& absent : absent_) {
      for (const AbsentClients::Session& session : absent.sessions) {
        cache_->ReleaseQuarantine(session.holdings);
      }
      cache_->ReleaseQuarantine(absent.readers);
      cache_->ReleaseQuarantine(absent.writers);
    }
    Settle();
  }
  [[nodiscard]] uint32_t InPool(const Hashes& hashes) const {
    const auto present = cache_->Lookup(pool_.id, hashes);
    return static_cast<uint32_t>(std::ranges::count(present, true, &BlockPresence::pool));
  }
  [[nodiscard]] const FakePoolKeeper::Kept& kept() const {
    return machine_->pool_keeper.kept().front();
  }
  [[nodiscard]] uint64_t Dropped(AdoptionDrop reason) const {
    return cache_->stats().pool_adoption_drops[static_cast<size_t>(reason)];
  }
  // The block of the table that holds the hash.
  [[nodiscard]] BlockIndex BlockOf(const BlockHash& hash) const {
    for (uint32_t i = 0; i < kept().description.blocks; ++i) {
      if (!kept().table->Whole(BlockIndex(i))) continue;
      const auto facts = kept().table->FactsOf(BlockIndex(i));
      if (facts && facts->hash == hash) return BlockIndex(i);
    }
    ADD_FAILURE() << "the block is in no place of the table";
    return kNoBlock;
  }
  // Flips a bit of the block's record wherever it stands in the table.
  void DamageRecordOf(const BlockHash& hash) {
    const std::span<std::byte> table = kept().table_bytes();
    const std::span<const std::byte> bytes = std::as_bytes(std::span(hash.bytes));
    const auto found = std::ranges::search(table, bytes);
    ASSERT_FALSE(found.empty());
    found.front() ^= std::byte{4};
  }
  // All are hits in the pool, with their bytes, and nothing was copied for it.
  void ExpectPoolHits(const Hashes& hashes) {
    const uint64_t copies = machine_->device->copies_requested();
    const AcquireReply reply = Acquire(kAlice, hashes);
    ASSERT_EQ(reply.hits.size(), hashes.size());
    EXPECT_THAT(TiersOf(reply), Each(Tier::kPool));
    EXPECT_EQ(machine_->device->copies_requested(), copies);
    for (size_t i = 0; i < hashes.size(); ++i) {
      EXPECT_TRUE(MatchesHash(hashes[i], Bytes(reply.hits[i].handle)));
    }
    Release(kAlice, HandlesOf(reply));
    Settle();
  }

  std::vector<AbsentClients> absent_;
};

TEST_F(CachePoolAdoptionTest, BlocksInAPoolAreHitsThereInTheNextProcess) {
  Start(KeptSetup());
  Put(Sequence(1, 10));
  const uint64_t generation = pool_.generation;
  DieAlone();
  EXPECT_EQ(pool_.generation, generation) << "clients may keep their mappings";
  EXPECT_EQ(cache_->stats().adopted_pool_blocks, 10u);
  EXPECT_EQ(cache_->stats().adopted_pool_bytes, 10 * kBlockBytes);
  ExpectPoolHits(Sequence(1, 10));
  EXPECT_EQ(PoolGaugesNow().free, 6u);
}

TEST_F(CachePoolAdoptionTest, PinsOfBlocksThatOnlyAPoolHasOutliveADeath) {
  Start(KeptSetup());
  Put(Sequence(1, 10));
  constexpr int64_t kDayMs = int64_t{24} * 60 * 60 * 1000;
  ASSERT_TRUE(cache_->Pin(kAlice, pool_.id, Sequence(1, 2), 3 * kDayMs));
  for (int deaths = 0; deaths < 3; ++deaths) DieAlone();
  EXPECT_EQ(cache_->Gauges().pinned_blocks, 2u);
  cache_.reset();
  machine_->clock.Advance(2 * kDayMs);
  DieAlone();
  EXPECT_EQ(InPool(Sequence(1, 10)), 2u) << "the others have passed their time to live";
}

TEST_F(CachePoolAdoptionTest, ManyDeathsLoseNothing) {
  Start(KeptSetup());
  Put(Sequence(1, 10));
  for (int deaths = 0; deaths < 12; ++deaths) DieAlone();
  ExpectPoolHits(Sequence(1, 10));
}

TEST_F(CachePoolAdoptionTest, FiveDeathsDuringAdoptionBeginEmpty) {
  Start(KeptSetup());
  Put(Sequence(1, 10));
  for (int deaths = 0; deaths < 5; ++deaths) {
    cache_.reset();
    machine_->Crash(FakeMachine::HostMemory::kKept);
    cache_ = std::make_unique<Cache>(setup_.options, machine_->Environment(), IndexSnapshot{});
    EXPECT_EQ(cache_->stats().adopted_pool_blocks, 10u);
  }
  DieAlone();
  EXPECT_EQ(InPool(Sequence(1, 10)), 0u);
  EXPECT_THAT(machine_->pool_keeper.refusals(), ElementsAre("adoption_unfinished"));
}

TEST_F(CachePoolAdoptionTest, APrivateBlockIsNotUsedWhileItsProcessLives) {
  Start(KeptSetup());
  cache_->UsePool(kAlice, pool_.id, {.process = {71, 5}, .session = kAlice});
  const AcquireReply held = Acquire(kAlice, {}, 4);
  DieWithClients();
  cache_->ReleaseQuarantine(absent_.front().readers);
  cache_->ReleaseQuarantine(absent_.front().writers);
  Settle();
  EXPECT_EQ(PoolGaugesNow().quarantined, 4u);
  const AcquireReply others = Acquire(kBob, {}, 12);
  for (const BlockHandle& block : others.new_blocks) {
    EXPECT_THAT(HandlesOf(held), Each(testing::Ne(block)));
    for (const BlockHandle& old : held.new_blocks) EXPECT_NE(block.index, old.index);
  }
  cache_->ReleaseQuarantine(absent_.front().sessions.front().holdings);
  Settle();
  EXPECT_EQ(PoolGaugesNow().free, 4u);
}

TEST_F(CachePoolAdoptionTest, WhatALivingProcessReadsIsServedButNotEvicted) {
  Start(KeptSetup());
  Put(Sequence(1, 8));
  const AcquireReply read = Acquire(kAlice, Sequence(1, 4));
  DieWithClients();
  ExpectPoolHits(Sequence(1, 8));
  // Four may not leave, the others may.
  const AcquireReply most = Acquire(kBob, {}, 12);
  EXPECT_EQ(most.new_blocks.size(), 12u);
  EXPECT_EQ(InPool(Sequence(1, 8)), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(MatchesHash(Sequence(1, 4)[i], Bytes(read.hits[i].handle)));
  }
  Release(kBob, most.new_blocks);
  cache_->ReleaseQuarantine(absent_.front().readers);
  Settle();
  EvictFromPool();
  EXPECT_EQ(InPool(Sequence(1, 8)), 0u);
}

TEST_F(CachePoolAdoptionTest, HandlesOfTheEarlierLifeGiveNoBlockAway) {
  Start(KeptSetup());
  Put(Sequence(1, 2));
  const AcquireReply held = Acquire(kAlice, Sequence(1, 2), 2);
  DieAlone();
  (void)Acquire(kBob, Sequence(1, 2), 14);
  const std::optional<Error> cached = TryRelease(kAlice, held.hits[0].handle);
  ASSERT_TRUE(cached);
  EXPECT_EQ(cached->code, ErrorCode::kNotOwner);
  const std::optional<Error> overwritten = TryRelease(kAlice, held.new_blocks[0]);
  ASSERT_TRUE(overwritten);
  EXPECT_EQ(overwritten->code, ErrorCode::kStaleHandle);
}

TEST_F(CachePoolAdoptionTest, ABlockThatWasBeingLoadedIsDropped) {
  CacheSetup setup = KeptSetup();
  setup.keep_host = true;
  Start(setup);
  Put(Sequence(1, 4));
  EvictFromPool();
  (void)BeginAcquire(kAlice, Sequence(1, 4));
  DieWithClients();
  EXPECT_EQ(InPool(Sequence(1, 4)), 0u);
  EXPECT_EQ(Dropped(AdoptionDrop::kUnfinished), 4u);
  EXPECT_FALSE(absent_.front().writers_hold) << "no process could write to it";
  EXPECT_EQ(PoolGaugesNow().quarantined, 4u);
  cache_->ReleaseQuarantine(absent_.front().readers);
  Settle();
  EXPECT_EQ(PoolGaugesNow().free, 16u);
}

TEST_F(CachePoolAdoptionTest, ABlockInHostAndInAPoolIsOneBlock) {
  CacheSetup setup = KeptSetup();
  setup.keep_host = true;
  setup.host_slots_ready = 0;
  Start(setup);
  machine_->arena->Grow(machine_->arena->capacity_bytes());
  Put(Sequence(1, 4));
  EvictFromPool();
  Use(Sequence(1, 4));
  DieAlone();
  EXPECT_EQ(InPool(Sequence(1, 4)), 4u);
  EXPECT_FALSE(Presence(Sequence(1, 1)[0]).host);
  machine_->arena->Grow(machine_->arena->capacity_bytes());
  Settle();
  EXPECT_TRUE(Presence(Sequence(1, 1)[0]).host);
  EXPECT_EQ(cache_->Gauges().entries, 4u);
  ExpectPoolHits(Sequence(1, 4));
}

TEST_F(CachePoolAdoptionTest, ADamagedRecordCostsItsBlockAlone) {
  Start(KeptSetup());
  Put(Sequence(1, 4));
  DamageRecordOf(Sequence(1, 4)[3]);
  DieAlone();
  EXPECT_EQ(Dropped(AdoptionDrop::kCorrupt), 1u);
  EXPECT_EQ(InPool(Sequence(1, 4)), 3u);
  EXPECT_EQ(PoolGaugesNow().free, 13u);
}

TEST_F(CachePoolAdoptionTest, BytesThatAreNotWhatWasCommittedAreDroppedWhenTheyAreCopied) {
  Start(KeptSetup());
  const AcquireReply reply = Acquire(kAlice, {}, 1);
  const BlockHash hash = Sequence(1, 1)[0];
  FillFromHash(hash, Bytes(reply.new_blocks[0]));
  ASSERT_TRUE(cache_->Commit(kAlice, pool_.id,
                             {.block = reply.new_blocks[0],
                              .hash = hash,
                              .tokens = kBlockTokens,
                              .checksum = ChecksumPayload(Bytes(reply.new_blocks[0]))}));
  Release(kAlice, reply.new_blocks);
  const BlockIndex block = BlockOf(hash);
  DieAlone();
  kept().Bytes(block)[7] ^= std::byte{1};
  cache_->Drain([] {});
  (void)Acquire(kBob, {}, pool_.blocks);
  EXPECT_FALSE(Presence(hash).anywhere());
  EXPECT_EQ(Drops(Tier::kPool, DropReason::kClientWroteCommitted), 1u);
}

TEST_F(CachePoolAdoptionTest, APoolBeyondTheCapIsGivenBack) {
  Start(KeptSetup());
  Put(Sequence(1, 4));
  setup_.options.pool_bytes = 8 * kBlockBytes;
  DieAlone();
  EXPECT_THAT(machine_->pool_keeper.refusals(), ElementsAre("size_changed"));
  EXPECT_EQ(pool_.blocks, 8u);
  EXPECT_EQ(InPool(Sequence(1, 4)), 0u);
  EXPECT_EQ(machine_->device->allocated_bytes(), 8 * kBlockBytes);
}

TEST_F(CachePoolAdoptionTest, AProcessThatCannotBeFoundAgainKeepsThePoolFromAdoption) {
  Start(KeptSetup());
  Put(Sequence(1, 4));
  cache_->UsePool(kAlice, pool_.id, {.process = {.pid = 0}});
  DieAlone();
  EXPECT_THAT(machine_->pool_keeper.refusals(), ElementsAre("clients_unknown"));
  EXPECT_EQ(InPool(Sequence(1, 4)), 0u);
}

TEST_F(CachePoolAdoptionTest, SessionsAreNamedUntilTheirProcessesHaveGone) {
  Start(KeptSetup());
  const SessionIdentity alice{.process = {71, 5}, .uid = 7, .session = kAlice, .secret = {}};
  cache_->UsePool(kAlice, pool_.id, alice);
  cache_->UsePool(kBob, pool_.id, {.process = {72, 6}});
  cache_->CloseSession(kBob);
  Settle();
  DieWithClients();
  ASSERT_EQ(absent_.size(), 1u);
  ASSERT_EQ(absent_.front().sessions.size(), 1u);
  EXPECT_EQ(absent_.front().sessions.front().identity, alice);
  // They have gone: a death later knows of none.
  cache_->ReleaseQuarantine(absent_.front().sessions.front().holdings);
  Settle();
  DieWithClients();
  EXPECT_TRUE(absent_.front().sessions.empty());
}

TEST_F(CachePoolAdoptionTest, APoolThatMakesWayIsKeptNoLonger) {
  Start(KeptSetup());
  Put(Sequence(1, 4));
  DieAlone();
  ASSERT_EQ(machine_->pool_keeper.kept().size(), 1u);
  const NamespaceIdentity other = Identity("tenant", 2);
  while (!cache_->AttachPool(other, setup_.options.pool_bytes)) Settle();
  ASSERT_EQ(machine_->pool_keeper.kept().size(), 1u);
  EXPECT_EQ(kept().description.identity, other);
}

}  // namespace
}  // namespace kvtier
