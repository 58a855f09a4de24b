// SPDX-License-Identifier: Apache-2.0
// Blocks of a region's sequences that stay in host memory when there is not enough of it.
#include <algorithm>

#include "tests/unit/tiers/region_fixture.h"

namespace kvtier {
namespace {

using CacheRegionSpaceTest = CacheRegionsTest;

TEST_F(CacheRegionSpaceTest, WhatOnlyTheDiskHasComesToHostWhenItIsStoredAgain) {
  Start();
  (void)StoreAll(OpenRegion(), Sequence(1, 3));
  DrainAndRestart();
  const PoolId region = OpenRegion();
  const uint64_t writes = cache_->stats().disk_write_bytes;
  EXPECT_EQ(StoreAll(region, Sequence(1, 3))->copied, 3u);
  for (const BlockPresence& block : cache_->Lookup(region, Sequence(1, 3))) {
    EXPECT_TRUE(block.host);
    EXPECT_TRUE(block.disk);
  }
  const PendingTransfer loaded = BeginLoad(region, Sequence(1, 3), 8);
  Settle();
  EXPECT_EQ(loaded->copied, 3u);
  EXPECT_TRUE(MatchesHash(TestHash(1, 2), RegionBytes(10)));
  Drain();
  EXPECT_EQ(cache_->stats().disk_write_bytes, writes) << "the disk had them";
}

TEST_F(CacheRegionSpaceTest, WhatTheDiskHasIsNoFailedStoreWhenItsCopyFails) {
  Start();
  (void)StoreAll(OpenRegion(), Sequence(1, 1));
  DrainAndRestart();
  const PoolId region = OpenRegion();
  machine_->device->FailNextCopies(1);
  EXPECT_EQ(StoreAll(region, Sequence(1, 1))->skipped, 1u);
  EXPECT_TRUE(Presence(TestHash(1, 0)).disk);
  EXPECT_EQ(StoreAll(region, Sequence(1, 1))->copied, 1u) << "the next one is tried";
}

TEST_F(CacheRegionSpaceTest, ALateStoreTakesTheSpaceOfTheColdestBlockInHost) {
  CacheSetup setup;
  setup.host_slots = kSlotsPerSlab;
  setup.options.max_wait_ms = 1000;
  setup.options.max_disk_write_bytes = 1;  // one write at a time
  Start(setup);
  const PoolId region = OpenRegion();
  file().HoldWrites();
  (void)StoreAll(region, Sequence(1, kSlotsPerSlab));
  const PendingTransfer late = BeginStore(region, Sequence(2, 2), kSlotsPerSlab);
  Settle();
  EXPECT_FALSE(late.ended());
  AdvanceAndTick(501);
  Settle();
  ASSERT_TRUE(late.ended());
  EXPECT_EQ(late->copied, 2u);
  // One of the last three is being written.
  for (const BlockHash& hash : Sequence(1, kSlotsPerSlab - 3)) EXPECT_TRUE(Presence(hash).host);
  EXPECT_EQ(Drops(Tier::kHost, DropReason::kPoolPressure), 2u);
  file().LetWritesGo(kSlotsPerSlab);
  Settle();
}

TEST_F(CacheRegionSpaceTest, AStoreThatBeginsRightAfterATickIsGivenTheColdestBlocksSpaceToo) {
  CacheSetup setup;
  setup.host_slots = kSlotsPerSlab;
  setup.options.max_wait_ms = 100;
  setup.options.max_disk_write_bytes = 1;
  Start(setup);
  const PoolId region = OpenRegion();
  file().HoldWrites();
  (void)StoreAll(region, Sequence(1, kSlotsPerSlab));
  const PendingTransfer stored = BeginStore(region, Sequence(2, 2), kSlotsPerSlab);
  AdvanceAndTick(40);
  EXPECT_FALSE(stored.ended());
  AdvanceAndTick(100);
  Settle();
  ASSERT_TRUE(stored.ended());
  EXPECT_EQ(stored->copied, 2u);
  file().LetWritesGo(kSlotsPerSlab);
  Settle();
}

// The blocks of a sequence that are left in host when others have taken some of its slots.
class CacheRegionOrderTest : public CacheRegionsTest {
 protected:
  static constexpr uint32_t kSlots = 2 * kSlotsPerSlab;

