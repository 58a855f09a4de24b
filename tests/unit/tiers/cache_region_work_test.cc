// SPDX-License-Identifier: Apache-2.0
// Regions: the loop's work for transfers of very many blocks. How much that is all in all is told
// from the memory that it takes, since each step of a transfer takes some.
#include <algorithm>
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

}  // namespace
}  // namespace kvtier
