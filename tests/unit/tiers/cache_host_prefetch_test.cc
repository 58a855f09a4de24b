// SPDX-License-Identifier: Apache-2.0
// Blocks on disk come to host memory before an engine loads them into its region.

#include <gmock/gmock.h>

#include <optional>
#include <vector>

#include "tests/fakes/seeded_random.h"
#include "tests/unit/tiers/region_fixture.h"
#include "tiers/transfer/host_prefetch.h"

namespace kvtier {
namespace {

using ::testing::Optional;

// The answer to a prefetch. Copies share it.
struct PendingPrefetch {
  std::shared_ptr<std::optional<uint32_t>> answer = std::make_shared<std::optional<uint32_t>>();

  [[nodiscard]] std::optional<uint32_t> in_memory() const { return *answer; }
};

class CacheHostPrefetchTest : public CacheRegionsTest {
 protected:
  // After a restart sequences 1 to 3, of eight blocks each, are on disk alone.
  void StartWithBlocksOnDisk(CacheSetup setup = {.pool_blocks = 32, .host_slots = 32}) {
    Start(setup);
    for (uint64_t stream = 1; stream <= 3; ++stream) Put(Sequence(stream, 8));
    DrainAndRestart();
    region_ = OpenRegion();
  }
  PendingPrefetch Prefetch(const Hashes& hashes, SessionId session = kAlice) {
    return PrefetchFor(region_, hashes, session);
  }
  // Another tenant's pool serves as well as a region: only its namespace is asked for.
  PendingPrefetch PrefetchFor(PoolId region, const Hashes& hashes, SessionId session) {
    PendingPrefetch pending;
    cache_->PrefetchToHost(session, region, hashes,
                           [answer = pending.answer](uint32_t count) { *answer = count; });
    return pending;
  }
  [[nodiscard]] uint32_t InHost(const Hashes& hashes) const {
    uint32_t count = 0;
    for (const BlockHash& hash : hashes) count += Presence(hash).host;
    return count;
  }
  void PassTime(int64_t ms) {
    AdvanceAndTick(ms);
    Settle();
  }

