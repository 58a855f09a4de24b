// SPDX-License-Identifier: Apache-2.0
// How long the store keeps an object, and when it is written again: a block may stay in use for
// longer than its object was given.

#include <vector>

#include "tests/unit/tiers/cache_cold_fixture.h"

namespace kvtier {
namespace {

using ::testing::SizeIs;

TEST_F(CacheColdTest, GivesAnObjectTheTimeThatItsBlockHasToLive) {
  CacheSetup setup = ColdSetup();
  setup.options.extended_ttl_ms = 100'000;
  Start(setup);
  Put(hashes_);
  Use(hashes_);
  EvictFromPool();
  AdvanceAndTick(kAfterMs);
  ASSERT_THAT(store_.objects, SizeIs(4));
  EXPECT_EQ(store_.objects.begin()->second.ttl_s, 90);
}

// Its uses move its end, and not the object's.
TEST_F(CacheColdTest, WritesTheObjectOfABlockInUseAgainBeforeItEnds) {
  CacheSetup setup = ColdSetup();
  setup.options.extended_ttl_ms = 100'000;
  Start(setup);
  Put(hashes_);
  Use(hashes_);
  EvictFromPool();
  AdvanceAndTick(kAfterMs);
  ASSERT_THAT(store_.objects, SizeIs(4));
  // Never idle again for as long as a first write waits for.
  for (int uses = 0; uses < 30; ++uses) {
    Use(hashes_);
    AdvanceAndTick(kAfterMs / 2);
    for (const auto& [name, object] : store_.objects) EXPECT_GE(object.ttl_s, 90) << uses;
  }
  EXPECT_GE(stats().write_blocks, 4u * 5) << "150 s, of which each object may miss 25";
  EXPECT_LE(stats().write_blocks, 4u * 7);
  StartAnotherHost(setup);
  machine_->clock.Advance(120'000);
  ExpectBytes(hashes_, Acquire(kAlice, hashes_));
  EXPECT_EQ(stats().read_blocks, 4u);
}

// The next daemon knows none of the objects that the last one wrote.
TEST_F(CacheColdTest, WritesTheObjectsOfBlocksThatItAdoptsAnew) {
  CacheSetup setup = ColdSetup();
  setup.keep_host = true;
  Start(setup);
  Put(hashes_);
  Use(hashes_);
  EvictFromPool();
  AdvanceAndTick(setup_.options.extended_ttl_ms / 3);
  ASSERT_THAT(store_.objects, SizeIs(4));
  for (auto& [name, object] : store_.objects) object.ttl_s = 1;
  DieAndAdopt();
  Use(hashes_);
  AdvanceAndTick(kAfterMs);
  EXPECT_EQ(stats().write_blocks, 4u);
  for (const auto& [name, object] : store_.objects) EXPECT_GT(object.ttl_s, 1);
}

TEST_F(CacheColdTest, WritesAgainWhatItHasReadOfAnObjectThatEndsSoon) {
  WriteByAnotherHost(hashes_);
  machine_->clock.Advance(setup_.options.extended_ttl_ms / 2);
  for (auto& [name, object] : store_.objects) object.ttl_s = 1;
  Use(hashes_);
  EXPECT_EQ(stats().read_blocks, 4u);
  AdvanceAndTick(1000);
  EXPECT_EQ(stats().write_blocks, 4u);
  for (const auto& [name, object] : store_.objects) EXPECT_GT(object.ttl_s, 1);
}

TEST_F(CacheColdTest, WritesAgainWhatTheStoreWasFoundToLackOnceItIsUsed) {
  WriteByAnotherHost(hashes_);
  Use(hashes_);
  store_.objects.clear();
  cache_->VerifyStep(
      0, 100, [](const VerifyResult&) {}, Cache::Verified::kCold);
  Settle();
  Use(hashes_);
  AdvanceAndTick(kAfterMs);
  EXPECT_THAT(store_.objects, SizeIs(4));
}

// The second of two hosts that compute a block at the same time replaces nothing. An older object
// may be about to end.
TEST_F(CacheColdTest, ReplacesAnObjectOfAnotherHostOnceItMayBeOld) {
  for (const bool old : {false, true}) {
    store_.objects.clear();
    WriteByAnotherHost(hashes_);
    for (auto& [name, object] : store_.objects) object.ttl_s = 1;
    store_.available = false;
    Put(hashes_);
    if (old) AdvanceAndTick(setup_.options.extended_ttl_ms / 3);
    Use(hashes_);
    EvictFromPool();
    store_.available = true;
    AdvanceAndTick(kAfterMs);
    EXPECT_EQ(stats().write_blocks, 4u);
    for (const auto& [name, object] : store_.objects) EXPECT_EQ(object.ttl_s > 1, old);
  }
}

}  // namespace
}  // namespace kvtier
