// SPDX-License-Identifier: Apache-2.0
#include "tiers/index/fsck.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/unit/tiers/disk_fixture.h"
#include "tiers/storage/superblock.h"

namespace kvtier {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class FsckTest : public DiskTest {
 protected:
  Result<FsckReport> TryRun(bool verify_payloads = false, bool rebuild_index = false) {
    return RunFsck({.directories = directories_,
                    .verify_payloads = verify_payloads,
                    .rebuild_index = rebuild_index,
                    .rebuild = Options()});
  }

  FsckReport Run(bool verify_payloads = false, bool rebuild_index = false) {
    auto report = TryRun(verify_payloads, rebuild_index);
    EXPECT_TRUE(report) << report.error().ToString();
    return report ? *std::move(report) : FsckReport{};
  }

  // Expects that `fault` was found `count` times, described, and nothing else was found.
  static void ExpectOnly(const FsckReport& report, FsckFault fault, uint64_t count = 1) {
    for (int i = 0; i < kFsckFaultCount; ++i) {
      const auto each = static_cast<FsckFault>(i);
      EXPECT_EQ(report.count(each), each == fault ? count : 0) << FsckFaultName(each);
    }
    EXPECT_EQ(report.clean(), IsHarmless(fault));
    ASSERT_EQ(report.findings.size(), count);
    EXPECT_EQ(report.findings[0].fault, fault);
    EXPECT_FALSE(report.findings[0].detail.empty());
  }

  void CorruptSuperblocks(uint32_t file) {
    std::fstream stream(FilePath(file), std::ios::in | std::ios::out | std::ios::binary);
    for (uint64_t page = 0; page < 2; ++page) {
      stream.seekp(static_cast<std::streamoff>(page * kSuperblockBytes + 32));
      stream << "not what was written";
    }
  }
};

TEST_F(FsckTest, AHealthyDiskIsClean) {
  const std::vector<DiskBlock> blocks = Fill(20);
  WriteIndex(blocks);
  const FsckReport report = Run(true);
  EXPECT_TRUE(report.clean());
  EXPECT_TRUE(report.findings.empty());
  EXPECT_EQ(report.index_state, IndexState::kGood);
  EXPECT_EQ(report.set_uuid, set_uuid_);
  EXPECT_EQ(report.geometry, geometry_);
  EXPECT_EQ(report.entries, 20u);
  EXPECT_EQ(report.entries_good, 20u);
  EXPECT_EQ(report.blocks, 20u);
  EXPECT_EQ(report.slots, kSlabs * kSlotsPerSlab);
  EXPECT_EQ(report.payloads_checked, 20u);
  EXPECT_EQ(report.payload_bytes_checked, 20 * kPayloadBytes);
}

TEST_F(FsckTest, ChangesNothingUnlessTold) {
  WriteIndex(Fill(20));
  Run(true);
  DiskFiles files = OpenFiles();
  EXPECT_EQ(StartIndex(directories_, files, Options(), &loop_)->found, IndexState::kGood);
}

TEST_F(FsckTest, ADiskInUseIsRefused) {
  const DiskFiles files = OpenFiles();
  const auto report = TryRun();
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, ErrorCode::kAlreadyExists);
  EXPECT_EQ(report.error().reason, "directory_locked");
}

TEST_F(FsckTest, ADirectoryWithoutADiskTierIsRefusedAndLeftAlone) {
  const fs::path missing = temporary_.path() / "missing";
  const auto none = RunFsck({.directories = {missing}});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().reason, "no_disk_directory");
  EXPECT_FALSE(fs::exists(missing));
  fs::create_directory(temporary_.path() / "empty");
  const auto empty = RunFsck({.directories = {temporary_.path() / "empty"}});
  ASSERT_FALSE(empty);
  EXPECT_EQ(empty.error().reason, "no_disk_files");
}

TEST_F(FsckTest, AMissingIndexIsOneFaultAndNotManyOrphans) {
  Fill(20);
  const FsckReport report = Run();
  ExpectOnly(report, FsckFault::kIndexUnusable);
  EXPECT_EQ(report.index_state, IndexState::kMissing);
  EXPECT_THAT(report.findings[0].detail, HasSubstr("missing"));
  EXPECT_EQ(report.blocks, 20u);
}

TEST_F(FsckTest, AnEntryWhoseSlotIsEmptyIsMissing) {
  std::vector<DiskBlock> blocks = Fill(20);
  DiskBlock ghost = blocks[0];
  ghost.record.key.hash = TestHash(2, 2);
  ghost.record.location = Slot(7, 7);
  blocks.push_back(ghost);
  WriteIndex(blocks);
  const FsckReport report = Run();
  ExpectOnly(report, FsckFault::kEntryMissing);
  EXPECT_THAT(report.findings[0].detail, HasSubstr(TestHash(2, 2).Hex()));
  EXPECT_EQ(report.entries_good, 20u);
}

