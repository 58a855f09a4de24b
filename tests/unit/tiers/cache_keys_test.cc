// SPDX-License-Identifier: Apache-2.0
// How long the keys of an encrypted disk tier live, and what becomes of blocks without them.

#include "tests/unit/tiers/encrypted_cache_fixture.h"

namespace kvtier {
namespace {

class CacheKeysTest : public EncryptedCacheTest {};

TEST_F(CacheKeysTest, KeysThatAreKeptServeTheNextDaemon) {
  Start();
  Put(Sequence(1, 10));
  Drain();
  AdoptKeys();
  CrashAndRestart();
  const AcquireReply reply = Acquire(kAlice, Sequence(1, 10));
  ASSERT_EQ(reply.hits.size(), 10u);
  EXPECT_EQ(LastProgress(reply.load).ready, 10u);
  EXPECT_TRUE(MatchesHash(TestHash(1, 3), Bytes(reply.hits[3].handle)));
}

// Whether blocks of a later hour stay or of an earlier one, as of a system prompt that is used
// every day.
TEST_F(CacheKeysTest, AKeyEndsWithTheLastBlockOfItsHour) {
  for (const uint32_t leaves : {1, 2}) {
    SCOPED_TRACE(leaves);
    NewKeys();
    keys_expired_ = 0;
    Start();
    Put(Sequence(1, 4));
    Drain();
    AdvanceAndTick(2 * kHourMs);
    Put(Sequence(2, 4));
    Drain();
    // The index's, and two hours'.
    ASSERT_EQ(cipher_->keys().size(), 3u);
    for (const BlockHash& hash : Sequence(leaves, 4)) {
      ASSERT_EQ(cache_->Evict({NamespaceId(0), hash}, std::nullopt), EvictOutcome::kEvicted);
    }
    Settle();
    AdvanceAndTick(2 * 60 * 1000);
    AdvanceAndTick(2 * 60 * 1000);
    EXPECT_EQ(cipher_->keys().size(), 2u);
    EXPECT_EQ(keys_expired_, 1u);
    CrashAndRestart();
    const AcquireReply reply = Acquire(kAlice, Sequence(3 - leaves, 4));
    EXPECT_EQ(LastProgress(reply.load).ready, 4u);
    cache_.reset();
    machine_->loop.DropAll();
  }
}

TEST_F(CacheKeysTest, KeysOfBlocksOnADriveThatIsAwayStayUntilItIsBack) {
  Start({.pool_blocks = 32, .host_slots = 32, .disk_slots = 64, .disk_files = 2});
  Put(Sequence(1, 1));
  Drain();
  const IndexSnapshot stored = machine_->Snapshot();
  ASSERT_EQ(stored.records.size(), 1u);
  const uint32_t away = machine_->geometry().DriveOf(stored.records.front().location);
  const auto with_all = change_environment_;
  change_environment_ = [with_all, away](CacheEnvironment* environment, IndexSnapshot* snapshot) {
    environment->files.erase(environment->files.begin() + away);
    environment->geometry.drive_slabs[away] = 0;
    environment->drives_away = uint32_t{1} << away;
    with_all(environment, snapshot);
  };
  CrashAndRestart();
  for (int minute = 0; minute < 3; ++minute) AdvanceAndTick(61'000);
  EXPECT_EQ(keys_expired_, 0u);
  change_environment_ = with_all;
  CrashAndRestart();
  const AcquireReply reply = Acquire(kAlice, Sequence(1, 1));
  ASSERT_EQ(reply.hits.size(), 1u);
  EXPECT_EQ(LastProgress(reply.load).ready, 1u);
}

TEST_F(CacheKeysTest, KeysOfBlocksStayHoweverTheClockIsSet) {
  for (const int64_t hours : {-30, -3, 3}) {
    SCOPED_TRACE(hours);
    NewKeys();
    Start();
    Put(Sequence(1, 2));
    Drain();
    machine_->clock.StepWall(hours * kHourMs);
    AdvanceAndTick(1000);
    Put(Sequence(2, 2));
    Drain();
    machine_->clock.StepWall(-hours * kHourMs / 2);
    for (int start = 0; start < 2; ++start) {
      for (int minute = 0; minute < 3; ++minute) AdvanceAndTick(61'000);
      EXPECT_EQ(keys_expired_, 0u);
      CrashAndRestart();
    }
    for (const uint32_t sequence : {1, 2}) {
      const AcquireReply reply = Acquire(kAlice, Sequence(sequence, 2));
      EXPECT_EQ(LastProgress(reply.load).ready, 2u);
    }
    cache_.reset();
    machine_->loop.DropAll();
  }
}

TEST_F(CacheKeysTest, ABlockWithoutAKeyCostsNoSlotAndHoldsUpNoOther) {
  Start();
  Put(Sequence(1, 1));
  Drain();
  AdvanceAndTick(2 * kHourMs);
  KeyRing& keys = cipher_->keys();
  for (uint32_t hour = 0; keys.ForSlot("another", hour); ++hour) {
  }
  Put(Sequence(2, 4));
  Drain();
  EXPECT_EQ(cache_->Gauges().disk_blocks, 1u);
  EXPECT_EQ(cache_->stats().slots_quarantined, 0u);
  EXPECT_FALSE(cache_->Gauges().disk_degraded);
  ASSERT_FALSE(machine_->owner.incidents.empty());
  EXPECT_EQ(machine_->owner.incidents.back().kind, IncidentKind::kNotEncrypted);
  (void)keys.Destroy("another", KeyRing::kNoHour);
  Put(Sequence(3, 4));
  Drain();
  EXPECT_EQ(cache_->Gauges().disk_blocks, 5u);
}

TEST_F(CacheKeysTest, BlocksThatAreComputedAnewKeepTheKeyOfTheirSlots) {
  Start();
  Put(Sequence(1, 4));
  Drain();
  AdvanceAndTick(2 * kHourMs);
  const Handles blocks = Acquire(kAlice, {}, 4).new_blocks;
  for (uint32_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(TryCommit(kAlice, blocks[i], {.hash = TestHash(1, i), .depth = i})->duplicate);
  }
  Release(kAlice, blocks);
  Drain();
  AdvanceAndTick(2 * 60 * 1000);
  AdvanceAndTick(2 * 60 * 1000);
  EXPECT_EQ(keys_expired_, 0u);
  CrashAndRestart();
  const AcquireReply reply = Acquire(kAlice, Sequence(1, 4));
  ASSERT_EQ(reply.hits.size(), 4u);
  EXPECT_EQ(LastProgress(reply.load).ready, 4u);
}

TEST_F(CacheKeysTest, StoredKeysServeBlocksAfterAReboot) {
  KeepKeysInFile();
  Start();
  Put(Sequence(1, 4));
  Drain();
  for (int reboots = 0; reboots < 2; ++reboots) {
    Reboot();
    const AcquireReply reply = Acquire(kAlice, Sequence(1, 4));
    ASSERT_EQ(reply.hits.size(), 4u);
    EXPECT_EQ(LastProgress(reply.load).ready, 4u);
    EXPECT_TRUE(MatchesHash(TestHash(1, 3), Bytes(reply.hits[3].handle)));
  }
  Put(Sequence(2, 4));
  Drain();
  Reboot();
  EXPECT_EQ(LastProgress(Acquire(kAlice, Sequence(2, 4)).load).ready, 4u);
}

TEST_F(CacheKeysTest, BlocksAreNotPersistedWhileTheirKeysCannotBeStored) {
  KeepKeysInFile();
  Start();
  std::filesystem::remove_all(directory_.path());
  Put(Sequence(1, 4));
  cache_->Drain([] {});
  Settle();
  EXPECT_TRUE(machine_->Snapshot().records.empty());
  EXPECT_GT(cache_->stats().index_errors, 0u);
}

}  // namespace
}  // namespace kvtier
