// SPDX-License-Identifier: Apache-2.0
// Regions: the loop's work for transfers of very many blocks. How much that is all in all is told
// from the memory that it takes, since each step of a transfer takes some.
#include <algorithm>
#include <cstring>
#include <ctime>
#include <utility>
#include <vector>

#include "tests/unit/tiers/memory_taken.h"
#include "tests/unit/tiers/region_fixture.h"

namespace kvtier {
namespace {

class CacheRegionWorkTest : public CacheRegionsTest {
 protected:
  static constexpr uint32_t kBlocks = 4096;
  // The memory for a load or store of one block that is alone, several times over.
  static constexpr size_t kMostBytesOfABlock = 8 * kKiB;

  PoolId OpenLargeRegion() {
    RegionMemory memory{.lent = {.bytes = kBlocks * kBlockBytes},
                        .blocks = kBlocks,
                        .block_tokens = kBlockTokens,
                        .pieces = {{0, kBlockBytes, kBlockBytes}}};
    const auto region = cache_->OpenRegion(kBob, Identity("tenant", 1), std::move(memory));
    EXPECT_TRUE(region) << region.error().ToString();
    memory_ = machine_->device->lent().back();
    return *region;
  }
  // Runs one event after another, and tells how many blocks the busiest looked at for one to evict.
  uint64_t MostLookedAtInOneEvent() {
    uint64_t most = 0;
    uint64_t before = cache_->stats().host_eviction_steps;
    while (machine_->loop.RunOne()) {
      const uint64_t after = cache_->stats().host_eviction_steps;
      most = std::max(most, after - std::exchange(before, after));
    }
    return most;
  }
  // Stores blocks that only memory may hold and pins them, so that none of them can leave host.
  void PinInHost(PoolId region, const Hashes& hashes, uint32_t first = 0) {
    std::vector<BlockIndex> blocks;
    std::vector<StoreRequest> requests;
    for (uint32_t i = first; i < hashes.size(); ++i) {
      blocks.emplace_back(i);
      requests.push_back({.block = blocks.back(),
                          .hash = hashes[i],
                          .parent = i > 0 ? std::optional(hashes[i - 1]) : std::nullopt,
                          .tokens = kBlockTokens,
                          .depth = i,
                          .retention = RetentionClass::kMemory});
    }
    (void)Begin(region, blocks);
    cache_->Store(region, requests);
    machine_->loop.RunAll();
    const auto pinned =
        cache_->Pin(kAlice, region, std::span(hashes).subspan(first), /*ttl_ms=*/3'600'000);
    ASSERT_TRUE(pinned) << pinned.error().ToString();
    ASSERT_EQ(*pinned, blocks.size());
  }
  // Runs one event after another, and tells of how many blocks the busiest ended transfers.
  uint64_t MostEndedInOneEvent() {
    uint64_t most = 0;
    uint64_t before = cache_->Gauges().region_blocks_in_flight;
    while (machine_->loop.RunOne()) {
      const uint64_t after = cache_->Gauges().region_blocks_in_flight;
      most = std::max(most, before - std::min(before, after));
      before = after;
    }
    return most;
  }
};

TEST_F(CacheRegionWorkTest, AMillionBlocksTakeNoWorkBeforeTransfersNameThem) {
  constexpr uint32_t kMillion = 1u << 20;
  Start();
  (void)StoreAll(OpenRegion(), Sequence(1, 1));
  // All in one place, so that the test needs little memory.
  RegionMemory memory{.lent = {.bytes = kBlockBytes},
                      .blocks = kMillion,
                      .block_tokens = kBlockTokens,
                      .pieces = {{0, 0, kBlockBytes}}};
  (void)TakeMemoryTaken();
  const auto region = cache_->OpenRegion(kBob, Identity("tenant", 1), std::move(memory));
  ASSERT_TRUE(region);
  EXPECT_LE(TakeMemoryTaken().bytes, kMillion / 16);
  const PendingTransfer loaded = BeginLoad(*region, {TestHash(1, 0)}, kMillion - 1);
  machine_->loop.RunAll();
  EXPECT_LE(TakeMemoryTaken().bytes, kMillion / 16);
  ASSERT_TRUE(loaded.ended());
  EXPECT_EQ(loaded->copied, 1u);
  cache_->CloseRegion(*region, [] {});
}

TEST_F(CacheRegionWorkTest, AMillionBlocksOfAPoolTakeNoWorkBeforeTheyAreUsed) {
  constexpr uint32_t kMillion = 1u << 20;
  CacheSetup setup;
  setup.devices = 2;
  setup.pool_blocks = 2 * kMillion / kBlockBytes;
  Start(setup);
  (void)TakeMemoryTaken();
  const auto pool = cache_->AttachPool(Identity("tenant", 2, 1), kMillion, DeviceIndex(1));
  ASSERT_TRUE(pool);
  ASSERT_EQ(pool->blocks, kMillion);
  EXPECT_LE(TakeMemoryTaken().bytes, kMillion + kMillion / 8);
}

// Each call of any client has all parts of the cache go on.
TEST_F(CacheRegionWorkTest, RegionsAndPoolsThatAreIdleCostOtherClientsNothing) {
  constexpr uint32_t kRegions = 2000;
  constexpr uint32_t kPools = 1000;
  CacheSetup setup;
  setup.pool_blocks = 16 + kPools;
  TenantQuota quota{.name = "tenant"};
  quota.tiers[static_cast<size_t>(Tier::kPool)].max_bytes = 16 * kBlockBytes;
  setup.options.tenants = {quota};
  Start(setup);
  const auto time_of_calls = [this] {
    std::clock_t least = 0;
    for (int round = 0; round < 20; ++round) {
      const std::clock_t begin = std::clock();
      for (int i = 0; i < 500; ++i) (void)cache_->Release(kBob, pool_.id, {});
      const std::clock_t taken = std::clock() - begin;
      least = round == 0 ? taken : std::min(least, taken);
    }
    return least;
  };
  const auto identity = [](uint32_t model) {
    NamespaceIdentity identity = Identity("other", 1);
    std::memcpy(identity.model.bytes.data() + 1, &model, sizeof(model));
    return identity;
  };
  const std::clock_t alone = time_of_calls();
  for (uint32_t i = 0; i < kRegions; ++i) {
    RegionMemory memory{.lent = {.bytes = kBlockBytes},
                        .blocks = 1,
                        .block_tokens = kBlockTokens,
                        .pieces = {{0, kBlockBytes, kBlockBytes}}};
    ASSERT_TRUE(cache_->OpenRegion(kBob, identity(i / 50), std::move(memory)));
  }
  // Each has one block, which is cached and could leave.
  for (uint32_t i = 0; i < kPools; ++i) {
    const auto pool = cache_->AttachPool(identity(i), kBlockBytes);
    ASSERT_TRUE(pool);
    cache_->UsePool(kAlice, pool->id, {});
    BlockHandle block;
    cache_->Acquire(
        {.session = kAlice, .pool = pool->id, .new_blocks = 1, .block_tokens = kBlockTokens},
        [&](const Result<AcquireReply>& reply) { block = reply.value().new_blocks.front(); });
    ASSERT_TRUE(cache_->Commit(kAlice, pool->id,
                               {.block = block, .hash = TestHash(1, i), .tokens = kBlockTokens}));
    EXPECT_TRUE(cache_->Release(kAlice, pool->id, {&block, 1}).empty());
  }
  Settle();
  EXPECT_LE(time_of_calls(), 8 * alone + 200);
}

// Numbers of regions and pools are never used twice, and a client may name any device for memory
// that lies on none.
TEST_F(CacheRegionWorkTest, RegionsThatAreGoneCostLaterLoadsNothing) {
  constexpr uint32_t kRegions = 100'000;
  CacheSetup setup;
  setup.devices = 2;
  Start(setup);
  Put(Sequence(1, 4));
  EvictFromPool();
  for (uint32_t i = 0; i < kRegions; ++i) cache_->CloseRegion(OpenRegion(kAlice, {}, i), [] {});
  UseDevice(1);
  (void)TakeMemoryTaken();
  const AcquireReply reply = Acquire(kAlice, Sequence(1, 4));
  EXPECT_EQ(reply.hits.size(), 4u);
  EXPECT_NE(reply.load.value, 0u);
  EXPECT_LE(TakeMemoryTaken().largest, 128 * kKiB);
}

TEST_F(CacheRegionWorkTest, ATenantHasNoMoreTurnsForDevicesThatItsHostMemoryNames) {
  CacheSetup setup;
  setup.options.max_offload_bytes = kBlockBytes;
  Start(setup);
  FakeLoop& loop = machine_->loop;
  const EventSource device = machine_->device->source();
  loop.Hold(device);
  std::vector<PendingTransfer> stores;
  for (uint32_t i = 0; i < 4; ++i) {
    stores.push_back(BeginStore(OpenRegion(kAlice, {}, i), Sequence(1 + i, 1)));
  }
  loop.RunAll();
  EXPECT_EQ(loop.pending(device), 1u);
  loop.LetGo(device);
  loop.RunAll();
  for (const PendingTransfer& store : stores) EXPECT_EQ(store->copied, 1u);
}

// Its memory may be slow, or its blocks of very many pieces.
TEST_F(CacheRegionWorkTest, CopiesOfATenantThatDoNotEndHoldUpNoOther) {
  CacheSetup setup;
  setup.options.max_load_bytes = setup.options.max_offload_bytes = kBlockBytes;
  Start(setup);
  const PoolId region = OpenRegion();
  (void)StoreAll(region, Sequence(1, 4));
  RegionMemory memory{.lent = {.bytes = kRegionBlocks * kBlockBytes},
                      .blocks = kRegionBlocks,
                      .block_tokens = kBlockTokens,
                      .pieces = {{0, kBlockBytes, kBlockBytes}}};
  const auto other = cache_->OpenRegion(kBob, Identity("other", 1), std::move(memory));
  ASSERT_TRUE(other);
  memory_ = machine_->device->lent().back();
  (void)StoreAll(*other, Sequence(2, 4));
  FakeLoop& loop = machine_->loop;
  const EventSource device = machine_->device->source();
  loop.Hold(device);
  const auto begins = [&](const auto& begin) {
    const size_t before = loop.pending(device);
    const PendingTransfer transfer = begin();
    loop.RunAll();
    EXPECT_GT(loop.pending(device), before);
    return transfer;
  };
  const std::vector<PendingTransfer> transfers = {
      begins([&] { return BeginLoad(region, Sequence(1, 4)); }),
      begins([&] { return BeginLoad(*other, Sequence(2, 4)); }),
      begins([&] { return BeginStore(region, Sequence(3, 4), 8); }),
      begins([&] { return BeginStore(*other, Sequence(4, 4), 8); })};
  loop.LetGo(device);
  loop.RunAll();
  for (const PendingTransfer& transfer : transfers) {
    ASSERT_TRUE(transfer.ended());
    EXPECT_EQ(transfer->copied, 4u);
  }
}

TEST_F(CacheRegionWorkTest, LoadsOfOneBlockToManyPlacesTakeWorkForEachOnce) {
  Start();
  (void)StoreAll(OpenRegion(), Sequence(1, 1));
  const PoolId region = OpenLargeRegion();
  (void)TakeMemoryTaken();
  const PendingTransfer loaded = BeginLoad(region, Hashes(kBlocks, TestHash(1, 0)));
  const size_t begin_bytes = TakeMemoryTaken().bytes;
  machine_->loop.RunAll();
  EXPECT_LE(begin_bytes + TakeMemoryTaken().bytes, kBlocks * kMostBytesOfABlock);
  ASSERT_TRUE(loaded.ended());
  EXPECT_EQ(loaded->copied, kBlocks);
  for (uint32_t block = 0; block < kBlocks; block += 100) {
    EXPECT_TRUE(MatchesHash(TestHash(1, 0), RegionBytes(block)));
  }
}

// Others of the block are being loaded meanwhile, each when the one before has ended.
TEST_F(CacheRegionWorkTest, LoadsOfOneBlockThatComeOneByOneTakeWorkForEachOnce) {
  Start();
  (void)StoreAll(OpenRegion(), Sequence(1, 1));
  const PoolId region = OpenLargeRegion();
  std::vector<BlockIndex> blocks;
  std::vector<LoadRequest> loads;
  for (uint32_t i = 0; i < kBlocks; ++i) {
    blocks.emplace_back(i);
    loads.push_back({blocks.back(), TestHash(1, 0)});
  }
  const PendingTransfer loaded = Begin(region, blocks);
  (void)TakeMemoryTaken();
  cache_->Load(region, std::span(loads).first(kBlocks / 2));
  for (uint32_t i = kBlocks / 2; i < kBlocks; ++i) {
    cache_->Load(region, std::span(loads).subspan(i, 1));
    for (int events = 0; events < 4; ++events) (void)machine_->loop.RunOne();
  }
  machine_->loop.RunAll();
  EXPECT_LE(TakeMemoryTaken().bytes, kBlocks * kMostBytesOfABlock);
  ASSERT_TRUE(loaded.ended());
  EXPECT_EQ(loaded->copied, kBlocks);
}

// All of them wait for the store of their block, which fails.
TEST_F(CacheRegionWorkTest, LoadsThatWaitedForABlockInVainFailInParts) {
  Start();
  const PoolId region = OpenLargeRegion();
  machine_->device->FailNextCopies(1);
  const PendingTransfer stored = BeginStore(region, Sequence(1, 1));
  const Hashes hashes(kBlocks - 1, TestHash(1, 0));
  const PendingTransfer loaded = BeginLoad(region, hashes, 1);
  EXPECT_LE(MostEndedInOneEvent(), kBlocks / 2);
  EXPECT_EQ(stored->failed.size(), 1u);
  ASSERT_TRUE(loaded.ended());
  EXPECT_EQ(loaded->failed.size(), hashes.size());
}

// All that the tenant may have of host is pinned by the time its last slot has been filled.
TEST_F(CacheRegionWorkTest, ReadsThatHostHasNoSlotsForFailInParts) {
  constexpr uint32_t kPinned = 504;
  constexpr uint32_t kLoads = 512;
  constexpr uint32_t kRegions = 8;
  CacheSetup setup;
  setup.host_slots = 2 * kPinned;
  setup.disk_slots = 8192;
  setup.options.persist_after_ms = 0;
  TenantQuota quota{.name = "tenant"};
  quota.tiers[static_cast<size_t>(Tier::kHost)].max_bytes = kPinned * 2 * kBlockBytes;
  setup.options.tenants = {quota};
  Start(setup);
  const PoolId first = OpenLargeRegion();
  EXPECT_EQ(StoreAll(first, Sequence(1, kLoads))->copied, kLoads);
  Drain();
  const Hashes pinned = Sequence(2, kPinned);
  PinInHost(first, Hashes(pinned.begin(), pinned.end() - 1));
  machine_->loop.Hold(machine_->device->source());
  PinInHost(first, pinned, kPinned - 1);
  std::vector<PendingTransfer> loads;
  for (uint32_t i = 0; i < kRegions; ++i) {
    RegionMemory memory{.lent = {.bytes = kLoads * kBlockBytes},
                        .blocks = kLoads,
                        .block_tokens = kBlockTokens,
                        .pieces = {{0, kBlockBytes, kBlockBytes}}};
    const auto region = cache_->OpenRegion(kBob, Identity("tenant", 1), std::move(memory));
    ASSERT_TRUE(region) << region.error().ToString();
    loads.push_back(BeginLoad(*region, Sequence(1, kLoads)));
  }
  machine_->loop.RunAll();
  EXPECT_FALSE(loads.front().ended());
  machine_->loop.LetGo(machine_->device->source());
  EXPECT_LE(MostLookedAtInOneEvent(), 4 * setup.options.search_part_blocks);
  for (const PendingTransfer& load : loads) {
    ASSERT_TRUE(load.ended());
    EXPECT_EQ(load->failed.size(), kLoads);
  }
}

// No client waits any more for blocks that are to be read from disk.
TEST_F(CacheRegionWorkTest, ReadsOfAClosedRegionEndInParts) {
  CacheSetup setup;
  setup.host_slots = 8 * kSlotsPerSlab;
  setup.disk_slots = kBlocks + 8 * kSlotsPerSlab;
  setup.options.persist_after_ms = 0;
  setup.options.close_part_blocks = 2 * kBlocks;
  Start(setup);
  const PoolId first = OpenLargeRegion();
  EXPECT_EQ(StoreAll(first, Sequence(1, kBlocks))->copied, kBlocks);
  Drain();
  machine_->loop.Hold(file().source());
  const PoolId second = OpenLargeRegion();
  const PendingTransfer loaded = BeginLoad(second, Sequence(1, kBlocks));
  machine_->loop.RunAll();
  cache_->CloseRegion(second, [] {});
  machine_->loop.LetGo(file().source());
  EXPECT_LE(MostEndedInOneEvent(), kBlocks / 2);
  EXPECT_EQ(cache_->Gauges().region_blocks_in_flight, 0u);
}

TEST_F(CacheRegionWorkTest, ARegionWithManyBlocksUnderWayIsClosedInParts) {
  CacheSetup setup;
  setup.host_slots = kSlotsPerSlab;
  setup.options.persist_after_ms = 0;
  Start(setup);
  file().HoldWrites();
  (void)StoreAll(OpenRegion(), Sequence(1, kSlotsPerSlab));
  const PoolId region = OpenLargeRegion();
  const PendingTransfer stored = BeginStore(region, Sequence(2, kBlocks));
  bool closed = false;
  cache_->CloseRegion(region, [&] { closed = true; });
  EXPECT_FALSE(closed);
  EXPECT_GE(cache_->Gauges().region_blocks_in_flight, kBlocks / 2) << "one event ends a part";
  Settle();
  EXPECT_TRUE(closed);
  ASSERT_TRUE(stored.ended());
  EXPECT_EQ(stored->failed.size(), kBlocks);
  EXPECT_EQ(cache_->Gauges().region_blocks_in_flight, 0u);
  file().LetWritesGo(kSlotsPerSlab);
  Settle();
}

// The disk has them, and all of host is full of blocks that have to be written first.
TEST_F(CacheRegionWorkTest, LoadsThatWaitedTooLongForHostFailInParts) {
  CacheSetup setup;
  setup.host_slots = kSlotsPerSlab;
  setup.disk_slots = kBlocks + 8 * kSlotsPerSlab;
  setup.options.persist_after_ms = 0;
  Start(setup);
  const PoolId region = OpenLargeRegion();
  EXPECT_EQ(StoreAll(region, Sequence(1, kBlocks))->copied, kBlocks);
  Drain();
  file().HoldWrites();
  (void)StoreAll(region, Sequence(2, kSlotsPerSlab));
  const PendingTransfer loaded = BeginLoad(region, Sequence(1, kBlocks));
  Settle();
  ASSERT_FALSE(loaded.ended());
  uint64_t most = 0;
  for (int tick = 0; tick < 20 && !loaded.ended(); ++tick) {
    const uint64_t before = cache_->Gauges().region_blocks_in_flight;
    AdvanceAndTick(5001);
    most = std::max(most, before - cache_->Gauges().region_blocks_in_flight);
  }
  ASSERT_TRUE(loaded.ended());
  EXPECT_LE(most, kBlocks / 2);
  file().LetWritesGo(kSlotsPerSlab);
  Settle();
}

class CacheSlabSearchTest : public CacheRegionWorkTest {
 protected:
  [[nodiscard]] static CacheSetup WithSlabs(uint32_t slabs, uint32_t part_blocks) {
    CacheSetup setup;
    setup.host_slots = slabs * kSlotsPerSlab;
    setup.disk_slots = 0;
    setup.options.search_part_blocks = part_blocks;
    return setup;
  }
  // A store for another tenant without quotas, in a line of its own, of blocks of twice the size.
  PendingTransfer StoreLarge(PoolId* region) {
    RegionMemory memory{.lent = {.bytes = 2 * kBlockBytes},
                        .blocks = 1,
                        .block_tokens = kBlockTokens,
                        .pieces = {{0, 2 * kBlockBytes, 2 * kBlockBytes}}};
    *region =
        cache_->OpenRegion(kBob, Identity("large", 2, 2 * kBlockBytes), std::move(memory)).value();
    return StoreSingly(*region, {TestHash(9, 0)});
  }
  // Blocks of which none follows another.
  PendingTransfer StoreSingly(PoolId region, const Hashes& hashes) {
    std::vector<BlockIndex> blocks;
    std::vector<StoreRequest> requests;
    for (const BlockHash& hash : hashes) {
      blocks.emplace_back(static_cast<uint32_t>(blocks.size()));
      requests.push_back({.block = blocks.back(), .hash = hash, .tokens = kBlockTokens});
    }
    const PendingTransfer pending = Begin(region, blocks);
    cache_->Store(region, requests);
    return pending;
  }
};

// The coldest blocks lie round about in slabs of another size that pins hold.
TEST_F(CacheSlabSearchTest, SlabsThatCannotBeEmptiedAreLookedThroughInPartsAndOnce) {
  constexpr uint32_t kSlabs = 128;
  constexpr uint32_t kPinned = kSlabs / 2;
  constexpr uint32_t kPart = 64;
  Start(WithSlabs(kSlabs, kPart));
  const PoolId region = OpenLargeRegion();
  const Hashes hashes = Sequence(1, kSlabs * kSlotsPerSlab);
  const PendingTransfer stored = StoreSingly(region, hashes);
  machine_->loop.RunAll();
  ASSERT_EQ(stored->copied, hashes.size());
  Hashes pinned;
  Hashes round;
  for (uint32_t i = 0; i < kPinned * kSlotsPerSlab; ++i) {
    round.push_back(hashes[i % kPinned * kSlotsPerSlab + i / kPinned]);
    if (i < kPinned) pinned.push_back(round.back());
  }
  ASSERT_EQ(*cache_->Pin(kAlice, region, pinned, /*ttl_ms=*/3'600'000), kPinned);
  (void)BeginLoad(region, round);
  machine_->loop.RunAll();
  (void)BeginLoad(region, Hashes(hashes.begin() + kPinned * kSlotsPerSlab, hashes.end()));
  machine_->loop.RunAll();
  const uint64_t before = cache_->stats().host_eviction_steps;
  PoolId other;
  const PendingTransfer large = StoreLarge(&other);
  EXPECT_LE(MostLookedAtInOneEvent(), kPart + kSlotsPerSlab);
  ASSERT_TRUE(large.ended());
  EXPECT_EQ(large->copied, 1u);
  // Each block is looked at by itself and with its slab, and then the first slab that may go.
  const uint64_t steps = cache_->stats().host_eviction_steps - before;
  EXPECT_GE(steps, 2 * kPinned * kSlotsPerSlab);
  EXPECT_LE(steps, 2 * kPinned * kSlotsPerSlab + kPart);
}

// Pins hold as many slabs as they may, and the others are another tenant's.
class CachePinnedSlabsTest : public CacheSlabSearchTest {
 protected:
  static constexpr uint32_t kOthers = 2;
  static constexpr uint32_t kPinned = 18;

