// SPDX-License-Identifier: Apache-2.0
// Tenants' caps and reserves in each tier.

#include "base/units.h"
#include "tests/fakes/seeded_random.h"
#include "tests/unit/tiers/cache_fixture.h"

namespace kvtier {
namespace {

// Two tenants with half of the pool each. Their slots have the same size.
class CacheQuotaTest : public CacheTest {
 protected:
  static constexpr uint64_t kSlotBytes = 2 * kBlockBytes;

  [[nodiscard]] static TenantQuota Quota(const std::string& name, TierQuota host = {},
                                         TierQuota disk = {}) {
    return {.name = name, .tiers = {TierQuota{16 * kBlockBytes, 0}, host, disk}};
  }
  [[nodiscard]] static CacheSetup Setup(std::vector<TenantQuota> tenants) {
    CacheSetup setup{.pool_blocks = 32, .host_slots = 32, .disk_slots = 64};
    setup.options.tenants = std::move(tenants);
    return setup;
  }
  // The fixture's verbs speak for this tenant from now on.
  void Be(const std::string& tenant, uint8_t model = 1, uint64_t block_bytes = kBlockBytes,
          uint64_t pool_bytes = 0) {
    const Result<PoolInfo> pool =
        cache_->AttachPool(Identity(tenant, model, block_bytes), pool_bytes);
    ASSERT_TRUE(pool) << pool.error().ToString();
    pool_ = *pool;
  }
  // Stores the blocks and lets them sink as far as there is room.
  void Sink(const Hashes& hashes) {
    for (size_t at = 0; at < hashes.size(); at += 8) {
      const Hashes some(hashes.begin() + static_cast<ptrdiff_t>(at),
                        hashes.begin() + static_cast<ptrdiff_t>(std::min(at + 8, hashes.size())));
      Put(some);
      EvictFromPool();
    }
  }
  void Reconfigure(const TenantQuota& quota) {
    CacheOptions options = setup_.options;
    options.tenants = {quota};
    ASSERT_TRUE(cache_->Reconfigure(options));
    Settle();
  }
  [[nodiscard]] uint32_t InHost(const Hashes& hashes) const { return Count(hashes, Tier::kHost); }
  [[nodiscard]] uint32_t OnDisk(const Hashes& hashes) const { return Count(hashes, Tier::kDisk); }
  [[nodiscard]] TenantGauges GaugesOf(const std::string& name) const {
    for (const TenantGauges& tenant : cache_->Gauges().tenants) {
      if (tenant.quota.name == name) return tenant;
    }
    ADD_FAILURE() << "no tenant " << name;
    return {};
  }
  [[nodiscard]] uint64_t Used(const std::string& name, Tier tier) const {
    return GaugesOf(name).used_bytes[static_cast<size_t>(tier)];
  }

