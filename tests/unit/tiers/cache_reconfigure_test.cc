// SPDX-License-Identifier: Apache-2.0
// Options that change while the cache is at work.

#include "base/units.h"
#include "tests/unit/tiers/cache_fixture.h"

namespace kvtier {
namespace {

class CacheReconfigureTest : public CacheTest {
 protected:
  // The options in effect, as changed.
  Status Change(const std::function<void(CacheOptions*)>& change) {
    CacheOptions options = setup_.options;
    change(&options);
    const Status status = cache_->Reconfigure(options);
    Settle();
    return status;
  }
};

TEST_F(CacheReconfigureTest, ShorterTimeToLiveCountsFromTheLastUse) {
  Start();
  Put(Sequence(1, 2), RetentionClass::kMemory);
  AdvanceAndTick(5 * kMinuteMs);
  ASSERT_TRUE(Presence(TestHash(1, 0)).pool);
  ASSERT_TRUE(Change([](CacheOptions* options) { options->memory_ttl_ms = 4 * kMinuteMs; }));
  AdvanceAndTick(0);
  EXPECT_FALSE(Presence(TestHash(1, 0)).anywhere());
  EXPECT_EQ(Drops(Tier::kPool, DropReason::kExpired), 2u);
}

TEST_F(CacheReconfigureTest, LongerTimeToLiveSavesWhatWouldHaveExpired) {
  Start();
  Put(Sequence(1, 2), RetentionClass::kMemory);
  ASSERT_TRUE(Change([](CacheOptions* options) { options->memory_ttl_ms = 60 * kMinuteMs; }));
  AdvanceAndTick(30 * kMinuteMs);
  EXPECT_TRUE(Presence(TestHash(1, 0)).pool);
}

TEST_F(CacheReconfigureTest, IdleBlocksGoToDiskSoonerWhenToldTo) {
  Start();
  Put(Sequence(1, 2));
  AdvanceAndTick(kMinuteMs);
  ASSERT_FALSE(Presence(TestHash(1, 0)).disk);
  ASSERT_TRUE(Change([](CacheOptions* options) { options->persist_after_ms = 1000; }));
  AdvanceAndTick(0);
  EXPECT_TRUE(Presence(TestHash(1, 0)).disk);
}

TEST_F(CacheReconfigureTest, SmallerWriteBudgetStopsWritingAndALargerOneResumes) {
  Start();
  Put(Sequence(1, 4));
  ASSERT_TRUE(Change([](CacheOptions* options) { options->disk_write_budget_bytes_per_day = 1; }));
  Drain();
  EXPECT_FALSE(Presence(TestHash(1, 0)).disk);
  EXPECT_EQ(cache_->Gauges().write_budget_left_bytes, 1u);
  ASSERT_TRUE(
      Change([](CacheOptions* options) { options->disk_write_budget_bytes_per_day = 1 * kGiB; }));
  Put(Sequence(2, 4));
  Drain();
  EXPECT_TRUE(Presence(TestHash(2, 0)).disk);
}

TEST_F(CacheReconfigureTest, LargerCleanFractionCopiesMoreAheadOfNeed) {
  CacheSetup setup;
  setup.options.pool_clean_fraction = 0;
  Start(setup);
  Put(Sequence(1, 16));
  ASSERT_EQ(cache_->Gauges().host_blocks, 0u);
  ASSERT_TRUE(Change([](CacheOptions* options) { options->pool_clean_fraction = 0.5; }));
  EXPECT_EQ(cache_->Gauges().host_blocks, 8u);
}

TEST_F(CacheReconfigureTest, SizesStayAsTheyAre) {
  Start();
  const uint64_t pool_bytes = cache_->Gauges().pool_capacity_bytes;
  ASSERT_TRUE(Change([](CacheOptions* options) {
    options->pool_bytes = 1;
    options->slab_bytes = 128 * kKiB;
  }));
  EXPECT_EQ(cache_->Gauges().pool_capacity_bytes, pool_bytes);
  Put(Sequence(1, 16));
}

TEST_F(CacheReconfigureTest, FewerPinsThanThereAreIsRefusedAndChangesNothing) {
  CacheSetup setup{.disk_slots = 8};
  setup.options.pin_fraction = 0.5;
  Start(setup);
  Put(Sequence(1, 4));
  ASSERT_TRUE(cache_->Pin(kAlice, pool_.id, Sequence(1, 4), 60 * kMinuteMs));
  const Status refused = Change([](CacheOptions* options) {
    options->pin_fraction = 0.25;
    options->memory_ttl_ms = 1000;
  });
  EXPECT_THAT(refused, IsErrorOf(ErrorCode::kLimitExceeded, "pinned"));
  Put(Sequence(2, 1), RetentionClass::kMemory);
  AdvanceAndTick(kMinuteMs);
  EXPECT_TRUE(Presence(TestHash(2, 0)).pool);
  EXPECT_TRUE(Change([](CacheOptions* options) { options->pin_fraction = 0.5; }));
}

TEST_F(CacheReconfigureTest, PinnedBytesAreThoseOfTheSlotsPinned) {
  Start();
  EXPECT_EQ(cache_->Gauges().PinnedBytes(), 0u);
  Put(Sequence(1, 3));
  ASSERT_TRUE(cache_->Pin(kAlice, pool_.id, Sequence(1, 2), 60 * kMinuteMs));
  EXPECT_EQ(cache_->Gauges().PinnedBytes(), 2 * 2 * kBlockBytes);
}

}  // namespace
}  // namespace kvtier