TEST_F(FsckTest, AnEntryWhoseHeaderIsDamagedIsMissing) {
  const std::vector<DiskBlock> blocks = Fill(20);
  WriteIndex(blocks);
  Flip(blocks[3].header.address, 100);
  ExpectOnly(Run(), FsckFault::kEntryMissing);
}

TEST_F(FsckTest, AnEntryWhoseSlotHoldsAnotherBlockIsAMismatch) {
  const std::vector<DiskBlock> blocks = Fill(20);
  WriteIndex(blocks);
  SlotHeader other_hash = blocks[3].header;
  other_hash.hash = TestHash(2, 2);
  WriteBlockAt(other_hash.address, other_hash);
  SlotHeader other_tenant = blocks[4].header;
  other_tenant.tenant = "uid:1";
  WriteBlockAt(other_tenant.address, other_tenant);
  SlotHeader other_model = blocks[5].header;
  other_model.model = TestHash(101, 0);
  WriteBlockAt(other_model.address, other_model);
  ExpectOnly(Run(), FsckFault::kEntryMismatch, 3);
}

TEST_F(FsckTest, AnEntryOfAnEarlierWriteIsStale) {
  const std::vector<DiskBlock> blocks = Fill(20);
  WriteIndex(blocks);
  SlotHeader rewritten = blocks[3].header;
  rewritten.generation += 10;
  WriteBlockAt(rewritten.address, rewritten);
  ExpectOnly(Run(), FsckFault::kEntryStale);
}

TEST_F(FsckTest, EntriesThatNoSlotBeginsAtAreOutOfPlace) {
  std::vector<DiskBlock> blocks = Fill(20);
  for (const uint64_t offset : {SlabStart(2).offset, Slot(2, 3).offset + 4096,
                                geometry_.slab_bytes * kMaxDrives * kSlabs + 4096}) {
    DiskBlock lost = blocks[0];
    lost.record.key.hash = TestHash(3, offset);
    lost.record.location = DiskLocation{offset};
    blocks.push_back(lost);
  }
  WriteIndex(blocks);
  ExpectOnly(Run(), FsckFault::kEntryOutOfPlace, 3);
}

TEST_F(FsckTest, TwoEntriesOfOneSlotCollide) {
  std::vector<DiskBlock> blocks = Fill(20);
  DiskBlock second = blocks[5];
  second.record.key.hash = TestHash(2, 2);
  blocks.push_back(second);
  WriteIndex(blocks);
  const FsckReport report = Run();
  EXPECT_EQ(report.count(FsckFault::kEntryCollision), 1u);
  EXPECT_FALSE(report.clean());
}

TEST_F(FsckTest, ABlockThatTheIndexDoesNotNameIsAHarmlessOrphan) {
  std::vector<DiskBlock> blocks = Fill(20);
  blocks.erase(blocks.begin() + 5);
  WriteIndex(blocks);
  const FsckReport report = Run();
  ExpectOnly(report, FsckFault::kOrphanSlot);
  EXPECT_THAT(report.findings[0].detail, HasSubstr(TestHash(1, 5).Hex()));
}

TEST_F(FsckTest, AnExpiredBlockIsNoOrphan) {
  Fill(1);
  WriteIndex({});
  SlotHeader old = Header(0, 0, 0);
  old.created_s = old.last_use_s = kNowS - 7 * 24 * 60 * 60;
  WriteBlockAt(old.address, old);
  const FsckReport report = Run();
  EXPECT_TRUE(report.findings.empty());
  EXPECT_EQ(report.blocks_expired, 1u);
}

TEST_F(FsckTest, AHalfWrittenSlotThatTheIndexDoesNotNameIsHarmless) {
  std::vector<DiskBlock> blocks = Fill(20);
  Flip(blocks[19].header.address, 100);
  blocks.pop_back();
  WriteIndex(blocks);
  ExpectOnly(Run(), FsckFault::kSlotDamaged);
}

TEST_F(FsckTest, ADamagedSlabHeaderIsAFault) {
  std::vector<DiskBlock> blocks = Fill(20);
  Flip(SlabStart(7), 40);
  WriteIndex(blocks);
  ExpectOnly(Run(), FsckFault::kSlabHeader);
}

TEST_F(FsckTest, ACorruptPayloadIsFoundOnlyWhenPayloadsAreVerified) {
  const std::vector<DiskBlock> blocks = Fill(20);
  WriteIndex(blocks);
  Flip(blocks[11].header.address, kSlotHeaderBytes + kPayloadBytes - 1);
  EXPECT_TRUE(Run().clean());
  const FsckReport report = Run(true);
  ExpectOnly(report, FsckFault::kPayloadCorrupt);
  EXPECT_EQ(report.payloads_checked, 20u);
}

