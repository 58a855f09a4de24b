// SPDX-License-Identifier: Apache-2.0
// Drives of the disk tier that are away at a start, come back, or fail while the cache serves.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "tests/unit/tiers/cache_fixture.h"

namespace kvtier {
namespace {

constexpr int64_t kMinuteMs = 60'000;

class CacheDrivesTest : public CacheTest {
 protected:
  void StartWithTwo() {
    Start({.pool_blocks = 32, .host_slots = 32, .disk_slots = 64, .disk_files = 2});
  }
  // The drive on which the index says that the block is.
  [[nodiscard]] uint32_t DriveOf(const BlockHash& hash) const {
    const IndexSnapshot snapshot = machine_->Snapshot();
    for (const IndexRecord& record : snapshot.records) {
      if (record.key.hash == hash) return machine_->geometry().DriveOf(record.location);
    }
    return kMaxDrives;
  }
  [[nodiscard]] Hashes On(uint32_t drive, const Hashes& hashes) const {
    Hashes found;
    for (const BlockHash& hash : hashes) {
      if (DriveOf(hash) == drive) found.push_back(hash);
    }
    return found;
  }
  // The next starts go without the drive.
  void TakeAway(uint32_t drive) {
    change_environment_ = [drive](CacheEnvironment* environment, IndexSnapshot*) {
      environment->files.erase(environment->files.begin() + drive);
      environment->geometry.drive_slabs[drive] = 0;
      environment->drives_away = uint32_t{1} << drive;
    };
  }
  void BringBack() { change_environment_ = nullptr; }
  void ExpectOnDisk(const Hashes& hashes, bool expected) const {
    for (const BlockHash& hash : hashes) EXPECT_EQ(Presence(hash).disk, expected) << hash.Hex();
  }
  // Each is loaded alone: a prefix would end before the first that is missing.
  void ExpectHits(const Hashes& hashes) {
    for (const BlockHash& hash : hashes) {
      const AcquireReply reply = Acquire(kAlice, {hash});
      ASSERT_EQ(reply.hits.size(), 1u) << hash.Hex();
      EXPECT_TRUE(MatchesHash(hash, Bytes(reply.hits[0].handle)));
      Release(kAlice, HandlesOf(reply));
    }
    Settle();
  }
};

TEST_F(CacheDrivesTest, BlocksOnADriveThatIsAwayAreMissesAndAllOthersAreHits) {
  StartWithTwo();
  Put(Sequence(1, 8));
  Drain();
  for (const uint32_t away : {0u, 1u}) {
    const Hashes gone = On(away, Sequence(1, 8));
    const Hashes left = On(1 - away, Sequence(1, 8));
    ASSERT_EQ(gone.size(), 4u);
    ASSERT_EQ(left.size(), 4u);
    TakeAway(away);
    CrashAndRestart();
    ExpectOnDisk(gone, false);
    ExpectOnDisk(left, true);
    ExpectHits(left);
    BringBack();
    CrashAndRestart();
    ExpectOnDisk(Sequence(1, 8), true);
    ExpectHits(Sequence(1, 8));
    Drain();
  }
}

// Their parents are not lost, but away.
TEST_F(CacheDrivesTest, BlocksStayWhoseParentsAreOnADriveThatIsAway) {
  StartWithTwo();
  Put(Sequence(1, 8));
  Drain();
  const Hashes left = On(1, Sequence(1, 8));
  TakeAway(0);
  CrashAndRestart();
  for (int i = 0; i < 5; ++i) AdvanceAndTick(kMinuteMs);
  ExpectOnDisk(left, true);
  EXPECT_EQ(Drops(Tier::kDisk, DropReason::kParentLost), 0u);
}

TEST_F(CacheDrivesTest, ABlockWrittenAnewWhileItsDriveWasAwayIsServedFromItsNewPlace) {
  StartWithTwo();
  Put(Sequence(1, 8));
  Drain();
  const Hashes gone = On(0, Sequence(1, 8));
  TakeAway(0);
  CrashAndRestart();
  Put(gone);
  Drain();
  BringBack();
  CrashAndRestart();
  for (const BlockHash& hash : gone) EXPECT_EQ(DriveOf(hash), 1u);
  ExpectOnDisk(Sequence(1, 8), true);
  ExpectHits(Sequence(1, 8));
}

TEST_F(CacheDrivesTest, ADriveThatRefusesIsGivenUpAndTheOthersGoOn) {
  StartWithTwo();
  Put(Sequence(1, 12));
  DrainAndRestart();
  const Hashes gone = On(1, Sequence(1, 12));
  const Hashes left = On(0, Sequence(1, 12));
  ASSERT_EQ(gone.size(), 6u);
  file(1).SetFaultRates({.write_eio = 1.0, .read_eio = 1.0, .sync_eio = 1.0});
  for (const BlockHash& hash : gone) {
    const AcquireReply reply = Acquire(kAlice, {hash});
    Release(kAlice, HandlesOf(reply));
    Settle();
  }
  ASSERT_EQ(cache_->Gauges().drives.size(), 2u);
  EXPECT_FALSE(cache_->Gauges().drives[0].failed);
  EXPECT_TRUE(cache_->Gauges().drives[1].failed);
  EXPECT_TRUE(cache_->Gauges().disk_degraded);
  EXPECT_GT(Drops(Tier::kDisk, DropReason::kDriveLost), 0u);
  AdvanceAndTick(5 * kMinuteMs);
  ExpectOnDisk(gone, false);
  ExpectOnDisk(left, true);
  ExpectHits(left);
  const uint64_t refused = file(1).writes();
  Put(Sequence(2, 6));
  Drain();
  ExpectOnDisk(Sequence(2, 6), true);
  EXPECT_EQ(file(1).writes(), refused);
}

TEST_F(CacheDrivesTest, TwoBlocksThatCannotBeReadDoNotGiveUpTheirDrive) {
  StartWithTwo();
  Put(Sequence(1, 12));
  DrainAndRestart();
  const Hashes there = On(1, Sequence(1, 12));
  ASSERT_EQ(there.size(), 6u);
  using enum ReadFault;
  const uint64_t before = file(1).reads();
  file(1).CompleteReadsTogether();
  file(1).ScriptReads({kNone, kNone, kNone, kNone, kEio, kEio, kEio, kEio});
  const AcquireReply reply = Acquire(kAlice, Sequence(1, 12));
  Release(kAlice, HandlesOf(reply));
  Settle();
  EXPECT_EQ(file(1).reads(), before + 9) << "six, two of them twice, and the first page";
  EXPECT_FALSE(cache_->Gauges().drives[1].failed);
  EXPECT_EQ(Drops(Tier::kDisk, DropReason::kReadError), 2u);
  EXPECT_EQ(On(1, there).size(), 4u);
}

// As a file system does that has become read-only. Each refusal pauses the writes to all drives.
TEST_F(CacheDrivesTest, ADriveThatOnlyTakesReadsIsGivenUpAndTheOthersAreWrittenTo) {
  StartWithTwo();
  Put(Sequence(1, 24));
  DrainAndRestart();
  const Hashes readable = On(1, Sequence(1, 24));
  ASSERT_EQ(readable.size(), 12u);
  file(1).SetFaultRates({.write_eio = 1.0});
  for (uint32_t i = 0; i < readable.size() && !cache_->Gauges().drives[1].failed; ++i) {
    Put(Sequence(10 + i, 2));
    Drain();
    AdvanceAndTick(kMinuteMs);
    if (!cache_->Gauges().drives[1].failed) ExpectHits({readable[i]});
  }
  EXPECT_TRUE(cache_->Gauges().drives[1].failed);
  Put(Sequence(2, 6));
  Drain();
  ExpectOnDisk(Sequence(2, 6), true);
}

TEST_F(CacheDrivesTest, ADrainWaitsOutThePauseAfterARefusedWrite) {
  CacheSetup setup{.pool_blocks = 32, .host_slots = 32, .disk_slots = 64, .disk_files = 2};
  setup.options.max_disk_write_bytes = 1;
  Start(setup);
  Put(Sequence(1, 24));
  file(1).ScriptWrites({WriteFault::kEio});
  bool drained = false;
  cache_->Drain([&] { drained = true; });
  Settle();
  EXPECT_FALSE(drained);
  AdvanceAndTick(kMinuteMs);
  EXPECT_TRUE(drained);
  EXPECT_EQ(cache_->Gauges().disk_blocks, 23u);
  EXPECT_EQ(Drops(Tier::kDisk, DropReason::kWriteError), 1u);
}

TEST_F(CacheDrivesTest, ADrainWaitsOutAPauseAfterManyWritesAtOnceWereRefused) {
  CacheSetup setup{.pool_blocks = 32, .host_slots = 32, .disk_slots = 64};
  setup.options.max_disk_write_bytes = 6 * kBlockBytes;
  Start(setup);
  Put(Sequence(1, 24));
  using enum WriteFault;
  file().ScriptWrites({kNone, kEio, kEio, kEio, kEio, kEio, kEio});  // the first is a slab's header
  bool drained = false;
  cache_->Drain([&] { drained = true; });
  Settle();
  EXPECT_FALSE(drained);
  for (int i = 0; i < 2; ++i) AdvanceAndTick(kMinuteMs);
  EXPECT_TRUE(drained);
  EXPECT_EQ(cache_->Gauges().disk_blocks, 18u);
}

TEST_F(CacheDrivesTest, ADrainEndsWhereEveryWriteIsRefused) {
  CacheSetup setup{.pool_blocks = 32, .host_slots = 32, .disk_slots = 64};
  setup.options.max_disk_write_bytes = 1;
  Start(setup);
  Put(Sequence(1, 24));
  file().SetFaultRates({.write_enospc = 1.0});
  bool drained = false;
  cache_->Drain([&] { drained = true; });
  Settle();
  for (int i = 0; i < 4; ++i) AdvanceAndTick(kMinuteMs);
  EXPECT_TRUE(drained);
  EXPECT_EQ(Drops(Tier::kDisk, DropReason::kWriteError), 24u);
}

TEST_F(CacheDrivesTest, ADriveThatIsFullAtASyncIsNotGivenUp) {
  StartWithTwo();
  file(1).FailNextSyncs(1, "ENOSPC");
  Put(Sequence(1, 6));
  cache_->Drain([] {});
  Settle();
  AdvanceAndTick(kMinuteMs);
  EXPECT_EQ(cache_->stats().index_errors, 1u);
  EXPECT_FALSE(cache_->Gauges().drives[1].failed);
  Put(Sequence(2, 6));
  Drain();
  EXPECT_EQ(On(1, Sequence(2, 6)).size(), 3u);
}

TEST_F(CacheDrivesTest, ADriveThatIsGoneIsGivenUpAtOnce) {
  StartWithTwo();
  Put(Sequence(1, 12));
  DrainAndRestart();
  const Hashes gone = On(1, Sequence(1, 12));
  EXPECT_TRUE(cache_->LoseDrive(1, "deleted", false));
  Settle();
  ExpectOnDisk(gone, false);
  EXPECT_EQ(Drops(Tier::kDisk, DropReason::kDriveLost), gone.size());
  ASSERT_FALSE(machine_->owner.incidents.empty());
  EXPECT_EQ(machine_->owner.incidents.back().kind, IncidentKind::kDriveFailed);
}

// An operator takes out a drive that has failed, in order to replace it.
TEST_F(CacheDrivesTest, TheOthersAreWrittenToAfterADriveThatHadFailedIsGone) {
  StartWithTwo();
  Put(Sequence(1, 12));
  DrainAndRestart();
  EXPECT_TRUE(cache_->LoseDrive(1, "it failed", false));
  EXPECT_TRUE(cache_->LoseDrive(1, "deleted", false));
  Put(Sequence(2, 6));
  Drain();
  ExpectOnDisk(Sequence(2, 6), true);
}

TEST_F(CacheDrivesTest, NothingIsWrittenAfterTheIndexIsGone) {
  StartWithTwo();
  EXPECT_FALSE(cache_->LoseDrive(0, "deleted", true));
  Put(Sequence(1, 6));
  Drain();
  ExpectOnDisk(Sequence(1, 6), false);
}

// A slot that is being freed there counts no more for those who wait for one.
TEST_F(CacheDrivesTest, NoBlockWaitsForASlotThatWasBeingFreedOnADriveThatFailed) {
  Start({.pool_blocks = 16, .host_slots = 16, .disk_slots = 16, .disk_files = 2});
  Put(Sequence(1, 12));
  Drain();
  for (const BlockHash& hash : Sequence(1, 12)) {
    cache_->Evict({pool_.namespace_id, hash}, Tier::kDisk);
  }
  ASSERT_TRUE(cache_->LoseDrive(0, "deleted", false));
  Settle();
  for (uint64_t stream = 2; stream < 6; ++stream) Put(Sequence(stream, 8));
  Drain();
  EXPECT_TRUE(cache_->Idle());
  EXPECT_GT(cache_->Gauges().disk_blocks, 0u);
}

TEST_F(CacheDrivesTest, TheLastDriveIsNeverGivenUp) {
  StartWithTwo();
  ASSERT_TRUE(cache_->LoseDrive(0, "deleted", false));
  EXPECT_FALSE(cache_->LoseDrive(1, "deleted", false));
}

TEST_F(CacheDrivesTest, FullDrivesEvictNoMoreThanIsNeededAfterOneWasGivenUp) {
  Start({.pool_blocks = 16, .host_slots = 16, .disk_slots = 32, .disk_files = 2});
  for (uint64_t stream = 1; stream <= 6; ++stream) {
    Put(Sequence(stream, 8));
    Drain();
  }
  ASSERT_TRUE(cache_->LoseDrive(0, "deleted", false));
  Settle();
  for (uint64_t stream = 7; stream <= 12; ++stream) {
    Put(Sequence(stream, 8));
    Drain();
  }
  EXPECT_GE(cache_->Gauges().disk_blocks, 14u);
  ExpectHits(On(1, Sequence(12, 8)));
}

TEST_F(CacheDrivesTest, AnErasureIsNotDoneWhileADriveIsAwayAndEndsWithTheStartThatHasIt) {
  StartWithTwo();
  Put(Sequence(1, 8));
  Drain();
  TakeAway(1);
  CrashAndRestart();
  std::optional<Status> answer;
  cache_->Erase({.tenant = "tenant", .end_hour = UINT32_MAX},
                [&](const EraseReport&, const Status& status) { answer = status; });
  Settle();
  ASSERT_TRUE(answer.has_value());
  ASSERT_FALSE(answer->has_value());
  EXPECT_EQ(answer->error().reason, "drive_away");
  EXPECT_EQ(answer->error().code, ErrorCode::kIoError) << "kvtierctl ends with 3 for kUnavailable";
  BringBack();
  CrashAndRestart();
  Settle();
  ExpectOnDisk(Sequence(1, 8), false);
}

}  // namespace
}  // namespace kvtier
