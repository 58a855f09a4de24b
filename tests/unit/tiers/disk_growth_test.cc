// SPDX-License-Identifier: Apache-2.0
// The state that a power loss may leave of files that are made or grow. The file system is not
// asked to forget anything: it is enough to see which data has been synced when.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <span>

#include "base/executor.h"
#include "base/result.h"
#include "base/units.h"
#include "tests/fakes/aligned_bytes.h"
#include "tests/fakes/temporary_directory.h"
#include "tiers/storage/disk_files.h"
#include "tiers/storage/disk_set_file.h"
#include "tiers/storage/superblock.h"

namespace kvtier {
namespace {

using SyncWatcher = std::function<void(int fd)>;

// Null but in the tests below. This program's fsync is called instead of the C library's.
SyncWatcher* sync_watcher = nullptr;
// Which fallocate from now on finds the file system full; 0: none. Likewise this program's.
int allocation_that_fails = 0;
// Which fsync from now on fails; 0: none.
int sync_that_fails = 0;

}  // namespace
}  // namespace kvtier

extern "C" int fsync(int fd) {
  if (kvtier::sync_watcher != nullptr) (*kvtier::sync_watcher)(fd);
  if (kvtier::sync_that_fails > 0 && --kvtier::sync_that_fails == 0) {
    errno = EIO;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

// Bytes for which there was room stay in the file, as ext4 does it.
extern "C" int fallocate(int fd, int mode, off_t offset, off_t bytes) {
  const bool fails = kvtier::allocation_that_fails > 0 && --kvtier::allocation_that_fails == 0;
  const off_t room = fails ? bytes - 1 : bytes;
  const auto outcome = static_cast<int>(::syscall(SYS_fallocate, fd, mode, offset, room));
  if (!fails || outcome != 0) return outcome;
  errno = ENOSPC;
  return -1;
}

namespace kvtier {
namespace {

constexpr uint64_t kSlabBytes = 256 * kKiB;
constexpr auto kRecursively =
    std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing;

// The size that the newer superblock of a file speaks of; nothing if there is none.
std::optional<uint64_t> SizeBySuperblock(int fd) {
  const AlignedBytes pages(2 * kSuperblockBytes, 0);
  if (::pread(fd, pages.data(), pages.size(), 0) != static_cast<ssize_t>(pages.size())) return {};
  std::optional<Superblock> newest;
  for (size_t i = 0; i < 2; ++i) {
    const std::span<const std::byte> page(pages.data() + i * kSuperblockBytes, kSuperblockBytes);
    const Result<Superblock> superblock = DecodeSuperblock(page.first<kSuperblockBytes>());
    if (superblock && (!newest || superblock->epoch > newest->epoch)) newest = *superblock;
  }
  if (!newest) return {};
  return newest->file_bytes;
}

std::vector<std::filesystem::path> MakeDirectories(const std::filesystem::path& path) {
  std::vector<std::filesystem::path> directories = {path / "disk", path / "second"};
  for (const auto& directory : directories) std::filesystem::create_directory(directory);
  return directories;
}

class DiskGrowthTest : public ::testing::Test {
 protected:
  DiskGrowthTest() {
    options_.directories = MakeDirectories(directory_.path());
    options_.slab_bytes = kSlabBytes;
    options_.engine = DiskEngine::kPread;
    options_.io.threads = 1;
    sync_watcher = &watcher_;
  }
  ~DiskGrowthTest() override { sync_watcher = nullptr; }

  void Open(uint64_t slabs) {
    options_.bytes = 2 * kMiB + slabs * kSlabBytes;
    ASSERT_TRUE(OpenDiskFiles(options_, &loop_).has_value());
  }

  // Files that serve get sizes, one after the other, of so many slabs each.
  void ResizeOpenFiles(std::initializer_list<uint64_t> sizes) {
    options_.bytes = 2 * kMiB + 8 * kSlabBytes;
    const Result<DiskFiles> files = OpenDiskFiles(options_, &loop_);
    ASSERT_TRUE(files.has_value());
    for (const uint64_t slabs : sizes) {
      for (DiskDrive& drive : *files->opened) {
        ASSERT_TRUE(drive.Resize(slabs, 0));
        EXPECT_EQ(drive.slabs(), slabs);
        EXPECT_EQ(std::filesystem::file_size(drive.directory() / kDiskFileName),
                  kFirstSlabOffset + slabs * kSlabBytes);
      }
    }
  }

  // Without watching.
  void CheckOpens(const std::filesystem::path& path) {
    sync_watcher = nullptr;
    DiskFilesOptions options = options_;
    options.directories = {path / "disk", path / "second"};
    const Result<DiskFiles> files = OpenDiskFiles(options, &loop_);
    EXPECT_TRUE(files.has_value()) << files.error().ToString();
    sync_watcher = &watcher_;
  }

  // At each sync, data that is about to become durable may have become so already, all but the
  // size.
  void Watch(int fd) {
    struct stat status {};
    if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) return;
    const std::optional<uint64_t> told = SizeBySuperblock(fd);
    if (told) ++superblocks_seen_;
    if (told && *told > synced_bytes_[status.st_ino]) ++superblocks_ahead_;
    synced_bytes_[status.st_ino] = static_cast<uint64_t>(status.st_size);
  }

  TestDirectory directory_;
  BlockingLoop loop_;
  DiskFilesOptions options_;
  std::map<ino_t, uint64_t> synced_bytes_;
  int superblocks_seen_ = 0;
  int superblocks_ahead_ = 0;
  SyncWatcher watcher_ = [this](int fd) { Watch(fd); };
};

TEST_F(DiskGrowthTest, NoSuperblockSpeaksOfASizeThatAPowerLossMayTakeBack) {
  Open(4);
  Open(10);
  Open(6);
  Open(12);
  EXPECT_GE(superblocks_seen_, 8);
  EXPECT_EQ(superblocks_ahead_, 0);
}

TEST_F(DiskGrowthTest, NorDoesOneAfterTheFileSystemWasFull) {
  Open(4);
  allocation_that_fails = 2;
  Open(10);
  EXPECT_EQ(allocation_that_fails, 0);
  EXPECT_GE(superblocks_seen_, 4);
  EXPECT_EQ(superblocks_ahead_, 0);
}

TEST_F(DiskGrowthTest, NorDoesOneOfAFileThatIsResizedWhileItServes) {
  ResizeOpenFiles({10, 3, 7, 1});
  EXPECT_GE(superblocks_seen_, 20);
  EXPECT_EQ(superblocks_ahead_, 0);
  CheckOpens(directory_.path());
}

TEST_F(DiskGrowthTest, AResizeThatAPowerLossEndsLeavesASetThatOpens) {
  int checked = 0;
  watcher_ = [&](int fd) {
    struct stat status {};
    if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) return;
    const TestDirectory left;
    std::filesystem::copy(directory_.path(), left.path(), kRecursively);
    CheckOpens(left.path());
    ++checked;
  };
  ResizeOpenFiles({10, 3});
  EXPECT_GE(checked, 14);
}

TEST_F(DiskGrowthTest, AFileWhoseSuperblocksCouldNotAllBeWrittenIsNotCutBelowThese) {
  for (int failure = 1; failure <= 5; ++failure) {
    for (const uint64_t next : {12, 9, 3}) {
      const TestDirectory directory;
      options_.directories = {MakeDirectories(directory.path()).front()};
      options_.bytes = kFirstSlabOffset + 4 * kSlabBytes;
      {
        const Result<DiskFiles> files = OpenDiskFiles(options_, &loop_);
        ASSERT_TRUE(files.has_value());
        DiskDrive& drive = files->opened->front();
        sync_that_fails = failure;
        (void)drive.Resize(10, 0);
        sync_that_fails = 1;
        (void)drive.Resize(next, 0);
        sync_that_fails = 0;
      }
      const Result<DiskFiles> files = OpenDiskFiles(options_, &loop_);
      EXPECT_TRUE(files.has_value()) << failure << " " << next << files.error().ToString();
    }
  }
}

TEST_F(DiskGrowthTest, AFileThatFindsNoRoomWhileItServesGetsWhatThereIs) {
  options_.bytes = 2 * kMiB + 8 * kSlabBytes;
  const Result<DiskFiles> files = OpenDiskFiles(options_, &loop_);
  ASSERT_TRUE(files.has_value());
  DiskDrive& drive = files->opened->front();
  allocation_that_fails = 1;
  ASSERT_TRUE(drive.Resize(10, 0));
  EXPECT_EQ(drive.slabs(), 9u);
  ASSERT_TRUE(drive.Resize(12, UINT64_MAX)) << "the free-space floor leaves nothing";
  EXPECT_EQ(drive.slabs(), 9u);
  EXPECT_EQ(std::filesystem::file_size(drive.directory() / kDiskFileName),
            kFirstSlabOffset + 9 * kSlabBytes);
}

// The state that a power loss leaves of a start that empties the files: at any sync, each file may
// be as it was, or as it is now. The file system has kept names in order.
TEST_F(DiskGrowthTest, ASetThatIsEmptiedCanBeEmptiedAgainAfterAPowerLoss) {
  Open(4);
  TestDirectory before;
  std::filesystem::copy(directory_.path(), before.path(), kRecursively);
  options_.has_keys = [](const auto&) { return Result<bool>(false); };
  int checked = 0;
  watcher_ = [&](int fd) {
    struct stat status {};
    if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) return;
    for (int old_files = 0; old_files < 4; ++old_files) {
      const TestDirectory left;
      std::filesystem::copy(directory_.path(), left.path(), kRecursively);
      for (int i = 0; i < 2; ++i) {
        const std::filesystem::path name =
            std::filesystem::path(i == 0 ? "disk" : "second") / kDiskFileName;
        if ((old_files >> i & 1) == 0) continue;
        std::filesystem::copy_file(before.path() / name, left.path() / name,
                                   std::filesystem::copy_options::overwrite_existing);
      }
      CheckOpens(left.path());
      ++checked;
    }
  };
  Open(4);
  EXPECT_GE(checked, 16);
}

}  // namespace
}  // namespace kvtier
