// SPDX-License-Identifier: Apache-2.0
// Regions: transfers to and from memory whose block numbers an engine chooses.
#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "tests/unit/tiers/region_fixture.h"

namespace kvtier {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST_F(CacheRegionsTest, StoredBlocksAreInHostAndNotInTheRegion) {
  Start();
  const PoolId region = OpenRegion();
  const PendingTransfer stored = StoreAll(region, Sequence(1, 3));
  EXPECT_EQ(stored->copied, 3u);
  EXPECT_THAT(stored->failed, IsEmpty());
  for (const BlockPresence& block : cache_->Lookup(region, Sequence(1, 3))) {
    EXPECT_TRUE(block.host);
    EXPECT_FALSE(block.pool);
  }
  EXPECT_EQ(cache_->Gauges().region_blocks_in_flight, 0u);
}

TEST_F(CacheRegionsTest, WhatARegionStoredIsAcquiredInThePool) {
  Start();
  (void)StoreAll(OpenRegion(), Sequence(1, 3));
  const AcquireReply reply = Acquire(kBob, Sequence(1, 3));
  EXPECT_THAT(TiersOf(reply), ElementsAre(Tier::kHost, Tier::kHost, Tier::kHost));
  EXPECT_TRUE(MatchesHash(TestHash(1, 2), Bytes(reply.hits[2].handle)));
}

TEST_F(CacheRegionsTest, ALoadBringsBlocksFromHost) {
  Start();
  const PoolId region = OpenRegion();
  (void)StoreAll(region, Sequence(1, 3));
  const PendingTransfer loaded = BeginLoad(region, Sequence(1, 3), 8);
  Settle();
  EXPECT_EQ(loaded->copied, 3u);
  for (uint32_t i = 0; i < 3; ++i) EXPECT_TRUE(MatchesHash(TestHash(1, i), RegionBytes(8 + i)));
  EXPECT_EQ(cache_->stats().blocks.hit[static_cast<size_t>(Tier::kHost)], 3u);
}

TEST_F(CacheRegionsTest, ALoadBringsBlocksFromDiskAfterARestart) {
  Start();
  (void)StoreAll(OpenRegion(), Sequence(1, 3));
  DrainAndRestart();
  const PoolId region = OpenRegion();
  const PendingTransfer loaded = BeginLoad(region, Sequence(1, 3));
  Settle();
  EXPECT_EQ(loaded->copied, 3u);
  EXPECT_TRUE(MatchesHash(TestHash(1, 2), RegionBytes(2)));
}

TEST_F(CacheRegionsTest, ALoadBringsWhatOnlyAPoolHolds) {
  Start();
  (void)Store(kBob, Sequence(1, 2));
  const PoolId region = OpenRegion();
  for (const BlockPresence& block : cache_->Lookup(region, Sequence(1, 2))) {
    EXPECT_TRUE(block.pool);
    EXPECT_FALSE(block.host);
  }
  const PendingTransfer loaded = BeginLoad(region, Sequence(1, 2));
  Settle();
  EXPECT_EQ(loaded->copied, 2u);
  EXPECT_TRUE(MatchesHash(TestHash(1, 1), RegionBytes(1)));
}

TEST_F(CacheRegionsTest, WhatATierHasIsNotCopiedAgain) {
  Start();
  const PoolId region = OpenRegion();
  (void)StoreAll(region, Sequence(1, 2));
  const uint64_t copies = machine_->device->copies_requested();
  const PendingTransfer again = BeginStore(region, Sequence(1, 2), 4);
  EXPECT_TRUE(again.ended());
  EXPECT_EQ(again->skipped, 2u);
  EXPECT_EQ(machine_->device->copies_requested(), copies);
}

TEST_F(CacheRegionsTest, BlocksThatAreNotCachedFailAndTheOthersArrive) {
  Start();
  const PoolId region = OpenRegion();
  (void)StoreAll(region, {TestHash(1, 0), TestHash(1, 2)});
  const PendingTransfer loaded = BeginLoad(region, Sequence(1, 3), 8);
  Settle();
  EXPECT_EQ(loaded->copied, 2u);
  EXPECT_THAT(loaded->failed, ElementsAre(Pair(1u, MissReason::kUnknown)));
  EXPECT_TRUE(MatchesHash(TestHash(1, 2), RegionBytes(10)));
}

TEST_F(CacheRegionsTest, ABlockBelongsToOneTransferAtATime) {
  Start();
  const PoolId region = OpenRegion();
  const PendingTransfer stored = BeginStore(region, Sequence(1, 2));
  const auto begin = [&](std::vector<BlockIndex> blocks) {
    return cache_->BeginTransfer(region, TransferId(99), blocks, [](const TransferEnd&) {});
  };
  EXPECT_THAT(begin({BlockIndex(3), BlockIndex(1)}),
              IsErrorOf(ErrorCode::kWrongState, "block_busy"));
  EXPECT_THAT(begin({BlockIndex(4), BlockIndex(4)}),
              IsErrorOf(ErrorCode::kWrongState, "block_busy"));
  EXPECT_THAT(begin({BlockIndex(kRegionBlocks)}),
              IsErrorOf(ErrorCode::kInvalidArgument, "block_out_of_range"));
  Settle();
  EXPECT_TRUE(stored.ended());
  // The refused transfer has reserved nothing.
  const PendingTransfer loaded = BeginLoad(region, Sequence(1, 2), 3);
  Settle();
  EXPECT_EQ(loaded->copied, 2u);
}

TEST_F(CacheRegionsTest, ATransferNumberIsUsedOnceAtATime) {
  Start();
  const PoolId region = OpenRegion();
  (void)BeginStore(region, Sequence(1, 1));
  const std::vector<BlockIndex> blocks{BlockIndex(5)};
  EXPECT_THAT(
      cache_->BeginTransfer(region, TransferId(last_transfer_), blocks, [](const TransferEnd&) {}),
      IsErrorOf(ErrorCode::kWrongState, "transfer_busy"));
  Settle();
}

TEST_F(CacheRegionsTest, OneBlockIsLoadedToTwoPlacesOfARegion) {
  Start();
  const PoolId region = OpenRegion();
  (void)StoreAll(region, Sequence(1, 1));
  const PendingTransfer first = BeginLoad(region, Sequence(1, 1), 3);
  const PendingTransfer second = BeginLoad(region, Sequence(1, 1), 4);
  EXPECT_FALSE(first.ended());
  Settle();
  EXPECT_EQ(first->copied + second->copied, 2u);
  EXPECT_TRUE(MatchesHash(TestHash(1, 0), RegionBytes(3)));
  EXPECT_TRUE(MatchesHash(TestHash(1, 0), RegionBytes(4)));
}

TEST_F(CacheRegionsTest, ABlockThatIsBeingStoredIsInNoTierYet) {
  Start();
  const PendingTransfer stored = BeginStore(OpenRegion(), Sequence(1, 1));
  ASSERT_FALSE(stored.ended());
  EXPECT_FALSE(Presence(TestHash(1, 0)).anywhere());
  EXPECT_FALSE(cache_->Inspect({pool_.namespace_id, TestHash(1, 0)})->presence.anywhere());
  EXPECT_FALSE(cache_->Lookup(pool_.namespace_id, Sequence(1, 1)).front().anywhere());
  Settle();
  EXPECT_TRUE(cache_->Lookup(pool_.namespace_id, Sequence(1, 1)).front().host);
}

TEST_F(CacheRegionsTest, ALoadWaitsForTheStoreOfItsBlock) {
  Start();
  const PoolId region = OpenRegion();
  const PendingTransfer stored = BeginStore(region, Sequence(1, 1));
  const PendingTransfer loaded = BeginLoad(region, Sequence(1, 1), 7);
  Settle();
  EXPECT_EQ(stored->copied, 1u);
  EXPECT_EQ(loaded->copied, 1u);
  EXPECT_TRUE(MatchesHash(TestHash(1, 0), RegionBytes(7)));
}

TEST_F(CacheRegionsTest, AnAcquireWaitsForTheStoreOfItsBlock) {
  Start();
  const PendingTransfer stored = BeginStore(OpenRegion(), Sequence(1, 2));
  const PendingAcquire acquired = BeginAcquire(kBob, Sequence(1, 2));
  Settle();
  EXPECT_EQ(stored->copied, 2u);
  ASSERT_EQ(acquired.reply().hits.size(), 2u);
  EXPECT_TRUE(MatchesHash(TestHash(1, 1), Bytes(acquired.reply().hits[1].handle)));
}

TEST_F(CacheRegionsTest, PiecesOfABlockAreGatheredAndScattered) {
  Start();
  // Two layers, each with its blocks one after the other.
  constexpr uint64_t kHalf = kBlockBytes / 2;
  const PoolId region =
      OpenRegion(kAlice, {{0, kHalf, kHalf}, {kRegionBlocks * kHalf, kHalf, kHalf}});
  std::vector<std::byte> block(kBlockBytes);
  FillFromHash(TestHash(1, 0), block);
  const std::span<std::byte> whole{memory_->data(), memory_->bytes()};
  std::ranges::copy(std::span(block).first(kHalf), whole.begin() + 3 * kHalf);
  std::ranges::copy(std::span(block).last(kHalf), whole.begin() + (kRegionBlocks + 3) * kHalf);
  const PendingTransfer stored = Begin(region, {BlockIndex(3)});
  const StoreRequest request{
      .block = BlockIndex(3), .hash = TestHash(1, 0), .tokens = kBlockTokens};
  cache_->Store(region, std::span(&request, 1));
  Settle();
  EXPECT_EQ(stored->copied, 1u);
  EXPECT_TRUE(MatchesHash(TestHash(1, 0), Bytes(Acquire(kBob, Sequence(1, 1)).hits[0].handle)));
  (void)BeginLoad(region, Sequence(1, 1), 5);
  Settle();
  EXPECT_TRUE(std::ranges::equal(whole.subspan(5 * kHalf, kHalf), std::span(block).first(kHalf)));
  EXPECT_TRUE(std::ranges::equal(whole.subspan((kRegionBlocks + 5) * kHalf, kHalf),
                                 std::span(block).last(kHalf)));
}

TEST_F(CacheRegionsTest, BlocksAreLoadedLayerByLayer) {
  Start();
  const PoolId region = OpenRegion();
  (void)StoreAll(region, Sequence(1, 3));
  const PendingTransfer loaded = BeginLoad(region, Sequence(1, 3), 8, {.layers = 4});
  Settle();
  EXPECT_EQ(loaded->copied, 3u);
  EXPECT_TRUE(MatchesHash(TestHash(1, 1), RegionBytes(9)));
}

// --- layers that are counted ---

class CacheRegionLayersTest : public CacheRegionsTest {
 protected:
  static constexpr uint32_t kLayers = 4;
  static constexpr uint32_t kBase = 0xfffffffe;