TEST_F(FsckTest, ManyFaultsAreAllCountedAndTheFirstDescribed) {
  const std::vector<DiskBlock> blocks = Fill(60);
  WriteIndex(blocks);
  for (const DiskBlock& block : blocks) Flip(block.header.address, 100);
  const FsckReport report = Run();
  EXPECT_EQ(report.count(FsckFault::kEntryMissing), 60u);
  EXPECT_EQ(report.findings.size(), FsckReport::kMaxFindingsPerFault);
}

TEST_F(FsckTest, OneDamagedSuperblockPageIsNoFault) {
  WriteIndex(Fill(20));
  std::fstream stream(FilePath(0), std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(static_cast<std::streamoff>((epoch_ + 1) % 2 * kSuperblockBytes + 32));
  stream << "an interrupted start";
  stream.close();
  EXPECT_TRUE(Run().clean());
}

TEST_F(FsckTest, ADriveWithoutASuperblockIsAFaultAndTheOthersAreChecked) {
  WriteIndex(Fill(20));
  CorruptSuperblocks(1);
  const FsckReport report = Run();
  ExpectOnly(report, FsckFault::kSuperblock, 2);
  EXPECT_EQ(report.entries_good, 12u);
}

TEST_F(FsckTest, FilesWithoutSuperblocksLeaveNothingToCheck) {
  WriteIndex(Fill(20));
  CorruptSuperblocks(0);
  CorruptSuperblocks(1);
  ExpectOnly(Run(), FsckFault::kSuperblock, 2);
  const auto rebuilt = TryRun(false, true);
  ASSERT_FALSE(rebuilt);
  EXPECT_EQ(rebuilt.error().reason, "no_superblock");
}

TEST_F(FsckTest, FilesInEachOthersPlaceAreAsGood) {
  WriteIndex(Fill(20));
  fs::rename(FilePath(0), directory_ / "aside");
  fs::rename(FilePath(1), FilePath(0));
  fs::rename(directory_ / "aside", FilePath(1));
  EXPECT_TRUE(Run().clean());
}

TEST_F(FsckTest, AMissingFileIsAFaultAndTheOthersAreChecked) {
  WriteIndex(Fill(20));
  fs::remove(FilePath(1));
  const FsckReport report = Run();
  ExpectOnly(report, FsckFault::kSuperblock);
  EXPECT_EQ(report.entries_good, 12u);
}

TEST_F(FsckTest, SoIsAMissingDirectory) {
  WriteIndex(Fill(20));
  fs::rename(directories_[1], temporary_.path() / "aside");
  ExpectOnly(Run(), FsckFault::kSuperblock, 2);
}

TEST_F(FsckTest, ATruncatedFileIsAFaultAndTheRestIsChecked) {
  WriteIndex(Fill(8));
  fs::resize_file(FilePath(1), fs::file_size(FilePath(1)) - kSlabBytes);
  const FsckReport report = Run();
  ExpectOnly(report, FsckFault::kSuperblock);
  EXPECT_EQ(report.entries_good, 8u);
}

TEST_F(FsckTest, RebuildMakesAnIndexThatTheNextStartTakes) {
  const std::vector<DiskBlock> blocks = Fill(20);
  const FsckReport report = Run(false, true);
  EXPECT_EQ(report.index_state, IndexState::kMissing);
  ASSERT_TRUE(report.rebuilt);
  const FsckReport after = Run();
  EXPECT_TRUE(after.clean());
  EXPECT_EQ(after.entries_good, 20u);
  const DiskFiles files = OpenFiles();
  const auto started = StartIndex(directories_, files, Options(), &loop_);
  ASSERT_TRUE(started);
  EXPECT_EQ(started->found, IndexState::kGood);
  ExpectSameContents(started->snapshot, SnapshotOf(blocks));
}

TEST_F(FsckTest, RebuildCuresEveryFaultOfTheIndex) {
  std::vector<DiskBlock> blocks = Fill(20);
  std::vector<DiskBlock> wrong = blocks;
  wrong[1].record.location = Slot(7, 7);
  wrong[2].record.generation += 1;
  wrong[3].record.key.hash = TestHash(9, 9);
  WriteIndex(wrong);
  EXPECT_FALSE(Run(false, true).clean());
  const FsckReport after = Run(true);
  EXPECT_TRUE(after.findings.empty());
  EXPECT_EQ(after.entries_good, 20u);
}

}  // namespace
}  // namespace kvtier