  void SetUp() override {
    CacheSetup setup;
    setup.disk_slots = 0;
    setup.host_slots = kSlots;
    setup.options.search_part_blocks = 2;  // prefixes are walked in parts of two
    Start(setup);
    region_ = OpenRegion();
  }
  [[nodiscard]] uint32_t PrefixInHost(uint64_t sequence, uint32_t blocks) {
    const Hashes hashes = Sequence(sequence, blocks);
    const auto presence = cache_->Lookup(region_, hashes);
    const auto end = std::ranges::find_if(presence, [](const auto& one) { return !one.host; });
    return static_cast<uint32_t>(end - presence.begin());
  }
  void Store(const Hashes& hashes, uint32_t known = 0) {
    (void)BeginStore(region_, hashes, 0, known);
    Settle();
  }

  PoolId region_;
};

TEST_F(CacheRegionOrderTest, ASequenceLosesItsEndFirst) {
  Store(Sequence(1, kSlots));
  Store(Sequence(2, 4));
  EXPECT_EQ(PrefixInHost(1, kSlots), kSlots - 4);
}

TEST_F(CacheRegionOrderTest, WhatIsStoredBehindAPrefixKeepsAllOfItYoung) {
  Store(Sequence(1, 4));
  Store(Sequence(2, 4));
  Store(Sequence(1, 8), 4);
  Store(Sequence(3, kSlots - 8));
  EXPECT_EQ(PrefixInHost(1, 8), 8u);
  EXPECT_EQ(PrefixInHost(2, 4), 0u);
}

TEST_F(CacheRegionOrderTest, WhatIsLoadedBehindAPrefixKeepsAllOfItYoung) {
  Store(Sequence(1, 4));
  Store(Sequence(2, 4));
  const Hashes all = Sequence(1, 4);
  (void)BeginLoad(region_, {all.begin() + 2, all.end()}, 8);
  Settle();
  Store(Sequence(3, kSlots - 4));
  EXPECT_EQ(PrefixInHost(1, 4), 4u);
}

TEST_F(CacheRegionOrderTest, WhatAnEngineIsAboutToLoadIsKept) {
  Store(Sequence(1, 4));
  Store(Sequence(2, 4));
  cache_->KeepForRegion(region_, Sequence(1, 4).back());
  Settle();
  Store(Sequence(3, kSlots - 4));
  EXPECT_EQ(PrefixInHost(1, 4), 4u);
  EXPECT_EQ(PrefixInHost(2, 4), 0u);
}

TEST_F(CacheRegionOrderTest, ABlockThatIsNotCachedKeepsNothing) {
  Store(Sequence(1, 4));
  cache_->KeepForRegion(region_, Sequence(2, 4).back());
  cache_->KeepForRegion(PoolId{1000}, Sequence(1, 4).back());
  Settle();
  Store(Sequence(3, kSlots));
  EXPECT_EQ(PrefixInHost(1, 4), 0u);
}

// Sixteen blocks are walked from one tick to the next, and there are eighteen.
TEST_F(CacheRegionOrderTest, LongWalksWaitForTheNextTick) {
  const auto store_in_turns = [this] {
    Store(Sequence(1, 4));
    for (const uint32_t known : {4, 6, 8}) Store(Sequence(1, known + 2), known);
  };
  store_in_turns();
  Store(Sequence(2, kSlots - 9));
  EXPECT_LT(PrefixInHost(1, 10), 2u) << "its start had not been touched";
  AdvanceAndTick(100);
  store_in_turns();
  AdvanceAndTick(100);
  Store(Sequence(3, kSlots - 9));
  EXPECT_EQ(PrefixInHost(1, 10), 9u);
}

}  // namespace
}  // namespace kvtier
