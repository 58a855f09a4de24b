// SPDX-License-Identifier: Apache-2.0
#include "tiers/storage/disk_files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/executor.h"
#include "base/posix.h"
#include "base/result.h"
#include "tests/fakes/aligned_bytes.h"
#include "tests/fakes/temporary_directory.h"
#include "tests/unit/tiers/disk_files_fixture.h"
#include "tiers/storage/disk_set_file.h"
#include "tiers/storage/superblock.h"

namespace kvtier {
namespace {

TEST_F(DiskFilesTest, CreatesPrivatePreallocatedFilesWithinTheCap) {
  const DiskFiles files = OpenOrDie();
  EXPECT_TRUE(files.created);
  EXPECT_FALSE(files.degraded);
  EXPECT_EQ(files.epoch, 1u);
  EXPECT_EQ(files.geometry, (DiskGeometry{kSlabBytes, 2, 10}));
  ASSERT_EQ(files.files.size(), 2u);
  EXPECT_EQ(files.files[0]->engine(), "pread");
  uint64_t total = 0;
  for (int i = 0; i < 2; ++i) {
    struct stat status {};
    ASSERT_EQ(::stat(FilePath(i).c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600u);
    EXPECT_EQ(static_cast<uint64_t>(status.st_size), files.files[static_cast<size_t>(i)]->bytes());
    EXPECT_GE(status.st_blocks * 512, status.st_size) << "preallocated";
    total += static_cast<uint64_t>(status.st_size);
  }
  EXPECT_LE(total, options_.bytes);
  struct stat status {};
  ASSERT_EQ(::stat(options_.directories[0].c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
}

TEST_F(DiskFilesTest, DrivesHaveEqualShares) {
  options_.bytes = 2 * kMiB + 11 * kSlabBytes + 4096;
  EXPECT_EQ(OpenOrDie().geometry, (DiskGeometry{kSlabBytes, 2, 10}));
}

TEST_F(DiskFilesTest, ReopeningKeepsContentsAndBeginsANewEpoch) {
  const DiskLocation last{(4 * kMaxDrives + 2) * kSlabBytes - 4096};
  Digest128 uuid;
  {
    const DiskFiles files = OpenOrDie();
    uuid = files.set_uuid;
    ASSERT_TRUE(Write(files, DiskLocation{0}, 1));
    ASSERT_TRUE(Write(files, last, 2));
  }
  for (uint64_t epoch = 2; epoch < 5; ++epoch) {
    const DiskFiles files = OpenOrDie();
    EXPECT_FALSE(files.created);
    EXPECT_EQ(files.epoch, epoch);
    EXPECT_EQ(files.set_uuid, uuid);
    EXPECT_EQ(ReadByte(files, DiskLocation{0}), 1);
    EXPECT_EQ(ReadByte(files, last), 2);
  }
}

TEST_F(DiskFilesTest, ASecondDaemonIsToldWhoHoldsTheDirectory) {
  const DiskFiles files = OpenOrDie();
  const Error error = OpenError();
  EXPECT_EQ(error.code, ErrorCode::kAlreadyExists);
  EXPECT_EQ(error.reason, "directory_locked");
  EXPECT_NE(error.context.find("process " + std::to_string(::getpid())), std::string::npos)
      << error.context;
}

// The kernel holds on to a killed daemon's lock until its last disk I/O has ended.
TEST_F(DiskFilesTest, TheLockOfAProcessThatIsGoneIsWaitedFor) {
  { const DiskFiles files = OpenOrDie(); }
  const std::filesystem::path path = options_.directories[0] / "lock";
  const UniqueFd lock(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(OpenError().reason, "directory_locked");  // its writer, this process, lives
  const auto patience = std::chrono::steady_clock::now() - start;

  const pid_t gone = ::fork();
  if (gone == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(gone, nullptr, 0), gone);
  std::ofstream(path) << gone << "\n";
  auto opened = std::async(std::launch::async, [this] { return OpenOrDie().epoch; });
  EXPECT_EQ(opened.wait_for(2 * patience), std::future_status::timeout);
  ASSERT_EQ(::flock(lock.get(), LOCK_UN), 0);
  EXPECT_EQ(opened.get(), 2u);
}

// A service manager, or a container's first process, may take its time to ask for the exit code.
TEST_F(DiskFilesTest, TheLockOfAKilledProcessIsWaitedForBeforeItsParentHasAsked) {
  { const DiskFiles files = OpenOrDie(); }
  const std::filesystem::path path = options_.directories[0] / "lock";
  const UniqueFd lock(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);
  const pid_t killed = ::fork();
  if (killed == 0) ::_exit(0);
  siginfo_t ended{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(killed), &ended, WEXITED | WNOWAIT), 0);
  std::ofstream(path) << killed << "\n";
  auto opened = std::async(std::launch::async, [this] { return OpenOrDie().epoch; });
  // Twice as long as a living process is waited for.
  EXPECT_EQ(opened.wait_for(std::chrono::seconds(1)), std::future_status::timeout);
  ASSERT_EQ(::flock(lock.get(), LOCK_UN), 0);
  EXPECT_EQ(opened.get(), 2u);
  ::waitpid(killed, nullptr, 0);
}

// The process left of the daemon is the kernel's stand-in: an open file that a request uses lasts
// as long as the request, and is the one that the daemon has locked.
TEST_F(DiskFilesTest, TheLastIoOfAKilledDaemonIsWaitedFor) {
  KilledDaemon io = KillDaemonBut("second/blocks.kvt");
  auto opened = std::async(std::launch::async, [this] { return OpenOrDie().epoch; });
  // Twice as long as a living process is waited for.
  EXPECT_EQ(opened.wait_for(std::chrono::seconds(1)), std::future_status::timeout);
  io.End();
  EXPECT_EQ(opened.get(), 2u);
}

// It may take a second and more to unpin the buffers registered with it.
TEST_F(DiskFilesTest, TheRingOfAKilledDaemonIsNotWaitedFor) {
  options_.engine = DiskEngine::kUring;
  const KilledDaemon ring = KillDaemonBut("anon_inode:[io_uring]");
  const Result<DiskFiles> files = OpenDiskFiles(options_, &loop_);
  ASSERT_TRUE(files) << files.error().ToString();
  EXPECT_EQ(files->epoch, 2u);
}

TEST_F(DiskFilesTest, TheLockGoesWithItsHolder) {
  { const DiskFiles files = OpenOrDie(); }
  EXPECT_EQ(OpenOrDie().epoch, 2u);
}

TEST_F(DiskFilesTest, OpensAgainAtOnceWithEitherEngine) {
  for (const DiskEngine engine : {DiskEngine::kAuto, DiskEngine::kPread}) {
    options_.engine = engine;
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(Write(OpenOrDie(), DiskLocation{0}, 1));
  }
}

TEST_F(DiskFilesTest, OpensAgainAfterAKilledProcessWithWritesUnderWay) {
  options_.engine = DiskEngine::kAuto;
  options_.bytes = 2 * kMiB + 64 * kSlabBytes;
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const DiskFiles files = OpenOrDie();
    const AlignedBytes bytes(kSlabBytes, 5);
    for (uint64_t i = 0; i < 64; ++i) {
      const DiskLocation slab = files.geometry.SlabStart(*files.geometry.SlabInTurn(i));
      files.files[files.geometry.FileOf(slab)]->Write(files.geometry.OffsetInFile(slab),
                                                      bytes.Slice(0, kSlabBytes), [](Status) {});
    }
    KVT_CHECK(::write(ready[1], "x", 1) == 1);
    ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(OpenOrDie().epoch, 2u);
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_F(DiskFilesTest, GrowsAndCutsFilesWhenTheCapChanges) {
  const DiskLocation kept{(kMaxDrives + 1) * kSlabBytes};
  {
    const DiskFiles files = OpenOrDie();
    ASSERT_TRUE(Write(files, kept, 3));
  }
  options_.bytes = 2 * kMiB + 16 * kSlabBytes;
  {
    const DiskFiles files = OpenOrDie();
    EXPECT_EQ(files.geometry.slabs(), 16u);
    EXPECT_EQ(files.notes.size(), 2u);
    EXPECT_EQ(ReadByte(files, kept), 3);
    EXPECT_EQ(ReadByte(files, DiskLocation{7 * kMaxDrives * kSlabBytes}), 0);
  }
  options_.bytes = 2 * kMiB + 4 * kSlabBytes;
  const DiskFiles files = OpenOrDie();
  EXPECT_EQ(files.geometry.slabs(), 4u);
  EXPECT_EQ(ReadByte(files, kept), 3);
  EXPECT_EQ(std::filesystem::file_size(FilePath(0)), kMiB + 2 * kSlabBytes);
}

TEST_F(DiskFilesTest, AnotherSlabSizeNeedsEmptyFiles) {
  const Digest128 uuid = OpenOrDie().set_uuid;
  options_.slab_bytes = 2 * kSlabBytes;
  const Error error = OpenError();
  EXPECT_EQ(error.code, ErrorCode::kWrongState);
  EXPECT_EQ(error.reason, "slab_bytes_changed");
  EXPECT_NE(error.context.find("slab_bytes = 262144, configured is 524288"), std::string::npos)
      << error.context;
  EXPECT_NE(error.context.find("truncate -s 0 " + FilePath(0).native()), std::string::npos);

  EmptyFiles();
  const DiskFiles files = OpenOrDie();
  EXPECT_TRUE(files.created);
  EXPECT_NE(files.set_uuid, uuid);
  EXPECT_EQ(files.epoch, 1u);
}

TEST_F(DiskFilesTest, EmptiedFilesReadAsZeros) {
  {
    const DiskFiles files = OpenOrDie();
    ASSERT_TRUE(Write(files, DiskLocation{0}, 7));
  }
  EmptyFiles();
  options_.slab_bytes = 2 * kSlabBytes;
  EXPECT_EQ(ReadByte(OpenOrDie(), DiskLocation{0}), 0);
}

TEST_F(DiskFilesTest, ATruncatedFileIsNamedAndLeftOut) {
  { const DiskFiles files = OpenOrDie(); }
  std::filesystem::resize_file(FilePath(0), kMiB);
  EXPECT_EQ(OpenOrDie().left_out.at(0).why.reason, "file_truncated");
  UseOne();
  EXPECT_EQ(OpenError().reason, "file_truncated");
}

TEST_F(DiskFilesTest, OneDamagedSuperblockPageFallsBackToTheOther) {
  { const DiskFiles files = OpenOrDie(); }
  { const DiskFiles files = OpenOrDie(); }
  // Epoch 2 is in page 0, epoch 1 in page 1, since a new file has epoch 0 first.
  Overwrite(0, 40, "damage");
  Overwrite(1, 40, "damage");
  EXPECT_EQ(OpenOrDie().epoch, 2u);
}

TEST_F(DiskFilesTest, SuperblocksDamagedBeyondRepairNeedEmptyFiles) {
  UseOne();
  { const DiskFiles files = OpenOrDie(); }
  Overwrite(0, 40, "damage");
  Overwrite(0, 4096 + 40, "damage");
  const Error error = OpenError();
  EXPECT_EQ(error.code, ErrorCode::kCorrupt);
  EXPECT_EQ(error.reason, "bad_superblock");
  EmptyFiles();
  EXPECT_TRUE(OpenOrDie().created);
}

TEST_F(DiskFilesTest, ACreationThatWasCutOffIsStartedAfresh) {
  { const DiskFiles files = OpenOrDie(); }
  // As if the first start had ended before the superblocks of epoch 1.
  Overwrite(0, 4096, std::string(4096, '\0'));
  std::filesystem::remove(FilePath(1));
  const DiskFiles files = OpenOrDie();
  EXPECT_TRUE(files.created);
  EXPECT_EQ(files.epoch, 1u);
}

TEST_F(DiskFilesTest, StartsWithWhatFitsAndSaysSo) {
  // Two files of four slabs at most.
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit limit{kMiB + 4 * kSlabBytes, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  options_.bytes = 2 * kMiB + 100 * kSlabBytes;
  const DiskFiles files = OpenOrDie();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_TRUE(files.degraded);
  EXPECT_EQ(files.geometry.slabs(), 8u);
  ASSERT_EQ(files.notes.size(), 2u);
  EXPECT_NE(files.notes[0].find("has room for 1.0 MiB of the 12.5 MiB configured"),
            std::string::npos)
      << files.notes[0];
}

TEST_F(DiskFilesTest, AnUnreachableFreeSpaceFloorIsAnError) {
  options_.free_floor_bytes = uint64_t{1} << 60;
  const Error error = OpenError();
  EXPECT_EQ(error.code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(error.reason, "disk_full");
}

TEST_F(DiskFilesTest, RefusesADirectoryOfSomebodyElse) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a directory away";
  ASSERT_EQ(::chown(options_.directories[0].c_str(), 12345, 12345), 0);
  EXPECT_EQ(OpenOrDie().left_out.at(0).why.reason, "directory_owner");
  UseOne();
  const Error error = OpenError();
  EXPECT_EQ(error.code, ErrorCode::kPermissionDenied);
  EXPECT_EQ(error.reason, "directory_owner");
}

TEST_F(DiskFilesTest, ClosesADirectoryThatWasOpenToOthers) {
  ASSERT_EQ(::chmod(options_.directories[0].c_str(), 0755), 0);
  const DiskFiles files = OpenOrDie();
  EXPECT_EQ(files.notes.size(), 1u);
  struct stat status {};
  ASSERT_EQ(::stat(options_.directories[0].c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
}

TEST_F(DiskFilesTest, AnImpossibleDirectoryIsAnErrorByErrno) {
  UseOne();
  options_.directories[0] = directory_.path() / "missing" / "disk";
  EXPECT_EQ(OpenError().reason, "ENOENT");
}

TEST_F(DiskFilesTest, RefusesImpossibleOptions) {
  const DiskFilesOptions good = options_;
  const auto refuses = [&](auto change) {
    options_ = good;
    change(options_);
    return OpenError().reason == "bad_disk_options";
  };
  EXPECT_TRUE(refuses([](auto& o) { o.directories.clear(); }));
  EXPECT_TRUE(refuses([](auto& o) { o.directories.assign(kMaxDrives + 1, "/x"); }));
  EXPECT_TRUE(refuses([](auto& o) { o.slab_bytes = 4096; }));
  EXPECT_TRUE(refuses([](auto& o) { o.slab_bytes += 512; }));
  EXPECT_TRUE(refuses([](auto& o) { o.bytes = 2 * kMiB; }));
  EXPECT_TRUE(refuses([](auto& o) { o.directories[0].clear(); }));
}

TEST_F(DiskFilesTest, UsesIoUringWhereItIsToBeHad) {
  options_.engine = DiskEngine::kAuto;
  const DiskFiles files = OpenOrDie();
  if (files.files[0]->engine() == "pread") GTEST_SKIP() << files.notes[0];
  EXPECT_EQ(files.files[0]->engine(), "io_uring");
  EXPECT_TRUE(files.notes.empty());
}

TEST_F(DiskFilesTest, FallsBackToPreadAndSaysWhy) {
  options_.engine = DiskEngine::kAuto;
  options_.refuse_uring = true;
  const DiskFiles files = OpenOrDie();
  EXPECT_EQ(files.files[0]->engine(), "pread");
  ASSERT_EQ(files.notes.size(), 1u);
  EXPECT_NE(files.notes[0].find("io_uring_refused"), std::string::npos);
  EXPECT_TRUE(Write(files, DiskLocation{0}, 1));
}

TEST_F(DiskFilesTest, IoUringByDecreeIsAnErrorWhenRefused) {
  options_.engine = DiskEngine::kUring;
  options_.refuse_uring = true;
  EXPECT_EQ(OpenError().reason, "io_uring_refused");
}

}  // namespace
}  // namespace kvtier