  PoolId region_;
};

TEST_F(CacheHostPrefetchTest, BlocksOnDiskComeToHostAndAreLoadedFromThere) {
  StartWithBlocksOnDisk();
  const PendingPrefetch prefetch = Prefetch(Sequence(1, 8));
  EXPECT_EQ(prefetch.in_memory(), std::nullopt) << "answered before they are there";
  Settle();
  EXPECT_THAT(prefetch.in_memory(), Optional(8u));
  EXPECT_EQ(InHost(Sequence(1, 8)), 8u);
  EXPECT_EQ(cache_->stats().host_prefetched_blocks, 8u);
  const uint64_t reads = cache_->stats().disk_read_blocks;
  const PendingTransfer load = BeginLoad(region_, Sequence(1, 8));
  Settle();
  EXPECT_EQ(load->copied, 8u);
  EXPECT_EQ(cache_->stats().disk_read_blocks, reads);
  for (uint32_t i = 0; i < 8; ++i) EXPECT_TRUE(MatchesHash(TestHash(1, i), RegionBytes(i)));
}

TEST_F(CacheHostPrefetchTest, WhatOnlyAPoolHoldsIsInMemoryAlsoWithoutADisk) {
  Start({.disk_slots = 0});
  (void)Store(kBob, Sequence(1, 2));
  region_ = OpenRegion();
  EXPECT_THAT(Prefetch(Sequence(1, 3)).in_memory(), Optional(2u));
}

TEST_F(CacheHostPrefetchTest, WhatIsInMemoryIsAnsweredAtOnceAndReadsNothing) {
  StartWithBlocksOnDisk();
  (void)Prefetch(Sequence(1, 8));
  Settle();
  const uint64_t reads = cache_->stats().disk_read_blocks;
  EXPECT_THAT(Prefetch(Sequence(1, 8)).in_memory(), Optional(8u));
  EXPECT_EQ(cache_->stats().disk_read_blocks, reads);
}

TEST_F(CacheHostPrefetchTest, WhatIsInMemoryAlreadyIsKeptThere) {
  Start({.host_slots = 16});
  region_ = OpenRegion();
  (void)StoreAll(region_, Sequence(1, 4));
  (void)StoreAll(region_, Sequence(2, 4));
  EXPECT_THAT(Prefetch(Sequence(1, 4)).in_memory(), Optional(4u));
  Settle();
  (void)StoreAll(region_, Sequence(3, 12));
  EXPECT_EQ(InHost(Sequence(1, 4)), 4u);
  EXPECT_EQ(InHost(Sequence(2, 4)), 0u);
}

TEST_F(CacheHostPrefetchTest, OnlyTheCachedPrefixComes) {
  StartWithBlocksOnDisk();
  Hashes hashes = Sequence(1, 4);
  hashes.push_back(TestHash(7, 4));
  hashes.push_back(TestHash(1, 5));
  const PendingPrefetch prefetch = Prefetch(hashes);
  Settle();
  EXPECT_THAT(prefetch.in_memory(), Optional(4u));
  EXPECT_EQ(InHost(Sequence(1, 8)), 4u);
}

TEST_F(CacheHostPrefetchTest, ALoadThatComesMeanwhileWaitsForTheSameReads) {
  StartWithBlocksOnDisk();
  const uint64_t reads = cache_->stats().disk_read_blocks;
  const PendingPrefetch prefetch = Prefetch(Sequence(1, 8));
  const PendingTransfer load = BeginLoad(region_, Sequence(1, 8));
  Settle();
  EXPECT_THAT(prefetch.in_memory(), Optional(8u));
  EXPECT_EQ(load->copied, 8u);
  EXPECT_EQ(cache_->stats().disk_read_blocks, reads + 8);
}

TEST_F(CacheHostPrefetchTest, WhatWasNotLoadedTakesHalfOfHostAtMost) {
  StartWithBlocksOnDisk({.pool_blocks = 32, .host_slots = 16});
  (void)Prefetch(Sequence(1, 8));
  const PendingPrefetch second = Prefetch(Sequence(2, 8));
  Settle();
  EXPECT_EQ(InHost(Sequence(1, 8)), 8u);
  EXPECT_EQ(InHost(Sequence(2, 8)), 0u);
  EXPECT_EQ(second.in_memory(), std::nullopt) << "it waits";
  (void)BeginLoad(region_, Sequence(1, 8));
  PassTime(100);
  EXPECT_THAT(second.in_memory(), Optional(8u)) << "the first have been used";
  EXPECT_EQ(cache_->stats().host_prefetched_unused_blocks, 0u);
}

TEST_F(CacheHostPrefetchTest, ATenantThatHasReachedItsShareHoldsUpNoOther) {
  CacheSetup setup{.pool_blocks = 32, .host_slots = 32, .disk_slots = 64};
  const TierQuota half_of_pool{16 * kBlockBytes, 0};
  setup.options.tenants = {
      {.name = "tenant", .tiers = {half_of_pool, TierQuota{.max_bytes = kSlabBytes}, {}}}};
  StartWithBlocksOnDisk(setup);
  const Result<PoolInfo> other = cache_->AttachPool(Identity("other", 1), 16 * kBlockBytes);
  ASSERT_TRUE(other);
  pool_ = *other;
  Put(Sequence(4, 8));
  DrainAndRestart();
  region_ = OpenRegion();
  pool_ = *cache_->AttachPool(Identity("other", 1), 16 * kBlockBytes);
  const PendingPrefetch capped = Prefetch(Sequence(1, 8));
  const PendingPrefetch others = PrefetchFor(pool_.id, Sequence(4, 8), kBob);
  Settle();
  EXPECT_EQ(capped.in_memory(), std::nullopt) << "half of its cap is four blocks";
  EXPECT_EQ(cache_->stats().host_prefetched_blocks, 4u + 8u);
  EXPECT_THAT(others.in_memory(), Optional(8u));
}

TEST_F(CacheHostPrefetchTest, ARequestThatCannotGoOnEndsAfterFiveSeconds) {
  StartWithBlocksOnDisk({.pool_blocks = 32, .host_slots = 16});
  (void)Prefetch(Sequence(1, 8));
  const PendingPrefetch second = Prefetch(Sequence(2, 8));
  Settle();
  PassTime(4'900);
  EXPECT_EQ(second.in_memory(), std::nullopt);
  PassTime(200);
  EXPECT_THAT(second.in_memory(), Optional(0u));
  EXPECT_EQ(cache_->stats().host_prefetches_cut, 1u);
}

TEST_F(CacheHostPrefetchTest, RequestsBeyondWhatATenantMayHaveWaitingAreAnsweredAtOnce) {
  StartWithBlocksOnDisk({.pool_blocks = 32, .host_slots = 16});
  (void)Prefetch(Sequence(1, 8));
  constexpr size_t kMost = HostPrefetch::kMostBlocks / (HostPrefetch::kRequestPrice + 8);
  std::vector<PendingPrefetch> waiting;
  for (size_t i = 0; i < kMost; ++i) waiting.push_back(Prefetch(Sequence(2, 8)));
  EXPECT_THAT(Prefetch(Sequence(3, 8)).in_memory(), Optional(0u));
  EXPECT_EQ(waiting[kMost - 2].in_memory(), std::nullopt);
}

TEST_F(CacheHostPrefetchTest, RequestsOfATenantWithoutQuotasRefuseNoOther) {
  CacheSetup setup{.pool_blocks = 32, .host_slots = 32, .disk_slots = 64};
  setup.options.max_disk_read_bytes = 4 * kBlockBytes;
  StartWithBlocksOnDisk(setup);
  (void)StoreAll(OpenRegion(kBob, {}, 0, "other"), Sequence(4, 8));
  DrainAndRestart();
  region_ = OpenRegion();
  const PoolId other = OpenRegion(kBob, {}, 0, "other");
  machine_->loop.Hold(file().source());
  constexpr size_t kMost = HostPrefetch::kMostBlocks / (HostPrefetch::kRequestPrice + 8);
  std::vector<PendingPrefetch> waiting;
  for (size_t i = 0; i < kMost; ++i) waiting.push_back(Prefetch(Sequence(1, 8)));
  EXPECT_EQ(waiting.back().in_memory(), std::nullopt);
  EXPECT_THAT(Prefetch(Sequence(2, 8)).in_memory(), Optional(0u)) << "it is a tenant's limit";
  const PendingPrefetch others = PrefetchFor(other, Sequence(4, 8), kBob);
  EXPECT_EQ(others.in_memory(), std::nullopt);
  machine_->loop.LetGo(file().source());
  Settle();
  EXPECT_THAT(others.in_memory(), Optional(8u));
  EXPECT_THAT(waiting.back().in_memory(), Optional(8u));
}

TEST_F(CacheHostPrefetchTest, WhatIsNeverLoadedCountsForAMinute) {
  StartWithBlocksOnDisk({.pool_blocks = 32, .host_slots = 16});
  (void)Prefetch(Sequence(1, 8));
  Settle();
  PassTime(60'000);
  EXPECT_EQ(cache_->stats().host_prefetched_unused_blocks, 8u);
  const PendingPrefetch second = Prefetch(Sequence(2, 8));
  Settle();
  EXPECT_THAT(second.in_memory(), Optional(8u));
}

TEST_F(CacheHostPrefetchTest, ItCountsAsNoUse) {
  StartWithBlocksOnDisk();
  const BlockKey key{pool_.namespace_id, TestHash(1, 0)};
  const auto before = cache_->Inspect(key);
  machine_->clock.Advance(10'000);
  (void)Prefetch(Sequence(1, 8));
  Settle();
  const auto after = cache_->Inspect(key);
  EXPECT_EQ(after->uses, before->uses);
  EXPECT_EQ(after->last_use_s, before->last_use_s);
}

TEST_F(CacheHostPrefetchTest, SpaceInHostGoesToStoresFirst) {
  CacheSetup setup{.pool_blocks = 32, .host_slots = kSlotsPerSlab};
  setup.options.max_wait_ms = 10'000;
  StartWithBlocksOnDisk(setup);
  file().HoldWrites();
  (void)BeginStore(region_, Sequence(4, kSlotsPerSlab));
  Settle();
  // All of host waits to be written.
  const PendingPrefetch prefetch = Prefetch(Sequence(1, 1));
  const PendingTransfer store = BeginStore(region_, Sequence(5, 1), kSlotsPerSlab);
  Settle();
  EXPECT_FALSE(store.ended());
  EXPECT_EQ(prefetch.in_memory(), std::nullopt);
  for (uint32_t i = 0; i < kSlotsPerSlab && !store.ended(); ++i) {
    EXPECT_EQ(prefetch.in_memory(), std::nullopt);
    file().LetWritesGo(1);
    Settle();
  }
  EXPECT_TRUE(store.ended());
  file().LetWritesGo(kSlotsPerSlab);
  Settle();
  EXPECT_THAT(prefetch.in_memory(), Optional(1u));
}

TEST_F(CacheHostPrefetchTest, ASessionThatClosesIsForgottenAndHearsNothing) {
  StartWithBlocksOnDisk({.pool_blocks = 32, .host_slots = 16});
  const PendingPrefetch first = Prefetch(Sequence(1, 8));
  const PendingPrefetch second = Prefetch(Sequence(2, 8));
  cache_->CloseSession(kAlice);
  Settle();
  PassTime(10'000);
  EXPECT_EQ(first.in_memory(), std::nullopt);
  EXPECT_EQ(second.in_memory(), std::nullopt);
  EXPECT_TRUE(cache_->Idle());
}

TEST_F(CacheHostPrefetchTest, ABlockThatCannotBeReadEndsThePrefix) {
  StartWithBlocksOnDisk();
  // The fourth block, and once more when it is tried again.
  file().ScriptReads({ReadFault::kNone, ReadFault::kNone, ReadFault::kNone, ReadFault::kEio,
                      ReadFault::kNone, ReadFault::kNone, ReadFault::kNone, ReadFault::kNone,
                      ReadFault::kEio});
  const PendingPrefetch prefetch = Prefetch(Sequence(1, 8));
  Settle();
  EXPECT_THAT(prefetch.in_memory(), Optional(3u));
  EXPECT_FALSE(Presence(Sequence(1, 8)[3]).disk);
}

// Stores, loads, prefetches, evictions and bad reads in any order.
class CacheHostPrefetchOrderTest : public CacheHostPrefetchTest,
                                   public testing::WithParamInterface<uint64_t> {
 protected:
  static constexpr uint64_t kStreams = 6;

  void TakeStep(SeededRandom* random) {
    const Hashes hashes = Sequence(1 + random->Below(kStreams), 1 + random->Below(6));
    switch (random->Below(8)) {
      case 0:
      case 1:
        prefetches_.push_back(Prefetch(hashes, random->Below(2) == 0 ? kAlice : kBob));
        break;
      case 2:
        Transfer(hashes, /*store=*/true);
        break;
      case 3:
      case 4:
        Transfer(hashes, /*store=*/false);
        break;
      case 5:
        (void)cache_->Evict({pool_.namespace_id, hashes.back()},
                            random->Below(2) == 0 ? Tier::kHost : Tier::kDisk);
        break;
      case 6:
        file().ScriptReads({ReadFault::kFlipped, ReadFault::kFlipped, ReadFault::kEio});
        break;
      default:
        PassTime(static_cast<int64_t>(random->Below(3'000)));
    }
  }
  // One at a time, beside whatever else is under way.
  void Transfer(const Hashes& hashes, bool store) {
    const PendingTransfer transfer =
        store ? BeginStore(region_, hashes) : BeginLoad(region_, hashes);
    for (int ticks = 0; ticks < 100 && !transfer.ended(); ++ticks) PassTime(100);
    ASSERT_TRUE(transfer.ended());
    if (store) return;
    for (uint32_t i = 0, failure = 0; i < hashes.size(); ++i) {
      const auto& failed = transfer->failed;
      if (failure < failed.size() && failed[failure].first == i) {
        ++failure;
      } else {
        EXPECT_TRUE(MatchesHash(hashes[i], RegionBytes(i)));
      }
    }
  }

  std::vector<PendingPrefetch> prefetches_;
};

TEST_P(CacheHostPrefetchOrderTest, EveryPrefetchIsAnsweredAndNoByteIsWrong) {
  StartWithBlocksOnDisk({.pool_blocks = 32, .host_slots = 16});
  SeededRandom random(GetParam());
  for (int step = 0; step < 200 && !HasFatalFailure(); ++step) {
    TakeStep(&random);
    if (random.Below(3) == 0) Settle();
  }
  for (int ticks = 0; ticks < 200; ++ticks) PassTime(100);
  for (const PendingPrefetch& prefetch : prefetches_) {
    EXPECT_NE(prefetch.in_memory(), std::nullopt);
  }
  EXPECT_TRUE(cache_->Idle());
}

INSTANTIATE_TEST_SUITE_P(Seeds, CacheHostPrefetchOrderTest, testing::Range<uint64_t>(0, 20));

}  // namespace
}  // namespace kvtier
