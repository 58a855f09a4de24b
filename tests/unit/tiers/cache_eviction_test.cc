// SPDX-License-Identifier: Apache-2.0
// Which blocks leave the pool and the host tier, in which order, and at what cost.

#include <algorithm>

#include "tests/unit/tiers/cache_fixture.h"

namespace kvtier {
namespace {

using ::testing::ElementsAre;

class CacheEvictionTest : public CacheTest {
 protected:
  // How many of `hashes` the pool holds.
  [[nodiscard]] size_t InPool(const Hashes& hashes) const {
    const auto present = cache_->Lookup(pool_.id, hashes);
    return static_cast<size_t>(std::ranges::count(present, true, &BlockPresence::pool));
  }
  [[nodiscard]] size_t InHost(const Hashes& hashes) const {
    const auto present = cache_->Lookup(pool_.id, hashes);
    return static_cast<size_t>(std::ranges::count(present, true, &BlockPresence::host));
  }
  // Takes `count` blocks for as long as the test runs.
  void TakeBlocks(uint32_t count) { EXPECT_EQ(Acquire(kBob, {}, count).new_blocks.size(), count); }
};

TEST_F(CacheEvictionTest, FreeBlocksAreTakenBeforeCachedOnes) {
  Start({.pool_blocks = 8});
  Put(Sequence(1, 4));
  TakeBlocks(4);
  EXPECT_EQ(InPool(Sequence(1, 4)), 4u);
}

TEST_F(CacheEvictionTest, ReleasedSequenceIsEvictedDeepestFirst) {
  Start({.pool_blocks = 8});
  Put(Sequence(1, 8));
  TakeBlocks(3);
  const auto present = cache_->Lookup(pool_.id, Sequence(1, 8));
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(present[i].pool, i < 5) << i;
}

TEST_F(CacheEvictionTest, LeastRecentlyUsedSequenceIsEvictedFirst) {
  Start({.pool_blocks = 6});
  Put(Sequence(1, 2));
  Put(Sequence(2, 2));
  Put(Sequence(3, 2));
  Use(Sequence(1, 2));
  TakeBlocks(2);
  EXPECT_EQ(InPool(Sequence(1, 2)), 2u);
  EXPECT_EQ(InPool(Sequence(2, 2)), 0u);
  EXPECT_EQ(InPool(Sequence(3, 2)), 2u);
}

TEST_F(CacheEvictionTest, ReferencedBlocksAreNeverEvicted) {
  Start({.pool_blocks = 4});
  (void)Store(kAlice, Sequence(1, 2));
  Put(Sequence(2, 2));
  TakeBlocks(2);
  EXPECT_EQ(InPool(Sequence(1, 2)), 2u);
  EXPECT_EQ(InPool(Sequence(2, 2)), 0u);
}

TEST_F(CacheEvictionTest, ColdestQuarterIsCopiedToHostAheadOfNeed) {
  Start({.pool_blocks = 8});
  Put(Sequence(1, 8));
  EXPECT_EQ(InPool(Sequence(1, 8)), 8u);
  EXPECT_TRUE(Presence(TestHash(1, 7)).host);
  EXPECT_TRUE(Presence(TestHash(1, 6)).host);
  EXPECT_EQ(InHost(Sequence(1, 8)), 2u);
}

TEST_F(CacheEvictionTest, CleanBlockIsEvictedAtNoCost) {
  Start({.pool_blocks = 8});
  Put(Sequence(1, 8));
  machine_->loop.Hold(machine_->device->source());
  const PendingAcquire answer = BeginAcquire(kBob, {}, 2);
  ASSERT_TRUE(answer.succeeded());
  EXPECT_EQ(Drops(Tier::kPool, DropReason::kCleanCopyBelow), 2u);
  EXPECT_EQ(cache_->stats().acquires_waited, 0u);
  machine_->loop.LetGo(machine_->device->source());
  Settle();
}

TEST_F(CacheEvictionTest, OffloadRestoresTheCleanShareAfterEviction) {
  Start({.pool_blocks = 8});
  Put(Sequence(1, 8));
  TakeBlocks(2);
  EXPECT_EQ(InPool(Sequence(1, 8)), 6u);
  EXPECT_TRUE(Presence(TestHash(1, 5)).host);
  EXPECT_TRUE(Presence(TestHash(1, 4)).host);
  EXPECT_FALSE(Presence(TestHash(1, 3)).host);
}

TEST_F(CacheEvictionTest, BlockThatSankIsServedFromHostWithItsBytes) {
  Start({.pool_blocks = 4});
  Put(Sequence(1, 4));
  EvictFromPool();
  const AcquireReply reply = Acquire(kAlice, Sequence(1, 4));
  EXPECT_THAT(TiersOf(reply), ElementsAre(Tier::kHost, Tier::kHost, Tier::kHost, Tier::kHost));
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(MatchesHash(TestHash(1, i), Bytes(reply.hits[i].handle)));
  }
}

TEST_F(CacheEvictionTest, HostCopyStaysWhenABlockComesBack) {
  Start({.pool_blocks = 4});
  Put(Sequence(1, 1));
  EvictFromPool();
  Use(Sequence(1, 1));
  EXPECT_TRUE(Presence(TestHash(1, 0)).pool);
  EXPECT_TRUE(Presence(TestHash(1, 0)).host);
  EXPECT_EQ(cache_->stats().offload_blocks, 1u);
}

// Two sequences that pool, host and disk have; the pool has served the older one since.
TEST_F(CacheEvictionTest, AFullHostGivesUpFirstWhatThePoolHas) {
  Start({.pool_blocks = 32, .host_slots = 16, .disk_slots = 64});
  Put(Sequence(1, 6));
  Drain();
  Put(Sequence(2, 6));
  Drain();
  Use(Sequence(2, 6));
  Put(Sequence(3, 6));
  Drain();
  EXPECT_EQ(InHost(Sequence(1, 6)), 6u);
  EXPECT_LT(InHost(Sequence(2, 6)), 6u);
  EXPECT_EQ(InPool(Sequence(2, 6)), 6u);
}

TEST_F(CacheEvictionTest, HostKeepsWhatThePoolHasWhileTheDiskLacksIt) {
  Start({.pool_blocks = 16, .host_slots = 16, .disk_slots = 64});
  Put(Sequence(1, 12));
  TakeBlocks(4);
  // The coldest quarter of the pool has been copied to host, and to nowhere else.
  ASSERT_EQ(InHost(Sequence(1, 12)), 4u);
  Use(Sequence(1, 12));
  EXPECT_EQ(InHost(Sequence(1, 12)), 4u);
  EXPECT_EQ(Drops(Tier::kHost, DropReason::kCopyAbove), 0u);
}

TEST_F(CacheEvictionTest, WhatHostHasGivenUpIsCopiedThereAgainBeforeItLeavesThePool) {
  Start({.pool_blocks = 16, .host_slots = 8, .disk_slots = 64});
  Put(Sequence(1, 8));
  Drain();
  Use(Sequence(1, 8));
  Put(Sequence(2, 8));
  Drain();
  ASSERT_EQ(InHost(Sequence(1, 8)), 0u);
  ASSERT_EQ(InPool(Sequence(1, 8)), 8u);
  for (uint64_t stream = 3; InPool(Sequence(1, 8)) == 8; ++stream) Put(Sequence(stream, 2));
  EXPECT_GT(InHost(Sequence(1, 8)), 0u);
}

TEST_F(CacheEvictionTest, HostNeverHoldsMoreThanItsSlots) {
  Start({.pool_blocks = 4, .host_slots = 8, .disk_slots = 0});
  for (uint64_t stream = 1; stream <= 10; ++stream) {
    Put(Sequence(stream, 3));
    EXPECT_LE(cache_->Gauges().host_blocks, 8u);
    EXPECT_LE(cache_->Gauges().host_used_bytes, cache_->Gauges().host_capacity_bytes);
  }
  EXPECT_GT(Drops(Tier::kHost, DropReason::kLru) + Drops(Tier::kHost, DropReason::kCopyAbove), 0u);
}

TEST_F(CacheEvictionTest, DiskNeverHoldsMoreThanItsSlots) {
  Start({.pool_blocks = 4, .host_slots = 8, .disk_slots = 8});
  for (uint64_t stream = 1; stream <= 12; ++stream) {
    Put(Sequence(stream, 3));
    EXPECT_LE(cache_->Gauges().disk_blocks, 8u);
    EXPECT_LE(cache_->Gauges().disk_used_bytes, cache_->Gauges().disk_capacity_bytes);
  }
  EXPECT_GT(Drops(Tier::kDisk, DropReason::kLru), 0u);
}

TEST_F(CacheEvictionTest, PoolMemoryNeverExceedsItsCap) {
  Start({.pool_blocks = 4});
  EXPECT_EQ(pool_.bytes, 4 * kBlockBytes);
  EXPECT_FALSE(cache_->AttachPool(Identity("other", 1), kBlockBytes));
  EXPECT_EQ(machine_->device->allocated_bytes(), 4 * kBlockBytes);
}

TEST_F(CacheEvictionTest, HostDemotesItsColdestToDiskAheadOfNeed) {
  Start({.pool_blocks = 8, .host_slots = 8});
  Put(Sequence(1, 8));
  EvictFromPool();
  const auto present = cache_->Lookup(pool_.id, Sequence(1, 8));
  EXPECT_EQ(std::ranges::count(present, true, &BlockPresence::disk), 2);
  EXPECT_TRUE(present[7].disk);
  EXPECT_TRUE(present[6].disk);
}

TEST_F(CacheEvictionTest, BlockThatSankToDiskIsServedFromThereWithItsBytes) {
  Start({.pool_blocks = 4, .host_slots = 8});
  for (uint64_t stream = 1; stream <= 4; ++stream) Put(Sequence(stream, 4));
  EvictFromPool();
  ASSERT_FALSE(Presence(TestHash(1, 0)).host);
  const AcquireReply reply = Acquire(kAlice, Sequence(1, 4));
  EXPECT_THAT(TiersOf(reply), ElementsAre(Tier::kDisk, Tier::kDisk, Tier::kDisk, Tier::kDisk));
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(MatchesHash(TestHash(1, i), Bytes(reply.hits[i].handle)));
  }
}

