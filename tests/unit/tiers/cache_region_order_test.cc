// SPDX-License-Identifier: Apache-2.0
// Blocks of a region's sequences that stay in host memory when there is not enough of it.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

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

// Host is full of blocks that a region has just stored, and the disk writes none of them.
class CacheRegionBurstTest : public CacheRegionsTest {
 protected:
  void FillHost(int64_t max_wait_ms) {
    CacheSetup setup;
    setup.host_slots = kSlotsPerSlab;
    setup.options.max_wait_ms = max_wait_ms;
    setup.options.max_disk_write_bytes = 1;  // one write at a time
    Start(setup);
    region_ = OpenRegion();
    file().HoldWrites();
    EXPECT_EQ(StoreAll(region_, Sequence(1, kSlotsPerSlab))->copied, kSlotsPerSlab);
    WriteOne();  // the slab's header
  }
  void WriteOne() {
    file().LetWritesGo(1);
    Settle();
  }
  void TearDown() override {
    file().LetWritesGo(2 * kSlotsPerSlab);
    Settle();
    CacheRegionsTest::TearDown();
  }

  PoolId region_;
};

TEST_F(CacheRegionBurstTest, WhatFindsNoSpaceFailsAndWhatWasStoredStays) {
  FillHost(100);
  const PendingTransfer late = BeginStore(region_, Sequence(2, 2), kSlotsPerSlab);
  for (int ticks = 0; ticks < 3; ++ticks) {
    AdvanceAndTick(100);
  }
  ASSERT_TRUE(late.ended());
  EXPECT_THAT(late->failed, testing::ElementsAre(testing::Pair(0u, MissReason::kHostFull),
                                                 testing::Pair(1u, MissReason::kHostFull)));
  for (const BlockHash& hash : Sequence(1, kSlotsPerSlab)) EXPECT_TRUE(Presence(hash).host);
  EXPECT_EQ(Drops(Tier::kHost, DropReason::kPoolPressure), 0u);
}

TEST_F(CacheRegionBurstTest, AStoreTakesTheSpaceThatTheDiskMakesInTime) {
  FillHost(100);
  const PendingTransfer late = BeginStore(region_, Sequence(2, 2), kSlotsPerSlab);
  Settle();
  EXPECT_FALSE(late.ended());
  WriteOne();
  WriteOne();
  ASSERT_TRUE(late.ended());
  EXPECT_EQ(late->copied, 2u);
}

TEST_F(CacheRegionBurstTest, ADiskThatIsSlowHoldsAStoreForItsTimeAtMost) {
  FillHost(100);
  const PendingTransfer late = BeginStore(region_, Sequence(2, 4), kSlotsPerSlab);
  for (int ticks = 0; ticks < 2; ++ticks) {
    WriteOne();
    AdvanceAndTick(100);
  }
  ASSERT_TRUE(late.ended()) << "each write makes space for one of its blocks";
  EXPECT_EQ(late->copied, 2u);
  EXPECT_EQ(Drops(Tier::kHost, DropReason::kPoolPressure), 0u);
}