 private:
  [[nodiscard]] uint32_t Count(const Hashes& hashes, Tier tier) const {
    uint32_t count = 0;
    for (const BlockHash& hash : hashes) count += Presence(hash).in(tier);
    return count;
  }
};

TEST_F(CacheQuotaTest, PoolTakesNoMoreThanTheTenantsCap) {
  Start(Setup({Quota("tenant")}));
  EXPECT_EQ(pool_.blocks, 16u);
  const auto second = cache_->AttachPool(Identity("tenant", 2), kBlockBytes);
  EXPECT_THAT(second, IsErrorOf(ErrorCode::kResourceExhausted, "pool_bytes_exhausted"));
  Be("other");
  EXPECT_EQ(pool_.blocks, 16u);
}

TEST_F(CacheQuotaTest, PoolLeavesWhatIsReservedForOthers) {
  TenantQuota other{.name = "other"};
  other.tiers[0].reserved_bytes = 20 * kBlockBytes;
  Start(Setup({other}));
  EXPECT_EQ(pool_.blocks, 12u);
  Be("other");
  EXPECT_EQ(pool_.blocks, 20u);
}

TEST_F(CacheQuotaTest, TenantAtItsHostCapEvictsItsOwnColdest) {
  Start(Setup({Quota("tenant", {.max_bytes = kSlabBytes})}));
  Be("other");
  Sink(Sequence(1, 8));
  Be("tenant");
  Sink(Sequence(2, 8));
  Sink(Sequence(3, 8));
  EXPECT_EQ(InHost(Sequence(2, 8)), 0u);
  EXPECT_EQ(InHost(Sequence(3, 8)), 8u);
  EXPECT_EQ(Used("tenant", Tier::kHost), 8 * kSlotBytes);
  Be("other");
  EXPECT_EQ(InHost(Sequence(1, 8)), 8u) << "the coldest of all, but not the tenant's";
}

TEST_F(CacheQuotaTest, TenantAtItsDiskCapEvictsItsOwnColdest) {
  Start(Setup({Quota("tenant", {}, {.max_bytes = kSlabBytes})}));
  Be("other");
  Put(Sequence(1, 8));
  Drain();
  Be("tenant");
  for (uint64_t stream = 2; stream < 5; ++stream) {
    Put(Sequence(stream, 4));
    Drain();
    EXPECT_LE(Used("tenant", Tier::kDisk), kSlabBytes);
  }
  EXPECT_EQ(OnDisk(Sequence(2, 4)), 0u);
  EXPECT_EQ(OnDisk(Sequence(3, 4)), 4u);
  EXPECT_EQ(OnDisk(Sequence(4, 4)), 4u);
  Be("other");
  EXPECT_EQ(OnDisk(Sequence(1, 8)), 8u);
}

TEST_F(CacheQuotaTest, LoadLargerThanTheTenantsHostCapPassesThrough) {
  Start(Setup({Quota("tenant", {.max_bytes = kSlabBytes})}));
  Put(Sequence(1, 12));
  DrainAndRestart();
  const AcquireReply reply = Acquire(kAlice, Sequence(1, 12));
  EXPECT_EQ(LastProgress(reply.load).ready, 12u);
  EXPECT_LE(Used("tenant", Tier::kHost), kSlabBytes);
}

TEST_F(CacheQuotaTest, TenantWhoseBlocksAreAllPinnedIsRefusedAtItsCapAndCounted) {
  Start(Setup({Quota("tenant", {}, {.max_bytes = 2 * kSlabBytes})}));
  Put(Sequence(1, 8));
  Drain();
  ASSERT_EQ(cache_->Pin(kAlice, pool_.id, Sequence(1, 8), kMinuteMs), 8u);
  Reconfigure(Quota("tenant", {}, {.max_bytes = kSlabBytes}));
  Put(Sequence(2, 2));
  Drain();
  EXPECT_EQ(OnDisk(Sequence(1, 8)), 8u);
  EXPECT_EQ(OnDisk(Sequence(2, 2)), 0u);
  EXPECT_EQ(Drops(Tier::kDisk, DropReason::kTenantCap), 2u);
}

TEST_F(CacheQuotaTest, ATenantPinsNoMoreThanItsShareOfItsOwnCap) {
  CacheSetup setup = Setup({Quota("tenant", {}, {.max_bytes = kSlabBytes})});
  setup.options.pin_fraction = 0.5;
  Start(setup);
  Put(Sequence(1, 8));
  Drain();
  ASSERT_EQ(cache_->Pin(kAlice, pool_.id, Sequence(1, 4), kMinuteMs), 4u);
  const Result<uint32_t> more = cache_->Pin(kAlice, pool_.id, Sequence(1, 5), kMinuteMs);
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().reason, "pin_limit");
  ASSERT_EQ(cache_->Pin(kAlice, pool_.id, Sequence(1, 2), 0), 2u);
  EXPECT_TRUE(cache_->Pin(kAlice, pool_.id, Sequence(1, 1), kMinuteMs));
  Be("other");
  Put(Sequence(2, 8));
  Drain();
  EXPECT_EQ(cache_->Pin(kAlice, pool_.id, Sequence(2, 8), kMinuteMs), 8u) << "it has no cap";
}

TEST_F(CacheQuotaTest, HostKeepsWhatIsReservedHoweverMuchOthersStore) {
  Start(Setup({Quota("tenant", {.reserved_bytes = 2 * kSlabBytes})}));
  Sink(Sequence(1, 16));
  Be("other");
  for (uint64_t stream = 2; stream < 12; ++stream) Sink(Sequence(stream, 8));
  Be("tenant");
  EXPECT_EQ(InHost(Sequence(1, 16)), 16u);
}

TEST_F(CacheQuotaTest, DiskKeepsWhatIsReservedHoweverMuchOthersStore) {
  Start(Setup({Quota("tenant", {}, {.reserved_bytes = 3 * kSlabBytes})}));
  for (uint64_t stream = 1; stream < 4; ++stream) {
    Put(Sequence(stream, 8));
    Drain();
  }
  Be("other");
  for (uint64_t stream = 10; stream < 30; ++stream) {
    Put(Sequence(stream, 8));
    Drain();
  }
  EXPECT_EQ(OnDisk(Sequence(29, 8)), 8u);
  Be("tenant");
  for (uint64_t stream = 1; stream < 4; ++stream) EXPECT_EQ(OnDisk(Sequence(stream, 8)), 8u);
}

TEST_F(CacheQuotaTest, WhatATenantHasBeyondItsReserveGoesToOthersByWholeSlabs) {
  Start(Setup({Quota("tenant", {.reserved_bytes = kSlabBytes})}));
  Sink(Sequence(1, 32));
  ASSERT_EQ(InHost(Sequence(1, 32)), 32u);
  Be("other");
  for (uint64_t stream = 2; stream < 8; ++stream) Sink(Sequence(stream, 8));
  EXPECT_EQ(InHost(Sequence(7, 8)), 8u);
  Be("tenant");
  EXPECT_EQ(InHost(Sequence(1, 32)), 8u);
  EXPECT_EQ(GaugesOf("tenant").own_slab_bytes[1], kSlabBytes);
}

TEST_F(CacheQuotaTest, TenantTakesItsReserveBackFromWhoHoldsEverything) {
  Start(Setup({Quota("tenant", {.reserved_bytes = 2 * kSlabBytes}, {})}));
  Be("other");
  for (uint64_t stream = 2; stream < 8; ++stream) Sink(Sequence(stream, 8));
  ASSERT_EQ(cache_->Gauges().host_blocks, 32u);
  // Its blocks are the coldest at all times, and yet it grows.
  Be("tenant");
  Sink(Sequence(1, 8));
  Be("other");
  for (uint64_t stream = 2; stream < 6; ++stream) Use(Sequence(stream, 8));
  Be("tenant");
  Sink(Sequence(9, 8));
  EXPECT_EQ(InHost(Sequence(1, 8)), 8u);
  EXPECT_EQ(InHost(Sequence(9, 8)), 8u);
}

TEST_F(CacheQuotaTest, ReserveIsHadByAnotherModelOfTheTenantToo) {
  Start(Setup({Quota("tenant"), Quota("other", {.reserved_bytes = 2 * kSlabBytes})}));
  for (uint64_t stream = 1; stream < 6; ++stream) Sink(Sequence(stream, 8));
  Be("other", 7, 2 * kBlockBytes);
  Sink(Sequence(9, 5));
  EXPECT_EQ(InHost(Sequence(9, 5)), 5u);
  EXPECT_EQ(GaugesOf("other").own_slab_bytes[1], kSlabBytes);
}

// Models whose slots fit into each other's slabs badly, taking turns in no order.
TEST_F(CacheQuotaTest, ReserveIsKeptAndHadUnderLoadOfModelsOfEverySize) {
  CacheSetup setup = Setup(
      {Quota("tenant", {.reserved_bytes = 2 * kSlabBytes}, {.reserved_bytes = 3 * kSlabBytes})});
  setup.pool_blocks = 64;
  setup.options.disk_free_fraction = 0.05;
  Start(setup);
  SeededRandom random(7);
  const auto flood = [&](int rounds) {
    for (int round = 0; round < rounds; ++round) {
      const auto size = static_cast<uint8_t>(random.Between(1, 3));
      Be("other", size, size * kBlockBytes, 4 * size * kBlockBytes);
      Put(Sequence(random.Next(), 4));
      EvictFromPool();
      if (random.Chance(0.5)) Drain();
    }
  };
  flood(60);
  Be("tenant");
  Sink(Sequence(1, 16));
  Drain();
  for (int i = 0; i < 5; ++i) {
    flood(20);
    Be("tenant");
    EXPECT_EQ(InHost(Sequence(1, 16)), 16u);
    EXPECT_EQ(OnDisk(Sequence(1, 16)), 16u);
  }
}

TEST_F(CacheQuotaTest, TenantsWithoutReserveShareOneOrderOfEviction) {
  Start(Setup({Quota("tenant", {.max_bytes = 4 * kSlabBytes})}));
  Sink(Sequence(1, 8));
  Be("other");
  Sink(Sequence(2, 8));
  Be("tenant");
  Sink(Sequence(3, 8));
  Be("other");
  Sink(Sequence(4, 8));
  Sink(Sequence(5, 8));
  EXPECT_EQ(InHost(Sequence(2, 8)), 8u);
  Be("tenant");
  EXPECT_EQ(InHost(Sequence(1, 8)), 0u) << "the coldest of all";
  EXPECT_EQ(InHost(Sequence(3, 8)), 8u);
}

TEST_F(CacheQuotaTest, LoweredHostCapIsReachedAtOnceAndTheHottestStay) {
  Start(Setup({Quota("tenant", {.max_bytes = 4 * kSlabBytes})}));
  for (uint64_t stream = 1; stream < 5; ++stream) Sink(Sequence(stream, 8));
  ASSERT_EQ(Used("tenant", Tier::kHost), 32 * kSlotBytes);
  Reconfigure(Quota("tenant", {.max_bytes = kSlabBytes}));
  EXPECT_EQ(Used("tenant", Tier::kHost), 8 * kSlotBytes);
  EXPECT_EQ(InHost(Sequence(4, 8)), 8u);
}

TEST_F(CacheQuotaTest, BlocksBeyondALoweredHostCapLeaveInPartsWhileOthersComeToo) {
  CacheSetup setup = Setup({Quota("tenant", {.max_bytes = 4 * kSlabBytes})});
  setup.options.search_part_blocks = 4;
  Start(setup);
  for (uint64_t stream = 1; stream < 5; ++stream) Sink(Sequence(stream, 8));
  Drain();
  Put(Sequence(5, 16));
  ASSERT_EQ(Used("tenant", Tier::kHost), 32 * kSlotBytes);
  uint64_t before = 32;
  // One part ahead of need, and one for those that come.
  const auto expect_parts = [&] {
    const uint64_t now = Used("tenant", Tier::kHost) / kSlotBytes;
    EXPECT_GE(now + 2 * setup_.options.search_part_blocks, before);
    before = now;
  };
  CacheOptions options = setup_.options;
  options.tenants = {Quota("tenant", {.max_bytes = kSlabBytes})};
  ASSERT_TRUE(cache_->Reconfigure(options));
  expect_parts();
  const PendingAcquire acquire = BeginAcquire(kBob, {}, pool_.blocks);
  expect_parts();
  while (machine_->loop.RunOne()) expect_parts();
  EXPECT_TRUE(acquire.succeeded());
  EXPECT_LE(Used("tenant", Tier::kHost), 8 * kSlotBytes);
}

// Their bytes do not come to host, but they stand in the order of the disk.
TEST_F(CacheQuotaTest, BlocksWhoseWritesDoNotComeAreSearchedThroughInParts) {
  constexpr uint32_t kPart = 4;
  CacheSetup setup = Setup({Quota("tenant", {}, {.max_bytes = kSlabBytes})});
  setup.pool_blocks = 64;
  setup.options.tenants.front().tiers.front() = {};
  setup.options.search_part_blocks = kPart;
  Start(setup);
  machine_->device->FailCopiesAtRate(1);
  Put(Sequence(1, 6 * kPart));
  Drain();
  machine_->device->FailCopiesAtRate(0);
  const auto store = [&](uint64_t stream) {
    Put(Sequence(stream, 8));
    bool done = false;
    cache_->Drain([&] { done = true; });
    const auto steps = [this] { return cache_->stats().disk_eviction_steps; };
    for (uint64_t before = steps(); machine_->loop.RunOne(); before = steps()) {
      EXPECT_LE(steps() - before, 3 * kPart);
    }
    EXPECT_TRUE(done);
  };
  store(2);
  EXPECT_EQ(OnDisk(Sequence(2, 8)), 8u);
  store(3);
  EXPECT_EQ(OnDisk(Sequence(3, 8)), 8u) << "a search that goes on costs no block its write";
}

TEST_F(CacheQuotaTest, LoweredDiskCapIsReachedAtOnceAndTheHottestStay) {
  Start(Setup({Quota("tenant", {}, {.max_bytes = 4 * kSlabBytes})}));
  for (uint64_t stream = 1; stream < 4; ++stream) {
    Put(Sequence(stream, 8));
    Drain();
  }
  ASSERT_EQ(Used("tenant", Tier::kDisk), 24 * kSlotBytes);
  Reconfigure(Quota("tenant", {}, {.max_bytes = kSlabBytes}));
  EXPECT_EQ(Used("tenant", Tier::kDisk), 8 * kSlotBytes);
  EXPECT_EQ(OnDisk(Sequence(3, 8)), 8u);
}

TEST_F(CacheQuotaTest, RaisedCapIsFilled) {
  Start(Setup({Quota("tenant", {.max_bytes = kSlabBytes})}));
  Sink(Sequence(1, 16));
  ASSERT_EQ(InHost(Sequence(1, 16)), 8u);
  Reconfigure(Quota("tenant", {.max_bytes = 3 * kSlabBytes}));
  Sink(Sequence(2, 8));
  EXPECT_EQ(Used("tenant", Tier::kHost), 16 * kSlotBytes);
}

TEST_F(CacheQuotaTest, RestartWithALowerCapKeepsTheHottest) {
  Start(Setup({Quota("tenant", {}, {.max_bytes = 4 * kSlabBytes})}));
  for (uint64_t stream = 1; stream < 5; ++stream) {
    Put(Sequence(stream, 8));
    AdvanceAndTick(kMinuteMs);
  }
  Drain();
  setup_.options.tenants = {Quota("tenant", {}, {.max_bytes = kSlabBytes})};
  CrashAndRestart();
  Settle();
  EXPECT_LE(Used("tenant", Tier::kDisk), kSlabBytes);
  EXPECT_EQ(OnDisk(Sequence(4, 8)), 8u);
  EXPECT_EQ(OnDisk(Sequence(1, 8)), 0u);
}

TEST_F(CacheQuotaTest, FirstReserveLosesNothingThatWasOnDisk) {
  Start(Setup({Quota("tenant")}));
  // Both tenants' blocks lie in the same slabs.
  for (uint64_t stream = 1; stream < 5; ++stream) {
    Be("tenant");
    Put(Sequence(stream, 4));
    Be("other");
    Put(Sequence(stream, 4));
    Drain();
  }
  setup_.options.tenants = {Quota("tenant", {}, {.reserved_bytes = 2 * kSlabBytes})};
  CrashAndRestart();
  for (const char* tenant : {"tenant", "other"}) {
    Be(tenant);
    for (uint64_t stream = 1; stream < 5; ++stream) EXPECT_EQ(OnDisk(Sequence(stream, 4)), 4u);
  }
  Settle();
}

TEST_F(CacheQuotaTest, TimesToLiveAreTheTenantsOwn) {
  TenantQuota brief = Quota("tenant");
  brief.memory_ttl_ms = 2 * kMinuteMs;
  brief.extended_ttl_ms = 5 * kMinuteMs;
  Start(Setup({brief}));
  Put(Sequence(1, 2), RetentionClass::kMemory);
  Put(Sequence(2, 2));
  Be("other");
  Put(Sequence(1, 2), RetentionClass::kMemory);
  Put(Sequence(2, 2));
  AdvanceAndTick(3 * kMinuteMs);
  EXPECT_TRUE(Presence(TestHash(1, 0)).anywhere());
  Be("tenant");
  EXPECT_FALSE(Presence(TestHash(1, 0)).anywhere());
  EXPECT_TRUE(Presence(TestHash(2, 0)).anywhere());
  AdvanceAndTick(3 * kMinuteMs);
  EXPECT_FALSE(Presence(TestHash(2, 0)).anywhere());
  EXPECT_EQ(Drops(Tier::kPool, DropReason::kExpired), 4u);
  Be("other");
  EXPECT_TRUE(Presence(TestHash(2, 0)).anywhere());
}

TEST_F(CacheQuotaTest, MaximumAgeIsTheTenantsOwn) {
  TenantQuota brief = Quota("tenant");
  brief.max_age_ms = 3 * kMinuteMs;
  Start(Setup({brief}));
  Put(Sequence(1, 1));
  AdvanceAndTick(2 * kMinuteMs);
  Use(Sequence(1, 1));
  AdvanceAndTick(2 * kMinuteMs);
  EXPECT_TRUE(Acquire(kAlice, Sequence(1, 1)).hits.empty());
}

TEST_F(CacheQuotaTest, TenantThatWaitsUnderItsCapHoldsUpNobody) {
  Start(Setup({Quota("tenant", {.max_bytes = kSlabBytes})}));
  Sink(Sequence(1, 8));
  // The tenant's next blocks wait for writes that do not end.
  machine_->loop.Hold(file().source());
  Put(Sequence(2, 8));
  const PendingAcquire waiting = BeginAcquire(kBob, {}, pool_.blocks);
  Settle();
  ASSERT_FALSE(waiting.answered());
  Be("other");
  Sink(Sequence(3, 8));
  EXPECT_EQ(InHost(Sequence(3, 8)), 8u);
  machine_->loop.LetGo(file().source());
  Settle();
  EXPECT_TRUE(waiting.succeeded());
}

TEST_F(CacheQuotaTest, RoomForAnotherModelOnDiskCostsOneSlabAndNotAll) {
  CacheSetup setup = Setup({});
  setup.options.disk_free_fraction = 0.05;
  Start(setup);
  cache_.reset();
  machine_->Crash();
  cache_ = std::make_unique<Cache>(setup_.options, machine_->Environment(), IndexSnapshot{});
  cache_->OpenSession(kAlice, [this](const LoadProgress& p) { progress_.push_back(p); });
  const auto first = cache_->AttachPool(Identity("tenant", 1), 16 * kBlockBytes);
  ASSERT_TRUE(first);
  pool_ = *first;
  for (uint64_t stream = 1; stream < 9; ++stream) {
    Put(Sequence(stream, 8));
    Drain();
  }
  const uint64_t before = cache_->Gauges().disk_blocks;
  Be("tenant", 2, 2 * kBlockBytes);
  Put(Sequence(20, 1));
  Drain();
  EXPECT_TRUE(Presence(TestHash(20, 0)).disk);
  EXPECT_GE(cache_->Gauges().disk_blocks + 2 * kSlotsPerSlab, before);
}

TEST_F(CacheQuotaTest, UsageAddsUpToWhatTheTiersHeldAllTheTime) {
  Start(Setup({Quota("tenant")}));
  std::array<double, kTierCount> held{};
  const auto pass = [&](int64_t seconds) {
    const CacheGauges gauges = cache_->Gauges();
    const std::array<uint64_t, kTierCount> bytes{gauges.pool_used_bytes, gauges.host_used_bytes,
                                                 gauges.disk_used_bytes};
    for (size_t tier = 0; tier < kTierCount; ++tier) {
      held[tier] += static_cast<double>(bytes[tier]) * static_cast<double>(seconds);
    }
    AdvanceAndTick(seconds * 1000);
  };
  for (uint64_t round = 1; round <= 6; ++round) {
    Be(round % 2 == 0 ? "tenant" : "other without quotas");
    Sink(Sequence(round, 12));
    pass(static_cast<int64_t>(7 * round));
  }
  pass(2 * 24 * 3600);  // after which all blocks have expired
  pass(1);
  std::array<double, kTierCount> paid{};
  const std::vector<TenantUsage> usage = cache_->Gauges().usage;
  ASSERT_EQ(usage.size(), 2u);
  for (const TenantUsage& tenant : usage) {
    for (size_t tier = 0; tier < kTierCount; ++tier) {
      EXPECT_GT(tenant.byte_seconds[tier], 0) << tenant.tenant << " " << tier;
      paid[tier] += tenant.byte_seconds[tier];
    }
  }
  EXPECT_EQ(paid, held);
}

TEST_F(CacheQuotaTest, PinsAreCountedByTenantAndAnswer) {
  CacheSetup setup = Setup({Quota("tenant")});
  setup.disk_slots = 8;  // four may be pinned
  Start(setup);
  Put(Sequence(1, 4));
  ASSERT_TRUE(cache_->Pin(kAlice, pool_.id, Sequence(1, 6), 60'000));
  Be("without quotas");
  Put(Sequence(1, 3));
  EXPECT_FALSE(cache_->Pin(kAlice, pool_.id, Sequence(1, 3), 60'000));
  const auto usage = [this](size_t tenant) { return cache_->Gauges().usage.at(tenant); };
  using Pins = std::array<uint64_t, kPinOutcomeCount>;
  EXPECT_EQ(usage(0).pins, (Pins{4, 0, 0}));
  EXPECT_EQ(usage(0).pinned_bytes, 4 * kSlotBytes);
  EXPECT_EQ(usage(1).pins, (Pins{0, 3, 0}));
  EXPECT_EQ(usage(1).pinned_bytes, 0u);
  AdvanceAndTick(61'000);
  EXPECT_EQ(usage(0).pinned_bytes, 0u);
}

}  // namespace
}  // namespace kvtier