TEST_F(CacheEvictionTest, FailedOffloadIsCountedAndLeavesTheBlockInThePool) {
  Start({.pool_blocks = 4});
  machine_->device->FailNextCopies(1);
  Put(Sequence(1, 4));
  EXPECT_EQ(InPool(Sequence(1, 4)), 4u);
  EXPECT_EQ(InHost(Sequence(1, 4)), 0u);
  const AcquireReply reply = Acquire(kBob, {}, 4);
  EXPECT_EQ(reply.new_blocks.size(), 4u);
  EXPECT_GE(Drops(Tier::kHost, DropReason::kCopyFailed), 1u);
  EXPECT_GE(Drops(Tier::kPool, DropReason::kLru), 1u);
}

TEST_F(CacheEvictionTest, HostGrowsWhileInUse) {
  Start({.pool_blocks = 8, .host_slots = 16, .host_slots_ready = 8, .disk_slots = 0});
  EXPECT_EQ(cache_->Gauges().host_ready_bytes, kSlabBytes);
  Put(Sequence(1, 8));
  machine_->arena->Grow(kSlabBytes);
  Put(Sequence(2, 8));
  EvictFromPool();
  EXPECT_EQ(cache_->Gauges().host_blocks, 16u);
}

TEST_F(CacheEvictionTest, PoolWorksBeforeTheFirstSliceOfHostMemoryIsReady) {
  Start({.pool_blocks = 4, .host_slots = 8, .host_slots_ready = 0, .disk_slots = 0});
  Put(Sequence(1, 4));
  EXPECT_EQ(InPool(Sequence(1, 4)), 4u);
  machine_->arena->Grow(kSlabBytes);
  Settle();
  Put(Sequence(2, 2));
  EXPECT_GT(cache_->Gauges().host_blocks, 0u);
}