TEST_F(CacheRegionBurstTest, ALateStoreTakesTheSpaceOfTheColdestBlockThatHasBeenThereForLong) {
  FillHost(1000);
  AdvanceAndTick(10'000);
  const PendingTransfer late = BeginStore(region_, Sequence(2, 2), kSlotsPerSlab);
  Settle();
  EXPECT_FALSE(late.ended());
  AdvanceAndTick(501);
  Settle();
  ASSERT_TRUE(late.ended());
  EXPECT_EQ(late->copied, 2u);
  // One of the last three is being written.
  for (const BlockHash& hash : Sequence(1, kSlotsPerSlab - 3)) EXPECT_TRUE(Presence(hash).host);
  EXPECT_EQ(Drops(Tier::kHost, DropReason::kPoolPressure), 2u);
}

TEST_F(CacheRegionBurstTest, AStoreThatBeginsRightAfterATickIsGivenTheColdestBlocksSpaceToo) {
  FillHost(100);
  AdvanceAndTick(10'000);
  const PendingTransfer stored = BeginStore(region_, Sequence(2, 2), kSlotsPerSlab);
  AdvanceAndTick(40);
  EXPECT_FALSE(stored.ended());
  AdvanceAndTick(100);
  Settle();
  ASSERT_TRUE(stored.ended());
  EXPECT_EQ(stored->copied, 2u);
}

// A tenant is at its cap in host and waits there; another's device copies from one region at a
// time, and from two until the next tick.
class CacheRegionTenantsTest : public CacheRegionsTest {
 protected:
  static constexpr uint32_t kStores = 12;

  void Start() {
    CacheSetup setup;
    setup.devices = 2;
    setup.host_slots = 4 * kSlotsPerSlab;
    setup.options.max_wait_ms = 100;
    setup.options.max_offload_bytes = kBlockBytes;
    setup.options.persist_after_ms = 0;
    TenantQuota quota{.name = "tenant"};
    quota.tiers[static_cast<size_t>(Tier::kHost)].max_bytes = kSlabBytes;
    setup.options.tenants = {quota};
    CacheRegionsTest::Start(setup);
  }
  PoolId Open(SessionId session, const std::string& tenant, uint32_t device) {
    RegionMemory memory{
        .lent = {.kind = LentMemory::Kind::kVmm, .bytes = kRegionBlocks * kBlockBytes},
        .device = DeviceIndex(device),
        .blocks = kRegionBlocks,
        .block_tokens = kBlockTokens,
        .pieces = {{0, kBlockBytes, kBlockBytes}}};
    const auto region = cache_->OpenRegion(session, Identity(tenant, 1), std::move(memory));
    EXPECT_TRUE(region);
    memory_ = machine_->devices[device]->lent().back();
    return *region;
  }
  // The other's stores, all of which end well.
  void ExpectOthersStored() {
    const EventSource device = machine_->devices[0]->source();
    machine_->loop.Hold(device);
    std::vector<PendingTransfer> stores;
    for (uint32_t i = 0; i < kStores; ++i) {
      stores.push_back(BeginStore(Open(kBob, "other", 0), Sequence(10 + i, 1)));
    }
    for (uint32_t i = 0; i < kStores; ++i) {
      machine_->loop.RunAll();
      (void)machine_->loop.RunOneOf(device);
      if (i % 2 == 1) AdvanceAndTick(100);
    }
    machine_->loop.LetGo(device);
    Settle();
    for (const PendingTransfer& stored : stores) {
      ASSERT_TRUE(stored.ended());
      EXPECT_EQ(stored->copied, 1u);
    }
  }
  static void ExpectFailed(const PendingTransfer& stored) {
    ASSERT_TRUE(stored.ended());
    EXPECT_THAT(stored->failed, testing::ElementsAre(testing::Pair(0u, MissReason::kHostFull)));
  }
};

TEST_F(CacheRegionTenantsTest, ATenantWhoseSlotsAreInUseMakesNoOthersStoresFail) {
  Start();
  const PoolId region = Open(kAlice, "tenant", 1);
  EXPECT_EQ(StoreAll(region, Sequence(1, kSlotsPerSlab))->copied, kSlotsPerSlab);
  Drain();
  const EventSource device = machine_->devices[1]->source();
  machine_->loop.Hold(device);
  const PendingTransfer loads = BeginLoad(Open(kAlice, "tenant", 1), Sequence(1, kSlotsPerSlab));
  Settle();
  const PendingTransfer waiting = BeginStore(region, Sequence(2, 1), kSlotsPerSlab);
  ExpectOthersStored();
  ExpectFailed(waiting);
  EXPECT_FALSE(loads.ended());
  machine_->loop.LetGo(device);
  Settle();
}

TEST_F(CacheRegionTenantsTest, ATenantThatWaitsForTheDiskMakesNoOthersStoresFail) {
  Start();
  file().HoldWrites();
  const PoolId region = Open(kAlice, "tenant", 1);
  EXPECT_EQ(StoreAll(region, Sequence(1, kSlotsPerSlab))->copied, kSlotsPerSlab);
  const PendingTransfer waiting = BeginStore(region, Sequence(2, 1), kSlotsPerSlab);
  ExpectOthersStored();
  ExpectFailed(waiting);
  file().LetWritesGo(64);
  Settle();
}

// How long sessions take to come back has been seen before the burst.
class CacheRegionReturnTest : public CacheRegionBurstTest {
 protected:
  void FillHostAfterReturnsWithin(int64_t ms) {
    CacheSetup setup;
    setup.host_slots = kSlotsPerSlab;
    setup.options.max_wait_ms = 1000;
    setup.options.max_disk_write_bytes = 1;  // one write at a time
    Start(setup);
    region_ = OpenRegion();
    for (uint64_t session = 100; session < 140; ++session) {
      EXPECT_EQ(StoreAll(region_, Sequence(session, 1))->copied, 1u);
      AdvanceAndTick(ms);
      const PendingTransfer back = BeginLoad(region_, Sequence(session, 1));
      Settle();
      EXPECT_EQ(back->copied, 1u);
    }
    Drain();
    file().HoldWrites();
    EXPECT_EQ(StoreAll(region_, Sequence(1, kSlotsPerSlab))->copied, kSlotsPerSlab);
    WriteOne();  // the slab's header
  }
  // Stores two blocks when those in host have been there for so long; returns how many it can.
  uint32_t StoredAfter(int64_t ms) {
    AdvanceAndTick(ms);
    const PendingTransfer late = BeginStore(region_, Sequence(2, 2), kSlotsPerSlab);
    for (int ticks = 0; ticks < 3; ++ticks) AdvanceAndTick(501);
    EXPECT_TRUE(late.ended());
    return late->copied;
  }
};

TEST_F(CacheRegionReturnTest, BlocksOlderThanSessionsTakeToComeBackGiveWay) {
  FillHostAfterReturnsWithin(2000);
  EXPECT_NEAR(cache_->Gauges().host_return_ds, 25, 8);
  EXPECT_EQ(StoredAfter(4000), 2u);
}

TEST_F(CacheRegionReturnTest, BlocksWhoseSessionsAreStillToComeBackStay) {
  FillHostAfterReturnsWithin(30'000);
  EXPECT_EQ(StoredAfter(15'000), 0u);
  for (const BlockHash& hash : Sequence(1, kSlotsPerSlab)) EXPECT_TRUE(Presence(hash).host);
}

TEST_F(CacheRegionReturnTest, OnlyTheFirstUseOfABlockTellsWhenItsSessionCameBack) {
  FillHostAfterReturnsWithin(2000);
  const uint32_t before_ds = cache_->Gauges().host_return_ds;
  for (int uses = 0; uses < 20; ++uses) {
    AdvanceAndTick(20'000);
    (void)BeginLoad(region_, Sequence(1, 2));
    Settle();
  }
  EXPECT_NEAR(cache_->Gauges().host_return_ds, before_ds, before_ds / 4.0 + 1);
}

TEST_F(CacheRegionReturnTest, AnotherEnginesFirstUseIsNoReturn) {
  FillHostAfterReturnsWithin(20'000);
  const uint32_t before_ds = cache_->Gauges().host_return_ds;
  const PoolId decoder = OpenRegion(kBob);
  for (uint32_t i = 0; i < kSlotsPerSlab; ++i) {
    const PendingTransfer handover = BeginLoad(decoder, {TestHash(1, i)});
    Settle();
    EXPECT_EQ(handover->copied, 1u);
  }
  EXPECT_EQ(cache_->Gauges().host_return_ds, before_ds);
}

// The blocks of a sequence that are left in host when others have taken some of its slots.
class CacheRegionOrderTest : public CacheRegionsTest {
 protected:
  static constexpr uint32_t kSlots = 2 * kSlotsPerSlab;

  void SetUp() override { StartWith({}); }
  void StartWith(CacheSetup setup) {
    setup.disk_slots = 0;
    setup.host_slots = kSlots;
    setup.options.search_part_blocks = 2;  // prefixes are walked in parts of two
    Start(setup);
    region_ = OpenRegion();
  }
  [[nodiscard]] uint32_t PrefixInHost(uint64_t sequence, uint32_t blocks) {
    return PrefixInHost(region_, Sequence(sequence, blocks));
  }
  [[nodiscard]] uint32_t PrefixInHost(PoolId region, const Hashes& hashes) {
    const auto presence = cache_->Lookup(region, hashes);
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

TEST_F(CacheRegionOrderTest, APrefixThatIsNamedAgainAndAgainIsWalkedOnce) {
  Store(Sequence(1, 4));
  for (int i = 0; i < 2000; ++i) cache_->KeepForRegion(region_, Sequence(1, 4).back());
  EXPECT_EQ(cache_->Gauges().prefixes_to_touch, 1u);
  Settle();
  EXPECT_EQ(cache_->Gauges().prefixes_to_touch, 0u);
}

// One tenant's walks alone take longer than until the next tick.
TEST_F(CacheRegionOrderTest, ManyWalksOfOneTenantKeepNoOtherWaiting) {
  const PoolId other = OpenRegion(kBob, {}, 0, "other");
  const Hashes its = Sequence(2, 4);
  (void)StoreAll(other, its);
  const Hashes walked = Sequence(1, 8);
  Store(walked);
  Store(Sequence(3, 4));
  for (size_t i = walked.size(); i > 1; --i) cache_->KeepForRegion(region_, walked[i - 1]);
  cache_->KeepForRegion(other, its.back());
  Settle();
  EXPECT_GT(cache_->Gauges().prefixes_to_touch, 0u);
  Store(Sequence(4, 4));
  EXPECT_EQ(PrefixInHost(other, its), its.size());
}

// Each tick drops one block whose time has passed, so that most are there for longer.
class CacheRegionExpiryTest : public CacheRegionOrderTest {
 protected:
  void SetUp() override {
    CacheSetup setup;
    setup.options.close_part_blocks = 1;
    StartWith(setup);
  }
};

TEST_F(CacheRegionExpiryTest, AWalkThatComesLateGivesNoBlockAnotherLife) {
  Store(Sequence(2, 1));  // the one that the tick drops
  Store(Sequence(1, 4));
  for (const uint32_t known : {4, 6, 8}) Store(Sequence(1, known + 2), known);
  EXPECT_EQ(cache_->Gauges().prefixes_to_touch, 1u);
  AdvanceAndTick(setup_.options.extended_ttl_ms + 2000);
  EXPECT_EQ(cache_->Gauges().prefixes_to_touch, 0u);
  for (const BlockPresence& block : cache_->Lookup(region_, Sequence(1, 10))) {
    EXPECT_FALSE(block.anywhere());
  }
}

}  // namespace
}  // namespace kvtier
