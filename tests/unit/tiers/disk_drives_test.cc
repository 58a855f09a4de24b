// SPDX-License-Identifier: Apache-2.0
// Several drives at a start: added, away, replaced, exchanged, copied, and of another set.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <utility>

#include "base/posix.h"
#include "tests/unit/tiers/disk_files_fixture.h"

namespace kvtier {
namespace {

using DiskDrivesTest = DiskFilesTest;

TEST_F(DiskDrivesTest, ADirectoryAddedIsANewDriveAndTheOthersStay) {
  UseOne();
  Digest128 uuid;
  {
    const DiskFiles files = OpenOrDie();
    uuid = files.set_uuid;
    ASSERT_TRUE(Write(files, On(0), 7));
  }
  options_.directories.push_back(directory_.path() / "second");
  options_.bytes *= 2;
  const DiskFiles files = OpenOrDie();
  EXPECT_FALSE(files.created);
  EXPECT_FALSE(files.degraded);
  EXPECT_EQ(files.set_uuid, uuid);
  ASSERT_EQ(files.drives.size(), 2u);
  EXPECT_EQ(files.drives[0].found_epoch, 1u);
  EXPECT_EQ(files.drives[1].found_epoch, 0u);
  EXPECT_EQ(files.geometry, (DiskGeometry{kSlabBytes, 2, 10}));
  EXPECT_EQ(ReadByte(files, On(0)), 7);
  EXPECT_EQ(ReadByte(files, On(1)), 0);
}

TEST_F(DiskDrivesTest, ADriveThatIsAwayIsLeftOutAndServesAgainWhenItIsBack) {
  for (const int away : {0, 1}) {
    {
      const DiskFiles files = OpenOrDie();
      ASSERT_TRUE(Write(files, On(0), 1));
      ASSERT_TRUE(Write(files, On(1), 2));
    }
    MoveAside(away);
    {
      const DiskFiles files = OpenOrDie();
      EXPECT_TRUE(files.degraded);
      EXPECT_FALSE(files.created);
      ASSERT_EQ(files.left_out.size(), 1u);
      EXPECT_EQ(files.left_out[0].why.reason, "ENOENT");
      EXPECT_EQ(files.drives_away, 1u << away);
      EXPECT_EQ(files.geometry.slabs(), 5u) << "its share is kept for it";
      EXPECT_EQ(ReadByte(files, On(away == 0 ? 1 : 0)), away == 0 ? 2 : 1);
    }
    MoveBack(away);
    const DiskFiles files = OpenOrDie();
    EXPECT_FALSE(files.degraded);
    EXPECT_EQ(ReadByte(files, On(0)), 1);
    EXPECT_EQ(ReadByte(files, On(1)), 2);
  }
}

// The kernel holds a killed process's files so until its last I/O has ended.
TEST_F(DiskDrivesTest, AStartFailsWhenItsPatienceWithTheLastIoOfAllDrivesIsOver) {
  { const DiskFiles files = OpenOrDie(); }
  options_.locks_until = std::chrono::steady_clock::now();
  for (const int busy : {0, 1}) {
    const UniqueFd held(::open(FilePath(busy).c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_EQ(::flock(held.get(), LOCK_EX | LOCK_NB), 0);
    const Error error = OpenError();
    EXPECT_EQ(error.reason, "last_io_under_way");
    EXPECT_TRUE(error.context.find(FilePath(busy).native()) != std::string::npos) << error.context;
  }
  EXPECT_EQ(OpenOrDie().drives.size(), 2u) << "free locks need no patience";
}

TEST_F(DiskDrivesTest, ADriveTakenFromTheListIsAwayUntilItsBlocksHaveExpired) {
  { const DiskFiles files = OpenOrDie(); }
  UseOne();
  {
    const DiskFiles files = OpenOrDie();
    EXPECT_TRUE(files.degraded);
    EXPECT_EQ(files.drives_away, 2u);
  }
  options_.now_ms += options_.forget_after_ms + 1000;
  EXPECT_FALSE(OpenOrDie().degraded);
}

TEST_F(DiskDrivesTest, ADriveThatTheLastStartHadIsAwayHoweverLongThatServed) {
  { const DiskFiles files = OpenOrDie(); }
  UseOne();
  options_.now_ms += 10 * options_.forget_after_ms;
  EXPECT_EQ(OpenOrDie().drives_away, 2u);
  options_.now_ms += options_.forget_after_ms - 1000;
  EXPECT_EQ(OpenOrDie().drives_away, 2u);
  options_.now_ms += 2000;
  EXPECT_EQ(OpenOrDie().drives_away, 0u) << "blocks do not live so long";
}

TEST_F(DiskDrivesTest, ADriveSeenInTheFutureIsForgottenAsAnyOther) {
  options_.now_ms += 10 * options_.forget_after_ms;
  { const DiskFiles files = OpenOrDie(); }
  UseOne();
  options_.now_ms -= 10 * options_.forget_after_ms;
  EXPECT_EQ(OpenOrDie().drives_away, 2u);
  options_.now_ms += options_.forget_after_ms + 1000;
  EXPECT_EQ(OpenOrDie().drives_away, 0u);
}

TEST_F(DiskDrivesTest, DrivesAreKnownByTheirFilesAndNotByTheOrderOfTheDirectories) {
  {
    const DiskFiles files = OpenOrDie();
    ASSERT_TRUE(Write(files, On(0), 1));
    ASSERT_TRUE(Write(files, On(1), 2));
  }
  std::swap(options_.directories[0], options_.directories[1]);
  {
    const DiskFiles files = OpenOrDie();
    EXPECT_EQ(ReadByte(files, On(0)), 1);
    EXPECT_EQ(ReadByte(files, On(1)), 2);
  }
  // As when two drives are mounted in each other's place.
  MoveAside(0);
  std::filesystem::rename(options_.directories[1], options_.directories[0]);
  std::filesystem::rename(options_.directories[0].native() + ".aside", options_.directories[1]);
  const DiskFiles files = OpenOrDie();
  EXPECT_EQ(ReadByte(files, On(0)), 1);
  EXPECT_EQ(ReadByte(files, On(1)), 2);
}

TEST_F(DiskDrivesTest, ANewDriveDoesNotTakeTheNumberOfOneThatIsAway) {
  { const DiskFiles files = OpenOrDie(); }
  options_.directories[1] = directory_.path() / "third";
  ::mkdir(options_.directories[1].c_str(), 0700);
  const DiskFiles files = OpenOrDie();
  EXPECT_EQ(files.drives[1].number, 2u);
  EXPECT_EQ(files.drives_away, 2u);
}

TEST_F(DiskDrivesTest, ANewDriveInThePlaceOfOneReplacesIt) {
  { const DiskFiles files = OpenOrDie(); }
  std::filesystem::remove(FilePath(1));
  const DiskFiles files = OpenOrDie();
  EXPECT_FALSE(files.degraded);
  EXPECT_EQ(files.drives[1].number, 1u);
  EXPECT_EQ(files.drives[1].found_epoch, 0u);
}

TEST_F(DiskDrivesTest, ADirectoryOfAnotherSetIsLeftOutAndNotTouched) {
  { const DiskFiles files = OpenOrDie(); }
  DiskFilesOptions other = options_;
  other.directories = {directory_.path() / "third"};
  { ASSERT_TRUE(OpenDiskFiles(other, &loop_)); }
  options_.directories.push_back(other.directories[0]);
  options_.bytes += kMiB + 5 * kSlabBytes;
  {
    const DiskFiles files = OpenOrDie();
    EXPECT_TRUE(files.degraded);
    ASSERT_EQ(files.left_out.size(), 1u);
    EXPECT_EQ(files.left_out[0].why.reason, "foreign_drive");
    EXPECT_NE(files.left_out[0].why.context.find("third"), std::string::npos);
  }
  EXPECT_FALSE(OpenDiskFiles(other, &loop_)->created);
}

TEST_F(DiskDrivesTest, ACopyOfADriveIsLeftOut) {
  { const DiskFiles files = OpenOrDie(); }
  std::filesystem::copy(options_.directories[1], directory_.path() / "third");
  { const DiskFiles files = OpenOrDie(); }
  options_.directories.insert(options_.directories.begin(), directory_.path() / "third");
  options_.bytes += kMiB + 5 * kSlabBytes;
  const DiskFiles files = OpenOrDie();
  ASSERT_EQ(files.left_out.size(), 1u);
  EXPECT_EQ(files.left_out[0].why.reason, "drive_copy");
  EXPECT_EQ(files.left_out[0].directory, options_.directories[0]) << "it is the older one";
}

// The mark of a file that is being emptied cannot be removed, since it is a directory here.
TEST_F(DiskDrivesTest, ADriveThatFailsWhileTheStartWritesToItIsLeftOut) {
  for (const int failing : {0, 1}) {
    {
      const DiskFiles files = OpenOrDie();
      ASSERT_TRUE(Write(files, On(0), 1));
      ASSERT_TRUE(Write(files, On(1), 2));
    }
    const std::filesystem::path mark = options_.directories[failing] / "emptying";
    std::filesystem::create_directory(mark);
    {
      const DiskFiles files = OpenOrDie();
      EXPECT_TRUE(files.degraded);
      ASSERT_EQ(files.left_out.size(), 1u);
      EXPECT_EQ(files.left_out[0].directory, options_.directories[failing]);
      ASSERT_EQ(files.drives.size(), 1u);
      ASSERT_EQ(files.files.size(), 1u);
      EXPECT_EQ(files.drives_away, 1u << failing);
      EXPECT_EQ(files.geometry.slabs(), 5u);
      EXPECT_EQ(ReadByte(files, On(1 - failing)), failing == 0 ? 2 : 1);
    }
    std::filesystem::remove(mark);
    EXPECT_FALSE(OpenOrDie().degraded);
  }
}

TEST_F(DiskDrivesTest, TwoPathsToOneDirectoryAreRefused) {
  std::filesystem::remove(options_.directories[1]);
  std::filesystem::create_directory_symlink(options_.directories[0], options_.directories[1]);
  EXPECT_EQ(OpenError().reason, "same_directory");
}

}  // namespace
}  // namespace kvtier