  // Returns a region for blocks of the pinned size. The second coldest of these may be a block that
  // is not pinned.
  PoolId StartPinned(bool one_may_leave) {
    // The part divides the blocks to look at, with the one that is stored.
    CacheSetup setup = WithSlabs(kPinned + kOthers, /*part_blocks=*/29);
    setup.options.pin_fraction = 0.9;
    setup.options.tenants = {
        {.name = "other",
         .tiers = {TierQuota{}, TierQuota{.reserved_bytes = kOthers * kSlabBytes}, {}}}};
    Start(setup);
    (void)StoreAll(OpenRegion(kAlice, {}, 0, "other"), Sequence(4, kOthers * kSlotsPerSlab));
    const PoolId region = OpenLargeRegion();
    PinInHost(region, Sequence(1, 1));
    if (one_may_leave) (void)StoreSingly(region, {TestHash(2, 0)});
    machine_->loop.RunAll();
    PinInHost(region, Sequence(3, kPinned * kSlotsPerSlab - 1 - (one_may_leave ? 1 : 0)));
    return region;
  }
};

// A whole slab cannot leave, and one block of it can.
TEST_F(CachePinnedSlabsTest, ASearchForOneSizeIsNotEndedByThatForAnother) {
  const PoolId region = StartPinned(/*one_may_leave=*/true);
  PoolId other;
  EXPECT_FALSE(StoreLarge(&other).ended()) << "it has looked at a part";
  cache_->CloseRegion(other, [] {});
  const PendingTransfer small = StoreSingly(region, {TestHash(5, 0)});
  machine_->loop.RunAll();
  ASSERT_TRUE(small.ended());
  EXPECT_EQ(small->copied, 1u);
}

TEST_F(CachePinnedSlabsTest, ASizeThatCannotBeHadIsRefusedWhileAnotherIsSearchedFor) {
  const PoolId region = StartPinned(/*one_may_leave=*/false);
  const PendingTransfer first = StoreSingly(region, {TestHash(5, 0)});
  machine_->loop.RunAll();
  ASSERT_TRUE(first.ended());
  EXPECT_EQ(first->failed.size(), 1u);
  PoolId other;
  EXPECT_FALSE(StoreLarge(&other).ended()) << "it has looked at a part";
  EXPECT_TRUE(StoreSingly(region, {TestHash(6, 0)}).ended()) << "nothing has changed since";
}

}  // namespace
}  // namespace kvtier