TEST_F(CacheEvictionTest, RoomIsMadeAtOnceByBlocksThatAreOnDisk) {
  Start({.pool_blocks = 16, .host_slots = 8, .disk_slots = 32});
  Put(Sequence(1, 16));
  Drain();
  ASSERT_LE(cache_->Gauges().host_blocks, 8u);
  machine_->loop.Hold(machine_->device->source());
  EXPECT_TRUE(BeginAcquire(kAlice, {}, 16).succeeded());
  machine_->loop.LetGo(machine_->device->source());
  Settle();
  for (const BlockHash& hash : Sequence(1, 16)) EXPECT_TRUE(Presence(hash).disk);
}

TEST_F(CacheEvictionTest, HostKeepsABlockWhileItsIndexEntryIsBeingWritten) {
  Start({.pool_blocks = 8, .host_slots = 8, .disk_slots = 32});
  Put(Sequence(1, 8));
  machine_->loop.Hold(machine_->index->source());
  cache_->Drain([] {});
  Settle();
  // Every slot of host holds a block that is on disk, but not yet in the index.
  ASSERT_EQ(cache_->Gauges().host_blocks, 8u);
  Put(Sequence(2, 8));
  for (const BlockHash& hash : Sequence(1, 8)) EXPECT_TRUE(Presence(hash).host);
  machine_->loop.LetGo(machine_->index->source());
  Settle();
  EXPECT_GT(Drops(Tier::kHost, DropReason::kCleanCopyBelow), 0u);
}