  [[nodiscard]] LayerOrder Counted(uint32_t slot = 0) const {
    return {.layers = kLayers,
            .counters = counters_,
            .counter_offset = kCounterPageBytes / 2 + slot * kCounterSlotBytes,
            .counter_base = kBase};
  }
  [[nodiscard]] uint32_t Layers(uint32_t slot = 0) const {
    const std::byte* const word = counters_->memory().data() + Counted(slot).counter_offset;
    return *reinterpret_cast<const uint32_t*>(word) - kBase;
  }
  // Runs events one by one; after each, the layers that are counted must be in the region's blocks
  // from `first` on. Returns the counts that were seen, each once.
  std::vector<uint32_t> RunAndCheck(const Hashes& hashes, uint32_t first) {
    std::vector<uint32_t> seen;
    do {
      const uint32_t layers = Layers();
      if (seen.empty() || seen.back() != layers) seen.push_back(layers);
      if (layers > kLayers) continue;
      for (uint32_t i = 0; i < hashes.size(); ++i) {
        std::vector<std::byte> expected(kBlockBytes);
        FillFromHash(hashes[i], expected);
        const size_t bytes = kBlockBytes / kLayers * layers;
        EXPECT_EQ(std::memcmp(RegionBytes(first + i).data(), expected.data(), bytes), 0)
            << "block " << i << " at " << layers;
      }
    } while (machine_->loop.RunOne());
    return seen;
  }
};

TEST_F(CacheRegionLayersTest, LayersOfAllBlocksAreCountedInOrder) {
  Start();
  const PoolId region = OpenRegion();
  (void)StoreAll(region, Sequence(1, 6));
  const PendingTransfer loaded = BeginLoad(region, Sequence(1, 6), 8, Counted());
  EXPECT_EQ(Layers(), 0u);
  const std::vector<uint32_t> seen = RunAndCheck(Sequence(1, 6), 8);
  EXPECT_EQ(loaded->copied, 6u);
  EXPECT_EQ(Layers(), kLayers);
  EXPECT_TRUE(std::ranges::is_sorted(seen));
  // The first goes alone, for an engine waits for it.
  ASSERT_GE(seen.size(), 3u);
  EXPECT_EQ(seen[1], 1u);
}

TEST_F(CacheRegionLayersTest, SmallLayersComeTogetherBehindTheFirst) {
  CacheSetup setup;
  setup.options.layer_piece_bytes = kBlockBytes / kLayers * 2;
  Start(setup);
  const PoolId region = OpenRegion();
  (void)StoreAll(region, Sequence(1, 6));
  const uint64_t copies = machine_->device->copies_completed();
  (void)BeginLoad(region, Sequence(1, 6), 8, Counted());
  EXPECT_THAT(RunAndCheck(Sequence(1, 6), 8), ElementsAre(0u, 1u, kLayers));
  EXPECT_EQ(machine_->device->copies_completed() - copies, 6u * 3);
}

TEST_F(CacheRegionLayersTest, TheDeviceCountsBeforeTheCacheHears) {
  Start();
  const PoolId region = OpenRegion();
  (void)StoreAll(region, Sequence(1, 2));
  const PendingTransfer loaded = BeginLoad(region, Sequence(1, 2), 8, Counted());
  ASSERT_TRUE(machine_->loop.RunOneOf(machine_->device->source()));
  EXPECT_EQ(Layers(), 1u);
  EXPECT_FALSE(loaded.ended());
  Settle();
}

TEST_F(CacheRegionLayersTest, BlocksFromDiskAreWaitedForBeforeALayerIsCounted) {
  Start();
  (void)StoreAll(OpenRegion(), Sequence(1, 4));
  DrainAndRestart();
  const PoolId region = OpenRegion();
  (void)StoreAll(region, Sequence(2, 3));
  Hashes mixed = Sequence(2, 3);
  for (const BlockHash& hash : Sequence(1, 4)) mixed.push_back(hash);
  const PendingTransfer loaded = BeginLoad(region, mixed, 8, Counted());
  machine_->loop.Shuffle(5);
  EXPECT_TRUE(std::ranges::is_sorted(RunAndCheck(mixed, 8)));
  EXPECT_EQ(loaded->copied, 7u);
  EXPECT_EQ(Layers(), kLayers);
}

TEST_F(CacheRegionLayersTest, AllBlocksMayComeFromDisk) {
  Start();
  (void)StoreAll(OpenRegion(), Sequence(1, 3));
  DrainAndRestart();
  const PendingTransfer loaded = BeginLoad(OpenRegion(), Sequence(1, 3), 0, Counted());
  EXPECT_THAT(RunAndCheck(Sequence(1, 3), 0), ElementsAre(0u, kLayers));
  EXPECT_EQ(loaded->copied, 3u);
}

TEST_F(CacheRegionLayersTest, ABlockThatWaitsForAnotherTransferIsWaitedFor) {
  Start();
  const PoolId region = OpenRegion();
  (void)StoreAll(region, Sequence(1, 3));
  machine_->loop.Hold(machine_->device->source());
  const PendingTransfer first = BeginLoad(region, {TestHash(1, 0)}, 4);
  const PendingTransfer second = BeginLoad(region, Sequence(1, 3), 8, Counted());
  machine_->loop.LetGo(machine_->device->source());
  machine_->loop.Shuffle(7);
  (void)RunAndCheck(Sequence(1, 3), 8);
  EXPECT_EQ(first->copied, 1u);
  EXPECT_EQ(second->copied, 3u);
  EXPECT_EQ(Layers(), kLayers);
}

TEST_F(CacheRegionLayersTest, ABlockThatFailsEndsTheCounting) {
  Start();
  const PoolId region = OpenRegion();
  (void)StoreAll(region, {TestHash(1, 0), TestHash(1, 2)});
  const PendingTransfer loaded = BeginLoad(region, Sequence(1, 3), 8, Counted());
  EXPECT_GT(Layers(), kLayers);
  Settle();
  EXPECT_GT(Layers(), kLayers);
  EXPECT_EQ(loaded->copied, 2u);
  EXPECT_THAT(loaded->failed, ElementsAre(Pair(1u, MissReason::kUnknown)));
}

TEST_F(CacheRegionLayersTest, ACopyThatFailsEndsTheCounting) {
  Start();
  const PoolId region = OpenRegion();
  (void)StoreAll(region, Sequence(1, 6));
  machine_->loop.Hold(machine_->device->source());
  const PendingTransfer loaded = BeginLoad(region, Sequence(1, 6), 8, Counted());
  machine_->device->FailNextCopies(1);
  machine_->loop.LetGo(machine_->device->source());
  (void)RunAndCheck(Sequence(1, 6), 8);
  EXPECT_GT(Layers(), kLayers);
  EXPECT_FALSE(loaded->failed.empty());
}

TEST_F(CacheRegionLayersTest, ACounterInUseIsNoOtherLoads) {
  Start();
  const PoolId region = OpenRegion();
  (void)StoreAll(region, Sequence(1, 4));
  const PendingTransfer first = BeginLoad(region, {TestHash(1, 0), TestHash(1, 1)}, 8, Counted());
  const PendingTransfer second = BeginLoad(region, {TestHash(1, 2), TestHash(1, 3)}, 10, Counted());
  EXPECT_EQ(cache_->stats().loads_without_counter, 1u);
  Settle();
  EXPECT_EQ(first->copied + second->copied, 4u);
  EXPECT_EQ(Layers(), kLayers) << "the first load's";
  // With the end it is free.
  (void)BeginLoad(region, Sequence(1, 2), 8, Counted());
  EXPECT_EQ(cache_->stats().loads_without_counter, 1u);
  Settle();
}

TEST_F(CacheRegionLayersTest, ASessionMayEndBetweenTheStepsOfALoadInLayers) {
  Start();
  const PoolId region = OpenRegion();
  (void)StoreAll(region, Sequence(1, 2));
  (void)Begin(region, {BlockIndex(8), BlockIndex(9)}, Counted());
  const std::vector<LoadRequest> named{{BlockIndex(8), TestHash(1, 0)}};
  cache_->Load(region, named);
  cache_->CloseSession(kAlice);
  Settle();
  EXPECT_THAT(machine_->device->lent(), IsEmpty());
  EXPECT_EQ(cache_->Gauges().region_blocks_in_flight, 0u);
  EXPECT_GT(Layers(), kLayers);
}

TEST_F(CacheRegionLayersTest, ClosingARegionEndsTheCounting) {
  Start();
  const PoolId region = OpenRegion();
  (void)StoreAll(region, Sequence(1, 2));
  const PendingTransfer begun = Begin(region, {BlockIndex(8), BlockIndex(9)}, Counted());
  bool closed = false;
  cache_->CloseRegion(region, [&] { closed = true; });
  Settle();
  EXPECT_TRUE(closed);
  EXPECT_TRUE(begun.ended());
  EXPECT_GT(Layers(), kLayers);
}

TEST_F(CacheRegionsTest, ACopyThatFailsLeavesNothingCached) {
  Start();
  const PoolId region = OpenRegion();
  machine_->device->FailNextCopies(1);
  const PendingTransfer stored = StoreAll(region, Sequence(1, 1));
  EXPECT_THAT(stored->failed, ElementsAre(Pair(0u, MissReason::kCopyFailed)));
  EXPECT_FALSE(Presence(TestHash(1, 0)).anywhere());
  EXPECT_EQ(StoreAll(region, Sequence(1, 1))->copied, 1u);
}

TEST_F(CacheRegionsTest, AStoreFailsInTimeIfHostHasNothingToGiveUpForIt) {
  CacheSetup setup;
  setup.host_slots = kSlotsPerSlab;
  setup.options.max_wait_ms = 100;
  setup.options.persist_after_ms = 0;
  Start(setup);
  const PoolId region = OpenRegion();
  // All of host is being written, and no write ends.
  file().HoldWrites();
  const PendingTransfer first = BeginStore(region, Sequence(1, kSlotsPerSlab));
  Settle();
  EXPECT_TRUE(first.ended());
  AdvanceAndTick(1);
  const PendingTransfer second = BeginStore(region, Sequence(2, 2), kSlotsPerSlab);
  AdvanceAndTick(100);
  Settle();
  EXPECT_FALSE(second.ended()) << "host has not been asked for a whole tick";
  AdvanceAndTick(100);
  ASSERT_TRUE(second.ended());
  EXPECT_THAT(second->failed,
              ElementsAre(Pair(0u, MissReason::kHostFull), Pair(1u, MissReason::kHostFull)));
  EXPECT_EQ(Drops(Tier::kHost, DropReason::kHostFull), 2u);
  file().LetWritesGo(kSlotsPerSlab);
  Settle();
}

TEST_F(CacheRegionsTest, ClosingARegionWaitsForItsCopies) {
  Start();
  const PoolId region = OpenRegion();
  const PendingTransfer stored = BeginStore(region, Sequence(1, 2));
  bool closed = false;
  cache_->CloseRegion(region, [&] { closed = true; });
  EXPECT_FALSE(closed);
  EXPECT_EQ(machine_->device->lent().size(), 1u);
  Settle();
  EXPECT_TRUE(closed);
  EXPECT_TRUE(stored.ended());
  EXPECT_THAT(machine_->device->lent(), IsEmpty());
}

TEST_F(CacheRegionsTest, ASessionThatEndsKeepsItsMemoryUntilTheCopiesHaveLanded) {
  Start();
  const PoolId region = OpenRegion();
  (void)StoreAll(region, Sequence(1, 2));
  (void)BeginStore(region, Sequence(2, 2), 4);
  const PendingTransfer loaded = BeginLoad(region, Sequence(1, 2), 8);
  cache_->CloseSession(kAlice);
  EXPECT_EQ(machine_->device->lent().size(), 1u);
  Settle();
  EXPECT_FALSE(loaded.ended());
  EXPECT_THAT(machine_->device->lent(), IsEmpty());
  EXPECT_EQ(cache_->Gauges().regions, 0u);
  EXPECT_EQ(cache_->Gauges().region_blocks_in_flight, 0u);
  // Its place is free.
  (void)OpenRegion(kBob);
}

TEST_F(CacheRegionsTest, ANumberOfARegionIsUsedOnce) {
  Start();
  const PoolId first = OpenRegion();
  cache_->CloseRegion(first, [] {});
  const PoolId second = OpenRegion();
  EXPECT_NE(second, first);
  EXPECT_EQ(cache_->Lookup(first, Sequence(1, 1)).size(), 1u) << "a closed one finds nothing";
  cache_->CloseSession(kAlice);
  Settle();
  EXPECT_NE(OpenRegion(kBob), second);
}

// The store waits for host and goes with its region; the load, into the block of the same number of
// the next region, then takes longer than a store may wait.
TEST_F(CacheRegionsTest, AStoreThatWentWithItsRegionIsNotTheLoadOfTheNextOne) {
  CacheSetup setup;
  setup.host_slots = kSlotsPerSlab;
  setup.options.max_wait_ms = 100;
  setup.options.persist_after_ms = 0;
  Start(setup);
  file().HoldWrites();
  (void)StoreAll(OpenRegion(kBob), Sequence(1, kSlotsPerSlab));
  const PoolId closed = OpenRegion();
  const PendingTransfer stored = BeginStore(closed, Sequence(2, 1));
  cache_->CloseRegion(closed, [] {});
  ASSERT_TRUE(stored.ended());
  machine_->loop.Hold(machine_->device->source());
  const PendingTransfer loaded = BeginLoad(OpenRegion(), Sequence(1, 1));
  for (int tick = 0; tick < 4; ++tick) AdvanceAndTick(100);
  EXPECT_FALSE(loaded.ended());
  machine_->loop.LetGo(machine_->device->source());
  Settle();
  ASSERT_TRUE(loaded.ended());
  EXPECT_EQ(loaded->copied, 1u);
  EXPECT_TRUE(MatchesHash(TestHash(1, 0), RegionBytes(0)));
  file().LetWritesGo(kSlotsPerSlab);
  Settle();
}

TEST_F(CacheRegionsTest, AllRegionsOfASessionAreClosedTogether) {
  Start();
  bool closed = false;
  cache_->CloseRegions(kBob, [&] { closed = true; });
  EXPECT_TRUE(std::exchange(closed, false)) << "there was none";
  (void)BeginStore(OpenRegion(), Sequence(1, 2));
  (void)OpenRegion();
  cache_->CloseRegions(kAlice, [&] { closed = true; });
  EXPECT_FALSE(closed);
  Settle();
  EXPECT_TRUE(closed);
  EXPECT_EQ(cache_->Gauges().regions, 0u);
}

// A client may have as many as it has mappings, and die with them.
TEST_F(CacheRegionsTest, ManyRegionsOfASessionAreClosedInParts) {
  constexpr uint32_t kRegions = 1000;
  Start();
  const auto regions = [this] { return cache_->Gauges().regions; };
  const auto open = [&] {
    for (uint32_t i = 0; i < kRegions; ++i) {
      RegionMemory memory{.lent = {.bytes = kBlockBytes},
                          .blocks = 1,
                          .block_tokens = kBlockTokens,
                          .pieces = {{0, kBlockBytes, kBlockBytes}}};
      const auto model = static_cast<uint8_t>(1 + i / 50);
      ASSERT_TRUE(cache_->OpenRegion(kBob, Identity("tenant", model), std::move(memory)));
    }
  };
  const auto expect_parts = [&] {
    EXPECT_GE(regions(), kRegions * 9 / 10);
    bool closed = false;
    const PoolId other = OpenRegion();
    (void)BeginStore(other, Sequence(1, 2));
    cache_->CloseRegion(other, [&closed] { closed = true; });
    while (!closed) ASSERT_TRUE(machine_->loop.RunOne());
    EXPECT_GE(regions(), kRegions / 2) << "another session's region does not wait for all of them";
    for (size_t before = regions(); machine_->loop.RunOne(); before = regions()) {
      EXPECT_LE(before - regions(), kRegions / 10);
    }
    EXPECT_EQ(regions(), 0u);
    EXPECT_THAT(machine_->device->lent(), IsEmpty());
  };
  open();
  bool closed = false;
  cache_->CloseRegions(kBob, [&] { closed = true; });
  expect_parts();
  EXPECT_TRUE(closed);
  open();
  cache_->CloseSession(kBob);
  expect_parts();
}

TEST_F(CacheRegionsTest, ARegionThatIsBeingClosedIsWaitedForWithTheOthers) {
  Start();
  const PoolId region = OpenRegion();
  (void)BeginStore(region, Sequence(1, 2));
  int closed = 0;
  cache_->CloseRegion(region, [&] { ++closed; });
  cache_->CloseRegions(kAlice, [&] { ++closed; });
  EXPECT_EQ(closed, 0) << "a copy is under way";
  Settle();
  EXPECT_EQ(closed, 2);
}

TEST_F(CacheRegionsTest, NothingIsReportedOfARegionThatWasBeingClosedWhenItsSessionEnded) {
  Start();
  const PoolId region = OpenRegion();
  const PendingTransfer stored = BeginStore(region, Sequence(1, 2));
  bool closed = false;
  cache_->CloseRegion(region, [&] { closed = true; });
  cache_->CloseSession(kAlice);
  Settle();
  EXPECT_FALSE(stored.ended() || closed);
  EXPECT_THAT(machine_->device->lent(), IsEmpty());
}

TEST_F(CacheRegionsTest, ASessionMayEndBetweenTheStepsOfATransfer) {
  Start();
  const PoolId region = OpenRegion();
  (void)Begin(region, {BlockIndex(0), BlockIndex(1)});
  cache_->CloseSession(kAlice);
  Settle();
  EXPECT_THAT(machine_->device->lent(), IsEmpty());
}

TEST_F(CacheRegionsTest, RegionsOfOneGroupAreLimited) {
  Start();
  for (uint32_t i = 0; i < kMaxPoolSlots - 1; ++i) (void)OpenRegion();
  RegionMemory memory{.lent = {.bytes = kBlockBytes}, .blocks = 1};
  EXPECT_THAT(cache_->OpenRegion(kAlice, Identity("tenant", 1), std::move(memory)),
              IsErrorOf(ErrorCode::kLimitExceeded, "too_many_regions"));
}

}  // namespace
}  // namespace kvtier
