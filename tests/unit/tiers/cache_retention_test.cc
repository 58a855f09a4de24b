// SPDX-License-Identifier: Apache-2.0
// How long blocks live: time to live by class, maximum age, pins.

#include "base/units.h"
#include "tests/unit/tiers/cache_fixture.h"
#include "tiers/state/cache_state.h"

namespace kvtier {
namespace {

class CacheRetentionTest : public CacheTest {};

TEST_F(CacheRetentionTest, MemoryClassExpiresTenMinutesAfterItsLastUse) {
  Start();
  Put(Sequence(1, 2), RetentionClass::kMemory);
  AdvanceAndTick(9 * kMinuteMs);
  EXPECT_TRUE(Presence(TestHash(1, 0)).pool);
  AdvanceAndTick(2 * kMinuteMs);
  EXPECT_FALSE(Presence(TestHash(1, 0)).anywhere());
  EXPECT_EQ(Drops(Tier::kPool, DropReason::kExpired), 2u);
}

TEST_F(CacheRetentionTest, ExtendedClassExpiresADayAfterItsLastUseInEveryTier) {
  Start();
  Put(Sequence(1, 2));
  Drain();
  AdvanceAndTick(23 * kHourMs);
  EXPECT_TRUE(Presence(TestHash(1, 0)).pool);
  EXPECT_TRUE(Presence(TestHash(1, 0)).disk);
  AdvanceAndTick(2 * kHourMs);
  EXPECT_FALSE(Presence(TestHash(1, 0)).anywhere());
  EXPECT_EQ(cache_->Gauges().disk_blocks, 0u);
  EXPECT_EQ(cache_->Gauges().host_blocks, 0u);
}

TEST_F(CacheRetentionTest, UseRenewsTheTimeToLive) {
  Start();
  Put(Sequence(1, 2), RetentionClass::kMemory);
  for (int i = 0; i < 5; ++i) {
    AdvanceAndTick(8 * kMinuteMs);
    Use(Sequence(1, 2));
  }
  EXPECT_TRUE(Presence(TestHash(1, 1)).pool);
}

TEST_F(CacheRetentionTest, BlockPastItsTimeIsNotServedEvenBeforeTheNextTick) {
  Start();
  Put(Sequence(1, 1), RetentionClass::kMemory);
  machine_->clock.Advance(11 * kMinuteMs);
  const AcquireReply reply = Acquire(kAlice, Sequence(1, 1));
  EXPECT_TRUE(reply.hits.empty());
  EXPECT_EQ(reply.miss, MissReason::kExpired);
}

TEST_F(CacheRetentionTest, BlockIsServedToTheEndOfItsTimeAndNotAMillisecondLonger) {
  Start();
  Put(Sequence(1, 1), RetentionClass::kMemory);
  machine_->clock.Advance(10 * kMinuteMs);
  Use(Sequence(1, 1));
  machine_->clock.Advance(10 * kMinuteMs + 1);
  EXPECT_EQ(Acquire(kAlice, Sequence(1, 1)).miss, MissReason::kExpired);
}

TEST_F(CacheRetentionTest, TickDropsABlockWhenItsTimeHasEndedAndNotBefore) {
  Start();
  Put(Sequence(1, 1));
  Drain();
  AdvanceAndTick(24 * kHourMs);
  EXPECT_TRUE(Presence(TestHash(1, 0)).pool);
  EXPECT_TRUE(Presence(TestHash(1, 0)).disk);
  AdvanceAndTick(1);
  EXPECT_FALSE(Presence(TestHash(1, 0)).anywhere());
}

TEST_F(CacheRetentionTest, BlocksThatManyLookupsFindPastTheirTimeGoInParts) {
  CacheSetup setup;
  setup.options.close_part_blocks = 2;
  Start(setup);
  Put(Sequence(1, 12), RetentionClass::kMemory);
  machine_->clock.Advance(11 * kMinuteMs);
  for (const BlockHash& hash : Sequence(1, 12)) EXPECT_TRUE(Acquire(kAlice, {hash}).hits.empty());
  cache_->Tick();
  EXPECT_GE(PoolGaugesNow().cached, 6u);
  for (int tick = 0; tick < 6; ++tick) AdvanceAndTick(1);
  EXPECT_EQ(PoolGaugesNow().cached, 0u);
}

TEST_F(CacheRetentionTest, ReferencedBlockDoesNotExpire) {
  Start();
  const Handles blocks = Store(kAlice, Sequence(1, 1), RetentionClass::kMemory);
  AdvanceAndTick(kHourMs);
  EXPECT_TRUE(Presence(TestHash(1, 0)).pool);
  EXPECT_TRUE(MatchesHash(TestHash(1, 0), Bytes(blocks[0])));
}

TEST_F(CacheRetentionTest, TimeToLiveCountsFromTheRelease) {
  Start();
  const Handles blocks = Store(kAlice, Sequence(1, 1), RetentionClass::kMemory);
  AdvanceAndTick(kHourMs);
  Release(kAlice, blocks);
  AdvanceAndTick(9 * kMinuteMs);
  EXPECT_TRUE(Presence(TestHash(1, 0)).pool);
  AdvanceAndTick(2 * kMinuteMs);
  EXPECT_FALSE(Presence(TestHash(1, 0)).anywhere());
}

TEST_F(CacheRetentionTest, BlockHeldForLessThanItsTimeToLiveIsYoungWhenReleased) {
  Start();
  const Handles blocks = Store(kAlice, Sequence(1, 1), RetentionClass::kMemory);
  AdvanceAndTick(9 * kMinuteMs);
  Release(kAlice, blocks);
  AdvanceAndTick(9 * kMinuteMs);
  EXPECT_TRUE(Presence(TestHash(1, 0)).pool);
}

TEST_F(CacheRetentionTest, MaximumAgeEndsEvenABlockInSteadyUse) {
  CacheSetup setup;
  setup.options.max_age_ms = kHourMs;
  Start(setup);
  Put(Sequence(1, 1));
  for (int i = 0; i < 5; ++i) {
    AdvanceAndTick(11 * kMinuteMs);
    Use(Sequence(1, 1));
  }
  AdvanceAndTick(6 * kMinuteMs);
  EXPECT_FALSE(Presence(TestHash(1, 0)).anywhere());
  EXPECT_EQ(Acquire(kAlice, Sequence(1, 1)).hits.size(), 0u);
}

TEST_F(CacheRetentionTest, MaximumAgeEndsABlockBehindOnesThatWereUsedBefore) {
  CacheSetup setup;
  setup.options.max_age_ms = kHourMs;
  setup.options.close_part_blocks = 2;
  Start(setup);
  Put(Sequence(1, 4));
  AdvanceAndTick(50 * kMinuteMs);
  Put(Sequence(2, 4));
  AdvanceAndTick(5 * kMinuteMs);
  Use(Sequence(1, 4));
  Drain();
  ASSERT_EQ(cache_->Gauges().disk_blocks, 8u);
  AdvanceAndTick(6 * kMinuteMs);
  EXPECT_GE(cache_->Gauges().disk_blocks, 6u) << "no event is longer than a part";
  // No lookup finds them before.
  for (int i = 0; i < 4; ++i) AdvanceAndTick(1);
  EXPECT_EQ(cache_->Gauges().disk_blocks, 4u);
  EXPECT_EQ(cache_->Gauges().entries, 4u);
  for (const BlockHash& hash : Sequence(2, 4)) EXPECT_TRUE(Presence(hash).disk);
}

TEST_F(CacheRetentionTest, ExpiredBlockCanBeStoredAgain) {
  Start();
  Put(Sequence(1, 1), RetentionClass::kMemory);
  AdvanceAndTick(11 * kMinuteMs);
  Put(Sequence(1, 1), RetentionClass::kMemory);
  Use(Sequence(1, 1));
}

TEST_F(CacheRetentionTest, ExpiryFreesTheSlotsOfEveryTier) {
  Start();
  Put(Sequence(1, 16));
  EvictFromPool();
  Drain();
  AdvanceAndTick(25 * kHourMs);
  EXPECT_EQ(cache_->Gauges().host_used_bytes, 0u);
  EXPECT_EQ(cache_->Gauges().disk_used_bytes, 0u);
  EXPECT_EQ(cache_->Gauges().entries, 0u);
}

TEST_F(CacheRetentionTest, TimeToLiveBeginsWhenThePinEnds) {
  Start();
  Put(Sequence(1, 1), RetentionClass::kMemory);
  const Result<uint32_t> pinned = cache_->Pin(kAlice, pool_.id, Sequence(1, 1), kHourMs);
  ASSERT_TRUE(pinned);
  EXPECT_EQ(*pinned, 1u);
  AdvanceAndTick(61 * kMinuteMs);
  EXPECT_EQ(cache_->Gauges().pinned_blocks, 0u);
  AdvanceAndTick(9 * kMinuteMs);
  EXPECT_TRUE(Presence(TestHash(1, 0)).anywhere());
  AdvanceAndTick(2 * kMinuteMs);
  EXPECT_FALSE(Presence(TestHash(1, 0)).anywhere());
}

TEST_F(CacheRetentionTest, PinnedBlocksDoNotKeepYoungerOnesFromExpiring) {
  CacheSetup setup;
  setup.options.close_part_blocks = 2;
  Start(setup);
  Put(Sequence(1, 4));
  ASSERT_TRUE(cache_->Pin(kAlice, pool_.id, Sequence(1, 4), 48 * kHourMs));
  machine_->clock.Advance(kHourMs);
  Put(Sequence(2, 4));
  machine_->clock.Advance(26 * kHourMs);
  for (int tick = 0; tick < 10; ++tick) AdvanceAndTick(1000);
  EXPECT_EQ(cache_->Gauges().entries, 4u);
  EXPECT_EQ(cache_->Gauges().pinned_blocks, 4u);
  // Pins that are taken back do not count as use.
  ASSERT_TRUE(cache_->Pin(kAlice, pool_.id, Sequence(1, 4), 0));
  AdvanceAndTick(1000);
  EXPECT_EQ(cache_->Gauges().entries, 0u);
}

TEST_F(CacheRetentionTest, PinnedBlockOutlivesPressure) {
  Start({.pool_blocks = 4, .host_slots = 8, .disk_slots = 8});
  Put(Sequence(1, 1));
  ASSERT_TRUE(cache_->Pin(kAlice, pool_.id, Sequence(1, 1), kHourMs));
  EXPECT_EQ(cache_->Gauges().pinned_blocks, 1u);
  for (uint64_t stream = 2; stream <= 12; ++stream) Put(Sequence(stream, 4));
  EXPECT_TRUE(Presence(TestHash(1, 0)).anywhere());
  Use(Sequence(1, 1));
}

TEST_F(CacheRetentionTest, AShorterPinDoesNotEndALongerOne) {
  Start();
  Put(Sequence(1, 1), RetentionClass::kMemory);
  ASSERT_TRUE(cache_->Pin(kAlice, pool_.id, Sequence(1, 1), 2 * kHourMs));
  ASSERT_TRUE(cache_->Pin(kAlice, pool_.id, Sequence(1, 1), kMinuteMs));
  AdvanceAndTick(kHourMs);
  EXPECT_EQ(cache_->Gauges().pinned_blocks, 1u);
  EXPECT_TRUE(Presence(TestHash(1, 0)).anywhere());
  AdvanceAndTick(kHourMs + kMinuteMs);
  EXPECT_EQ(cache_->Gauges().pinned_blocks, 0u);
}

TEST_F(CacheRetentionTest, AClientEndsItsOwnPinsAndNobodyElses) {
  Start();
  Put(Sequence(1, 2));
  ASSERT_TRUE(cache_->Pin(kAlice, pool_.id, Sequence(1, 2), 2 * kHourMs));
  ASSERT_TRUE(cache_->Pin(kBob, pool_.id, Sequence(1, 2), kHourMs));
  ASSERT_TRUE(cache_->Pin(kAlice, pool_.id, Sequence(1, 2), 0));
  EXPECT_EQ(cache_->Gauges().pinned_blocks, 2u);
  ASSERT_TRUE(cache_->Pin(kAlice, pool_.id, Sequence(1, 2), 0)) << "it has none any more";
  AdvanceAndTick(kHourMs - kMinuteMs);
  EXPECT_EQ(cache_->Gauges().pinned_blocks, 2u);
  AdvanceAndTick(2 * kMinuteMs);
  EXPECT_EQ(cache_->Gauges().pinned_blocks, 0u) << "the end that was taken back counts no more";
}

TEST_F(CacheRetentionTest, PinsOfManyClientsEndWithTheirTimeWhoeverLetsGo) {
  Start();
  Put(Sequence(1, 1));
  constexpr uint64_t kClients = 9;
  // All but the third let go, which may share its place with others by then.
  for (uint64_t client = 1; client <= kClients; ++client) {
    const auto ttl_ms = static_cast<int64_t>(client) * kMinuteMs;
    ASSERT_TRUE(cache_->Pin(SessionId(client), pool_.id, Sequence(1, 1), ttl_ms));
  }
  for (uint64_t client = 1; client <= kClients; ++client) {
    if (client == 3) continue;
    ASSERT_TRUE(cache_->Pin(SessionId(client), pool_.id, Sequence(1, 1), 0));
  }
  AdvanceAndTick(3 * kMinuteMs - 1000);
  EXPECT_EQ(cache_->Gauges().pinned_blocks, 1u);
  AdvanceAndTick(kClients * kMinuteMs);
  EXPECT_EQ(cache_->Gauges().pinned_blocks, 0u);
}

TEST_F(CacheRetentionTest, AnAdministratorEndsEverybodysPins) {
  Start();
  Put(Sequence(1, 1));
  for (const SessionId client : {kAlice, kBob}) {
    ASSERT_TRUE(cache_->Pin(client, pool_.id, Sequence(1, 1), kHourMs));
  }
  ASSERT_TRUE(cache_->Pin(NamespaceId(0), Sequence(1, 1), 2 * kHourMs));
  ASSERT_TRUE(cache_->Pin(NamespaceId(0), Sequence(1, 1), 0));
  EXPECT_EQ(cache_->Gauges().pinned_blocks, 0u);
}

TEST_F(CacheRetentionTest, UnpinnedBlockIsLikeAnyOther) {
  Start();
  Put(Sequence(1, 1), RetentionClass::kMemory);
  ASSERT_TRUE(cache_->Pin(kAlice, pool_.id, Sequence(1, 1), kHourMs));
  ASSERT_TRUE(cache_->Pin(kAlice, pool_.id, Sequence(1, 1), 0));
  EXPECT_EQ(cache_->Gauges().pinned_blocks, 0u);
  AdvanceAndTick(11 * kMinuteMs);
  EXPECT_FALSE(Presence(TestHash(1, 0)).anywhere());
}

TEST_F(CacheRetentionTest, PinCountsOnlyCachedBlocks) {
  Start();
  Put(Sequence(1, 2));
  const Result<uint32_t> pinned = cache_->Pin(kAlice, pool_.id, Sequence(1, 5), kHourMs);
  ASSERT_TRUE(pinned);
  EXPECT_EQ(*pinned, 2u);
}

TEST_F(CacheRetentionTest, PinsAreLimitedToTheirShare) {
  CacheSetup setup{.pool_blocks = 16, .host_slots = 8, .disk_slots = 8};
  setup.options.pin_fraction = 0.5;
  Start(setup);
  Put(Sequence(1, 16));
  const auto pinned = cache_->Pin(kAlice, pool_.id, Sequence(1, 16), kHourMs);
  ASSERT_FALSE(pinned);
  EXPECT_EQ(pinned.error().code, ErrorCode::kLimitExceeded);
  EXPECT_EQ(pinned.error().reason, "pin_limit");
  EXPECT_LE(cache_->Gauges().pinned_blocks, 4u);
  cache_->CheckInvariants();
}

TEST_F(CacheRetentionTest, MemoryThatIsStillBeingReadiedCountsForThePinsLimit) {
  CacheSetup setup{.pool_blocks = 16, .host_slots = 16, .host_slots_ready = 8, .disk_slots = 0};
  setup.options.pin_fraction = 0.5;
  Start(setup);
  Put(Sequence(1, 8));
  EXPECT_TRUE(cache_->Pin(kAlice, pool_.id, Sequence(1, 8), kHourMs));
}

TEST_F(CacheRetentionTest, RepeatedPinDoesNotCountTwice) {
  CacheSetup setup{.disk_slots = 8};
  setup.options.pin_fraction = 0.5;
  Start(setup);
  Put(Sequence(1, 4));
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(cache_->Pin(kAlice, pool_.id, Sequence(1, 4), kHourMs));
  EXPECT_EQ(cache_->Gauges().pinned_blocks, 4u);
}

TEST_F(CacheRetentionTest, PinOfACorruptedBlockDoesNotSaveIt) {
  Start();
  Put(Sequence(1, 1));
  ASSERT_TRUE(cache_->Pin(kAlice, pool_.id, Sequence(1, 1), kHourMs));
  DrainAndRestart();
  for (std::byte& byte : file().contents()) byte = std::byte{0};
  const AcquireReply reply = Acquire(kAlice, Sequence(1, 1));
  EXPECT_EQ(LastProgress(reply.load).ready, 0u);
  Release(kAlice, HandlesOf(reply));
  Settle();
  EXPECT_FALSE(Presence(TestHash(1, 0)).anywhere());
  EXPECT_EQ(cache_->Gauges().pinned_blocks, 0u);
}

// The wall clock is stepped while blocks age.
class CacheClockStepTest : public CacheTest {
 protected:
  static CacheSetup PersistingAfter(int64_t idle_ms) {
    CacheSetup setup;
    setup.options.persist_after_ms = idle_ms;
    return setup;
  }
  void StepWall(int64_t ms) { machine_->clock.StepWall(ms); }
};

TEST_F(CacheClockStepTest, IdleBlocksArePersistedThoughTheClockWasSetBack) {
  Start(PersistingAfter(2'000));
  Put(Sequence(1, 2));
  StepWall(-10'000);
  Put(Sequence(2, 2));
  AdvanceAndTick(3'000);
  for (const uint64_t stream : {1, 2}) EXPECT_TRUE(Presence(TestHash(stream, 1)).disk) << stream;
}

TEST_F(CacheClockStepTest, NothingExpiresBecauseTheClockWasSetForwards) {
  Start();
  Put(Sequence(1, 2), RetentionClass::kMemory);
  StepWall(kHourMs);
  AdvanceAndTick(9 * kMinuteMs);
  EXPECT_TRUE(Presence(TestHash(1, 0)).pool);
  AdvanceAndTick(2 * kMinuteMs);
  EXPECT_FALSE(Presence(TestHash(1, 0)).anywhere());
}

TEST_F(CacheClockStepTest, BlocksExpireInTimeThoughTheClockWasSetBack) {
  Start();
  Put(Sequence(1, 2), RetentionClass::kMemory);
  StepWall(-kHourMs);
  AdvanceAndTick(11 * kMinuteMs);
  EXPECT_FALSE(Presence(TestHash(1, 0)).anywhere());
}

TEST_F(CacheClockStepTest, PinsEndInTimeThoughTheClockWasSetBack) {
  Start();
  Put(Sequence(1, 1));
  ASSERT_TRUE(cache_->Pin(kAlice, pool_.id, Sequence(1, 1), 5 * kMinuteMs));
  StepWall(-kHourMs);
  AdvanceAndTick(6 * kMinuteMs);
  EXPECT_EQ(cache_->Gauges().pinned_blocks, 0u);
}

TEST_F(CacheClockStepTest, TimesAreReportedByTheClockAsItIsNow) {
  Start();
  Put(Sequence(1, 1));
  StepWall(kHourMs);
  const auto record = cache_->Inspect({NamespaceId(0), TestHash(1, 0)});
  ASSERT_TRUE(record);
  EXPECT_EQ(record->created_s, machine_->clock.WallMs() / 1000);
}

TEST_F(CacheClockStepTest, BlockFromTheFutureOfALaterProcessStillExpires) {
  Start();
  StepWall(48 * kHourMs);
  Put(Sequence(1, 1));
  StepWall(-48 * kHourMs);
  DrainAndRestart();
  EXPECT_TRUE(Presence(TestHash(1, 0)).disk);
  AdvanceAndTick(25 * kHourMs);
  EXPECT_FALSE(Presence(TestHash(1, 0)).anywhere());
}

constexpr SessionId kClient{1};

TEST(PinTable, LooksOnlyAtPinsThatHaveEndedAndAtNoMoreThanAsked) {
  PinTable pins;
  for (uint32_t i = 0; i < 100; ++i) pins.Set(EntryIndex(i), kClient, i);
  EXPECT_EQ(pins.TakeEnded(49, 30).size(), 30u);
  EXPECT_EQ(pins.TakeEnded(49, 30).size(), 20u);
  EXPECT_TRUE(pins.TakeEnded(49, 30).empty());
  EXPECT_EQ(pins.size(), 50u);
  EXPECT_FALSE(pins.Contains(EntryIndex(49)));
  EXPECT_TRUE(pins.Contains(EntryIndex(50)));
}

TEST(PinTable, LaterEndReplacesTheEarlier) {
  PinTable pins;
  pins.Set(EntryIndex(1), kClient, 10);
  pins.Set(EntryIndex(1), kClient, 20);
  EXPECT_TRUE(pins.TakeEnded(15, 8).empty());
  EXPECT_EQ(pins.UntilMs(EntryIndex(1)), 20);
  pins.Release(EntryIndex(1), kNobody);
  EXPECT_TRUE(pins.TakeEnded(30, 8).empty());
}

}  // namespace
}  // namespace kvtier
