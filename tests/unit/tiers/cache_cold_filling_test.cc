// SPDX-License-Identifier: Apache-2.0
// The filling of stores that refuse or have lost their objects, also by hosts without a disk.

#include <optional>

#include "tests/unit/tiers/cache_cold_fixture.h"
#include "tiers/cold/guarded_store.h"

namespace kvtier {
namespace {

using ::testing::SizeIs;

// A block that the store refuses is copied, or read from disk, each time.
TEST_F(CacheColdTest, AsksAStoreThatRefusesLessAndLess) {
  Start(ColdSetup());
  Put(hashes_);
  Use(hashes_);
  EvictFromPool();
  store_.refuses = true;
  store_.refusal = {ErrorCode::kIoError, "cold_store_refused", "OOM"};
  AdvanceAndTick(kAfterMs);
  for (int ticks = 0; ticks < 120; ++ticks) AdvanceAndTick(500);
  EXPECT_LE(stats().write_errors, 4u + 6u);
  store_.refuses = false;
  for (int ticks = 0; ticks < 120; ++ticks) AdvanceAndTick(500);
  EXPECT_THAT(store_.objects, SizeIs(4));
}

TEST_F(CacheColdTest, ATenantWhoseObjectsAreRefusedHoldsUpNoOther) {
  CacheSetup setup = ColdSetup();
  setup.pool_blocks = 32;
  setup.options.tenants = {{.name = "tenant", .tiers = {TierQuota{16 * kBlockBytes, 0}, {}, {}}}};
  setup.options.cold_write_bytes_per_s = ColdObjectBytes(kBlockBytes);
  Start(setup);
  store_.refusal = {ErrorCode::kIoError, "cold_store_refused", "policy"};
  store_.refused = ColdPrefix("refused");
  for (const char* tenant : {"refused", "tenant"}) {
    pool_ = cache_->AttachPool(Identity(tenant, 1), 0).value();
    Put(hashes_);
    Use(hashes_);
    EvictFromPool();
  }
  AdvanceAndTick(kAfterMs);
  for (int ticks = 0; ticks < 9; ++ticks) AdvanceAndTick(1000);
  EXPECT_THAT(store_.objects, SizeIs(4));
  EXPECT_LE(stats().write_errors, 4u) << "at 0, 1, 3 and 7 s";
}

// A put before the deletion would find the bad object, and the deletion would remove it then.
TEST_F(CacheColdTest, ADamagedObjectIsDeletedBeforeItsBlockIsWrittenAgain) {
  WriteByThisHost();
  const auto whole = store_.objects.at(Name(hashes_[1])).bytes;
  store_.objects.at(Name(hashes_[1])).bytes.back() ^= std::byte{1};
  store_.holds_deletions = true;
  cache_->VerifyStep(
      0, 100, [](const VerifyResult&) {}, Cache::Verified::kCold);
  Settle();
  AdvanceAndTick(1000);
  AdvanceAndTick(1000);
  store_.holds_deletions = false;
  store_.Answer();
  Settle();
  AdvanceAndTick(1000);
  ASSERT_TRUE(store_.objects.contains(Name(hashes_[1])));
  EXPECT_EQ(store_.objects.at(Name(hashes_[1])).bytes, whole);
}

TEST_F(CacheColdTest, AnObjectThatALoadFoundDamagedIsDeletedBeforeItsBlockIsWrittenAgain) {
  WriteByAnotherHost(hashes_);
  store_.objects.at(Name(hashes_[3])).bytes.back() ^= std::byte{1};
  store_.holds_deletions = true;
  const AcquireReply reply = Acquire(kAlice, hashes_);
  ASSERT_EQ(LastProgress(reply.load).miss, MissReason::kChecksumMismatch);
  Release(kAlice, HandlesOf(reply));
  Put(hashes_);
  Use(hashes_);
  EvictFromPool();
  AdvanceAndTick(kAfterMs);
  store_.holds_deletions = false;
  store_.Answer();
  Settle();
  AdvanceAndTick(1000);
  EXPECT_TRUE(store_.objects.contains(Name(hashes_[3])));
  StartAnotherHost();
  EXPECT_EQ(LastProgress(Acquire(kAlice, hashes_).load).ready, 4u);
}

TEST_F(CacheColdTest, AVerificationHasWhatTheStoreForgotWrittenAgain) {
  WriteByThisHost();
  store_.objects.clear();
  cache_->VerifyStep(
      0, 100, [](const VerifyResult&) {}, Cache::Verified::kCold);
  Settle();
  AdvanceAndTick(1000);
  EXPECT_THAT(store_.objects, SizeIs(4));
}

TEST_F(CacheColdTest, FillsAStoreThatComesBackEmpty) {
  WriteByThisHost();
  store_.available = false;
  AdvanceAndTick(1000);
  store_.objects.clear();
  store_.available = true;
  AdvanceAndTick(1000);
  AdvanceAndTick(1000);
  EXPECT_THAT(store_.objects, SizeIs(4));
}

// A server that is restarted breaks its connections, and the next calls find it there.
TEST_F(CacheColdTest, FillsAStoreThatWasAwayForOneCallAndCameBackEmpty) {
  std::optional<GuardedStore> guarded;
  change_environment_ = [&](CacheEnvironment* environment, IndexSnapshot*) {
    store_.loop = &machine_->loop;
    environment->cold = &guarded.emplace(&store_, &machine_->clock, &machine_->loop);
  };
  WriteByThisHost();
  for (int restarts = 0; restarts < 2; ++restarts) {
    store_.objects.clear();
    store_.refuses = true;
    (void)Acquire(kAlice, Sequence(2, 4));
    store_.refuses = false;
    AdvanceAndTick(10'000);
    AdvanceAndTick(1000);
    AdvanceAndTick(1000);
    EXPECT_THAT(store_.objects, SizeIs(4));
  }
  const uint64_t questions = store_.questions;
  AdvanceAndTick(10'000);
  EXPECT_EQ(store_.questions, questions) << "it has answered all since";
  cache_.reset();
}

// New objects tell nothing of the others.
TEST_F(CacheColdTest, FillsAStoreThatWasEmptiedThoughItHasWhatWasWrittenSince) {
  std::optional<GuardedStore> guarded;
  change_environment_ = [&](CacheEnvironment* environment, IndexSnapshot*) {
    store_.loop = &machine_->loop;
    environment->cold = &guarded.emplace(&store_, &machine_->clock, &machine_->loop);
  };
  const auto empty = [&] {
    store_.objects.clear();
    store_.refuses = true;
    (void)Acquire(kAlice, Sequence(3, 4));
    store_.refuses = false;
  };
  WriteByThisHost();
  Put(Sequence(2, 4));
  Use(Sequence(2, 4));
  EvictFromPool();
  empty();
  for (int ticks = 0; ticks < 4; ++ticks) AdvanceAndTick(1000);
  ASSERT_THAT(store_.objects, SizeIs(4));
  empty();
  AdvanceAndTick(4000);
  AdvanceAndTick(2500);
  ASSERT_THAT(store_.objects, SizeIs(4)) << "the other sequence has become idle";
  for (int ticks = 0; ticks < 3; ++ticks) AdvanceAndTick(1000);
  EXPECT_THAT(store_.objects, SizeIs(8));
  cache_.reset();
}

// A sample of few, though there are more, would call a store emptied that evicts.
TEST_F(CacheColdTest, NewCopiesTakeNoPlaceInTheSampleOfOlderOnes) {
  for (const size_t kept : {0, 1}) {
    std::optional<GuardedStore> guarded;
    change_environment_ = [&](CacheEnvironment* environment, IndexSnapshot*) {
      store_.loop = &machine_->loop;
      environment->cold = &guarded.emplace(&store_, &machine_->clock, &machine_->loop);
    };
    const size_t news = kept == 0 ? 256 : 253;
    CacheSetup setup = ColdSetup();
    setup.host_slots = setup.disk_slots = setup.pool_blocks = 320;
    store_.objects.clear();
    StartAnotherHost(setup);
    store_.available = false;
    Put(Sequence(2, news));
    store_.available = true;
    Put(hashes_);
    Use(hashes_);
    EvictFromPool();
    AdvanceAndTick(kAfterMs);
    ASSERT_THAT(store_.objects, SizeIs(4));
    Use(Sequence(2, news));
    EvictFromPool();
    const auto lose = [&] {
      store_.refuses = true;
      (void)Acquire(kAlice, Sequence(3, 4));
      store_.refuses = false;
    };
    lose();
    for (int ticks = 0; ticks < 4; ++ticks) AdvanceAndTick(1000);
    ASSERT_THAT(store_.objects, SizeIs(4));
    if (kept == 0) {
      store_.objects.clear();
    } else {
      store_.objects.erase(Name(hashes_[2]));
    }
    lose();
    AdvanceAndTick(4000);
    AdvanceAndTick(2500);
    for (int ticks = 0; ticks < 6; ++ticks) AdvanceAndTick(1000);
    if (kept == 0) {
      EXPECT_THAT(store_.objects, SizeIs(news + 4));
    } else {
      EXPECT_EQ(stats().write_blocks, news + 4) << "none is written again";
    }
    cache_.reset();
  }
}

// Else hosts whose blocks are more than the store holds would write for ever.
TEST_F(CacheColdTest, AStoreThatComesBackHavingEvictedSomeIsNotFilledAnew) {
  WriteByThisHost();
  store_.available = false;
  AdvanceAndTick(1000);
  store_.objects.erase(Name(hashes_[1]));
  store_.available = true;
  AdvanceAndTick(1000);
  AdvanceAndTick(1000);
  EXPECT_THAT(store_.objects, SizeIs(3));
}

// Each namespace is asked about.
TEST_F(CacheColdTest, AStoreThatHasAnotherTenantsObjectsIsNotEmpty) {
  CacheSetup setup = ColdSetup();
  setup.pool_blocks = 32;
  setup.options.tenants = {{.name = "tenant", .tiers = {TierQuota{16 * kBlockBytes, 0}, {}, {}}}};
  Start(setup);
  for (const char* tenant : {"other", "tenant"}) {
    pool_ = cache_->AttachPool(Identity(tenant, 1), 0).value();
    Put(hashes_);
    Use(hashes_);
    EvictFromPool();
  }
  AdvanceAndTick(kAfterMs);
  ASSERT_THAT(store_.objects, SizeIs(8));
  store_.available = false;
  AdvanceAndTick(1000);
  for (const BlockHash& hash : hashes_) store_.objects.erase(ColdName(Identity("other", 1), hash));
  store_.available = true;
  for (int ticks = 0; ticks < 4; ++ticks) AdvanceAndTick(1000);
  EXPECT_EQ(stats().write_blocks, 8u);
}

TEST_F(CacheColdTest, AStoreThatHasOneOfAFewCopiesIsNotEmpty) {
  CacheSetup setup = ColdSetup();
  setup.host_slots = 320;
  setup.disk_slots = 320;
  setup.pool_blocks = 320;
  for (size_t kept = 0; kept < 4; ++kept) {
    store_.objects.clear();
    StartAnotherHost(setup);
    store_.available = false;
    Put(Sequence(2, 250));
    store_.available = true;
    Put(hashes_);
    Use(hashes_);
    EvictFromPool();
    AdvanceAndTick(kAfterMs);
    ASSERT_THAT(store_.objects, SizeIs(4));
    store_.available = false;
    AdvanceAndTick(1000);
    for (size_t i = 0; i < 4; ++i) {
      if (i != kept) store_.objects.erase(Name(hashes_[i]));
    }
    store_.available = true;
    for (int ticks = 0; ticks < 4; ++ticks) AdvanceAndTick(1000);
    EXPECT_EQ(stats().write_blocks, 4u) << kept;
  }
}

TEST_F(CacheColdTest, WithoutADiskWritesIdleBlocksOfPools) {
  CacheSetup setup = ColdSetup();
  setup.disk_slots = 0;
  Start(setup);
  Put(hashes_);
  Use(hashes_);
  AdvanceAndTick(kAfterMs / 2);
  EXPECT_FALSE(Presence(hashes_[0]).host);
  AdvanceAndTick(kAfterMs / 2);
  AdvanceAndTick(1000);
  EXPECT_THAT(store_.objects, SizeIs(4));
  EXPECT_EQ(stats().write_blocks, 4u);
}

// Host has better uses for its slots than blocks that wait there for their turn.
TEST_F(CacheColdTest, WithoutADiskBringsToHostWhatItMayWrite) {
  CacheSetup setup = ColdSetup();
  setup.disk_slots = 0;
  setup.options.cold_write_bytes_per_s = ColdObjectBytes(kBlockBytes);
  Start(setup);
  Put(hashes_);
  Use(hashes_);
  AdvanceAndTick(kAfterMs);
  for (size_t written = 1; written <= 4; ++written) {
    EXPECT_EQ(cache_->Gauges().host_blocks, written);
    AdvanceAndTick(1000);
    EXPECT_THAT(store_.objects, SizeIs(written));
  }
}

// A copy for the store's sake is worth less there than blocks that nothing else has.
TEST_F(CacheColdTest, WithoutADiskWhatWasWrittenMakesRoomInHostForTheNext) {
  CacheSetup setup = ColdSetup();
  setup.disk_slots = 0;
  setup.host_slots = 8;
  setup.pool_blocks = 64;
  setup.options.cold_write_bytes_per_s = ColdObjectBytes(kBlockBytes);
  Start(setup);
  const Hashes own = Sequence(2, 8);
  Put(own);
  EvictFromPool();
  for (const BlockHash& hash : own) ASSERT_TRUE(Presence(hash).host);
  const Hashes idle = Sequence(1, 8);
  Put(idle);
  Use(idle);
  AdvanceAndTick(kAfterMs);
  for (int ticks = 0; ticks < 20; ++ticks) AdvanceAndTick(1000);
  EXPECT_THAT(store_.objects, SizeIs(8));
  EXPECT_GE(std::ranges::count_if(own, [&](const auto& hash) { return Presence(hash).host; }), 4);
}

}  // namespace
}  // namespace kvtier