TEST_F(CacheEvictionTest, BlockOnDiskWithoutAnIndexEntryIsCopiedToHostBeforeItLeavesThePool) {
  Start({.pool_blocks = 8, .host_slots = 8, .disk_slots = 32});
  Put(Sequence(1, 1));
  machine_->index->FailBatchesAtRate(1.0);
  Drain();
  ASSERT_EQ(cache_->Evict({NamespaceId(0), TestHash(1, 0)}, Tier::kHost), EvictOutcome::kEvicted);
  machine_->loop.Hold(machine_->device->source());
  const PendingAcquire acquire = BeginAcquire(kAlice, {}, 8);
  EXPECT_FALSE(acquire.answered());
  machine_->loop.LetGo(machine_->device->source());
  Settle();
  EXPECT_TRUE(acquire.succeeded());
  EXPECT_TRUE(Presence(TestHash(1, 0)).host);
}

TEST_F(CacheEvictionTest, BlockOnDiskIsNotTakenFromThePoolWhileItIsBeingCopied) {
  Start({.pool_blocks = 8, .host_slots = 8, .disk_slots = 32});
  Put(Sequence(1, 8));
  Drain();
  machine_->loop.Hold(machine_->device->source());
  for (const BlockHash& hash : Sequence(1, 8)) {
    ASSERT_EQ(cache_->Evict({NamespaceId(0), hash}, Tier::kHost), EvictOutcome::kEvicted);
  }
  Use(Sequence(1, 8));
  // Ahead of need, though the disk has them: host is faster.
  ASSERT_GT(cache_->Gauges().offloads_in_flight, 0u);
  const PendingAcquire acquire = BeginAcquire(kAlice, {}, 8);
  EXPECT_FALSE(acquire.answered());
  machine_->loop.LetGo(machine_->device->source());
  Settle();
  EXPECT_TRUE(acquire.succeeded());
}

// Their bytes do not come to host, but they stand in the order of the disk.
TEST_F(CacheEvictionTest, BlocksWhoseWritesDoNotComeDoNotHideVictims) {
  CacheSetup setup{.pool_blocks = 32, .host_slots = 16, .disk_slots = kSlotsPerSlab};
  setup.options.search_part_blocks = 2;
  Start(setup);
  machine_->device->FailCopiesAtRate(1);
  Put(Sequence(1, 4));
  Drain();
  machine_->device->FailCopiesAtRate(0);
  const auto store = [this](uint64_t stream) {
    Put(Sequence(stream, kSlotsPerSlab));
    Drain();
    uint32_t on_disk = 0;
    for (const BlockHash& hash : Sequence(stream, kSlotsPerSlab)) on_disk += Presence(hash).disk;
    return on_disk;
  };
  EXPECT_EQ(store(2), kSlotsPerSlab);
  // A search that finds no victim costs the block that it was for, and there are four to pass.
  EXPECT_GE(store(3), kSlotsPerSlab - 4);
  EXPECT_FALSE(Presence(TestHash(1, 0)).disk);
}

TEST_F(CacheEvictionTest, ASearchInHostPassesOverABoundedNumberOfLoads) {
  constexpr uint32_t kLoads = 3000;
  CacheSetup setup{.pool_blocks = 2 * kLoads, .host_slots = 8, .disk_slots = 4000};
  setup.options.max_disk_read_bytes = kBlockBytes;
  Start(setup);
  Put(Sequence(1, kLoads));
  Drain();
  EvictFromPool();
  machine_->loop.Hold(file().source());
  const PendingAcquire loading = BeginAcquire(kAlice, Sequence(1, kLoads));
  Settle();
  // All but a few of the loads are expected in host, which has eight slots.
  const auto steps = [this] { return cache_->stats().host_eviction_steps; };
  machine_->loop.LetGo(file().source());
  for (uint64_t before = steps(); machine_->loop.RunOne(); before = steps()) {
    EXPECT_LE(steps() - before, 4096u);
  }
  ASSERT_TRUE(loading.succeeded());
  EXPECT_EQ(LastProgress(loading.reply().load).ready, kLoads);
}

}  // namespace
}  // namespace kvtier
