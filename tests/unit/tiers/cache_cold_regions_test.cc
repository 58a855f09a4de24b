// SPDX-License-Identifier: Apache-2.0
// Regions and the cold store: an engine with memory of its own loads what another host computed.
#include <optional>
#include <vector>

#include "tests/fakes/fake_cold_store.h"
#include "tests/unit/tiers/region_fixture.h"
#include "tiers/cold/cold_object.h"

namespace kvtier {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

class CacheColdRegionsTest : public CacheRegionsTest {
 protected:
  CacheColdRegionsTest() {
    change_environment_ = [this](CacheEnvironment* environment, IndexSnapshot*) {
      store_.loop = &machine_->loop;
      environment->cold = &store_;
    };
  }
  // Another host has computed the sequence, used it and written it to the store; then this one,
  // which has none of it, opens a region.
  PoolId OpenRegionBesideAnotherHost() {
    StartHost();
    Put(hashes_);
    Use(hashes_);
    EvictFromPool();
    AdvanceAndTick(kAfterMs);
    EXPECT_THAT(store_.objects, SizeIs(hashes_.size()));
    StartHost();
    store_.questions = 0;
    return OpenRegion();
  }
  [[nodiscard]] std::vector<bool> Ask(PoolId region, const Hashes& hashes) {
    std::vector<bool> told;
    cache_->AskColdStore(region, hashes, ColdAsk::kPrefix,
                         [&](std::vector<bool> present) { told = present; });
    Settle();
    return told;
  }
  [[nodiscard]] static std::string Name(const BlockHash& hash) {
    return ColdName(Identity("tenant", 1), hash);
  }

  static constexpr int64_t kAfterMs = 10'000;
  FakeColdStore store_;
  const Hashes hashes_ = Sequence(1, 4);

 private:
  void StartHost() {
    cache_.reset();
    if (machine_) machine_->loop.DropAll();
    CacheSetup setup;
    setup.options.cold_after_ms = kAfterMs;
    Start(setup);
  }
};

TEST_F(CacheColdRegionsTest, TheStoreIsAskedForWhatThisHostDoesNotHave) {
  const PoolId region = OpenRegionBesideAnotherHost();
  EXPECT_THAT(Ask(region, Sequence(1, 5)), ElementsAre(true, true, true, true, false));
  EXPECT_THAT(Ask(region, Sequence(2, 2)), Each(false));
  EXPECT_EQ(store_.questions, 2u);
  EXPECT_FALSE(Presence(hashes_[0]).anywhere()) << "a question leaves nothing behind";
}

TEST_F(CacheColdRegionsTest, AStoreThatIsAwayHasNothing) {
  const PoolId region = OpenRegionBesideAnotherHost();
  store_.available = false;
  EXPECT_THAT(Ask(region, hashes_), IsEmpty());
  const PendingTransfer loaded = BeginLoad(region, hashes_);
  EXPECT_TRUE(loaded.ended());
  EXPECT_THAT(loaded->failed, SizeIs(4));
  EXPECT_EQ(store_.questions + store_.gets, 0u);
}

TEST_F(CacheColdRegionsTest, ALateAnswerIsNone) {
  const PoolId region = OpenRegionBesideAnotherHost();
  store_.holds = true;
  std::optional<std::vector<bool>> told;
  cache_->AskColdStore(region, hashes_, ColdAsk::kPrefix,
                       [&](std::vector<bool> present) { told = present; });
  EXPECT_FALSE(told);
  store_.TimeOut();
  Settle();
  ASSERT_TRUE(told);
  EXPECT_THAT(*told, IsEmpty());
}

TEST_F(CacheColdRegionsTest, ALoadBringsWhatAnotherHostComputed) {
  const PoolId region = OpenRegionBesideAnotherHost();
  const PendingTransfer loaded = BeginLoad(region, hashes_, 8);
  Settle();
  EXPECT_EQ(loaded->copied, 4u);
  for (uint32_t i = 0; i < 4; ++i) EXPECT_TRUE(MatchesHash(hashes_[i], RegionBytes(8 + i)));
  EXPECT_TRUE(Presence(hashes_[3]).host);
  EXPECT_EQ(cache_->stats().blocks.cold, 4u);
}

TEST_F(CacheColdRegionsTest, WhatWasLoadedKnowsItsPlaceInItsSequence) {
  const PoolId region = OpenRegionBesideAnotherHost();
  (void)BeginLoad(region, hashes_);
  Settle();
  const NamespaceId name_space = *cache_->FindNamespace(Identity("tenant", 1));
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(cache_->Inspect({name_space, hashes_[i]})->depth, i);
  }
}

TEST_F(CacheColdRegionsTest, WhatTheStoreDoesNotHaveIsAMissThatLeavesNothing) {
  const PoolId region = OpenRegionBesideAnotherHost();
  const PendingTransfer loaded = BeginLoad(region, Sequence(1, 5));
  Settle();
  EXPECT_EQ(loaded->copied, 4u);
  EXPECT_THAT(loaded->failed, ElementsAre(Pair(4u, MissReason::kUnknown)));
  EXPECT_FALSE(cache_->Inspect({*cache_->FindNamespace(Identity("tenant", 1)), TestHash(1, 4)}));
}

TEST_F(CacheColdRegionsTest, NothingIsLoadedThatIsBeingDeleted) {
  const PoolId region = OpenRegionBesideAnotherHost();
  store_.refuses = true;
  (void)cache_->Evict({*cache_->FindNamespace(Identity("tenant", 1)), hashes_[3]}, std::nullopt);
  Settle();
  store_.refuses = false;
  const PendingTransfer loaded = BeginLoad(region, hashes_);
  Settle();
  EXPECT_THAT(loaded->failed, ElementsAre(Pair(3u, MissReason::kUnknown)));
  EXPECT_EQ(store_.gets, 3u);
}

TEST_F(CacheColdRegionsTest, ADamagedObjectIsAMiss) {
  const PoolId region = OpenRegionBesideAnotherHost();
  store_.objects.at(Name(hashes_[1])).bytes.back() ^= std::byte{1};
  const PendingTransfer loaded = BeginLoad(region, hashes_);
  Settle();
  EXPECT_THAT(loaded->failed, ElementsAre(Pair(1u, MissReason::kChecksumMismatch)));
}

TEST_F(CacheColdRegionsTest, ASessionMayEndWhileTheStoreIsSilent) {
  const PoolId region = OpenRegionBesideAnotherHost();
  store_.holds = true;
  (void)BeginLoad(region, hashes_);
  Settle();
  cache_->CloseSession(kAlice);
  Settle();
  store_.TimeOut();
  Settle();
  EXPECT_EQ(cache_->Gauges().regions, 0u);
  EXPECT_THAT(machine_->device->lent(), IsEmpty());
  EXPECT_FALSE(Presence(hashes_[0]).anywhere());
}

}  // namespace
}  // namespace kvtier
