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
#include "tiers/storage/offline_disk.h"
#include "tiers/storage/superblock.h"

namespace kvtier {
namespace {

constexpr uint64_t kSlabBytes = 256 * kKiB;

class DiskFilesTest : public ::testing::Test {
 protected:
  DiskFilesTest() {
    options_.directory = directory_.path() / "disk";
    options_.files = 2;
    options_.slab_bytes = kSlabBytes;
    options_.bytes = 2 * kMiB + 10 * kSlabBytes;
    options_.engine = DiskEngine::kPread;
    options_.io.threads = 1;
  }

  DiskFiles OpenOrDie() {
    Result<DiskFiles> files = OpenDiskFiles(options_, &loop_);
    KVT_CHECK(files.has_value());
    return std::move(*files);
  }
  Error OpenError() {
    Result<DiskFiles> files = OpenDiskFiles(options_, &loop_);
    return files ? Error{ErrorCode::kInternal, "opened", ""} : files.error();
  }
  // As an operator does who gives up what they hold.
  void EmptyFiles() const {
    for (const auto& entry : std::filesystem::directory_iterator(options_.directory)) {
      if (entry.path().extension() == ".kvt") std::filesystem::resize_file(entry.path(), 0);
    }
  }
  std::filesystem::path FilePath(int number) const {
    return options_.directory / ("blocks-0" + std::to_string(number) + ".kvt");
  }
  void Overwrite(int number, uint64_t offset, const std::string& bytes) const {
    std::fstream file(FilePath(number), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    file << bytes;
    KVT_CHECK(file.good());
  }

  // One block's worth of bytes at a location, through the engine.
  Status Write(const DiskFiles& files, DiskLocation location, uint8_t value) {
    const AlignedBytes bytes(4096, value);
    std::optional<Status> outcome;
    files.files[files.geometry.FileOf(location)]->Write(
        files.geometry.OffsetInFile(location), bytes.Slice(0, 4096),
        [&](Status status) { outcome = std::move(status); });
    loop_.RunUntil([&] { return outcome.has_value(); });
    return *outcome;
  }
  int ReadByte(const DiskFiles& files, DiskLocation location) {
    const AlignedBytes bytes(4096, 0xee);
    std::optional<Status> outcome;
    files.files[files.geometry.FileOf(location)]->Read(
        files.geometry.OffsetInFile(location), bytes.Slice(0, 4096),
        [&](Status status) { outcome = std::move(status); });
    loop_.RunUntil([&] { return outcome.has_value(); });
    return *outcome ? static_cast<int>(bytes.data()[0]) : -1;
  }

  // The remains of a daemon that was killed: a process that has some of its open files.
  class KilledDaemon {
   public:
    // `stay`: the end of a pipe at whose other end the process waits.
    explicit KilledDaemon(UniqueFd stay) : stay_(std::move(stay)) {}
    void End() { stay_.Reset(); }

   private:
    UniqueFd stay_;
  };

  // Closes all but `kept` and the open files whose names in /proc end so.
  static void CloseAllBut(const std::string& name_end, int kept) {
    std::vector<int> others;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
      const int fd = std::stoi(entry.path().filename().string());
      if (fd > 2 && fd != kept && !target.ends_with(name_end)) others.push_back(fd);
    }
    for (const int fd : others) ::close(fd);
  }

  // Kills a daemon that has opened the disk tier. The process left has the open files named, and no
  // other one has them.
  KilledDaemon KillDaemonBut(const std::string& name_end) {
    int pair[2];
    KVT_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    UniqueFd stay(pair[0]);
    char byte = 'x';
    const pid_t daemon = ::fork();
    if (daemon == 0) {
      const DiskFiles files = OpenOrDie();
      while (::fork() != 0) ::pause();
      CloseAllBut(name_end, pair[1]);
      KVT_CHECK(::write(pair[1], &byte, 1) == 1);
      (void)!::read(pair[1], &byte, 1);
      ::_exit(0);
    }
    ::close(pair[1]);
    KVT_CHECK(::read(stay.get(), &byte, 1) == 1);
    ::kill(daemon, SIGKILL);
    KVT_CHECK(::waitpid(daemon, nullptr, 0) == daemon);
    return KilledDaemon(std::move(stay));
  }

  TestDirectory directory_;
  BlockingLoop loop_;
  DiskFilesOptions options_;
};

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
  ASSERT_EQ(::stat(options_.directory.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
}

TEST_F(DiskFilesTest, AnOddNumberOfSlabsIsUsedInFull) {
  options_.bytes = 2 * kMiB + 11 * kSlabBytes + 4096;
  EXPECT_EQ(OpenOrDie().geometry.slabs, 11u);
}

TEST_F(DiskFilesTest, ReopeningKeepsContentsAndBeginsANewEpoch) {
  const DiskLocation last{10 * kSlabBytes - 4096};
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
  const std::filesystem::path path = options_.directory / "lock";
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
  const std::filesystem::path path = options_.directory / "lock";
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
  KilledDaemon io = KillDaemonBut("blocks-01.kvt");
  auto opened = std::async(std::launch::async, [this] { return OpenOrDie().epoch; });
  // Twice as long as a living process is waited for.
  EXPECT_EQ(opened.wait_for(std::chrono::seconds(1)), std::future_status::timeout);
  io.End();
  EXPECT_EQ(opened.get(), 2u);
}

// Such as a read into host memory that the next daemon has from this one.
TEST_F(DiskFilesTest, SoIsIoInAFileThatTheNextDaemonDoesNotUse) {
  KilledDaemon io = KillDaemonBut("blocks-01.kvt");
  options_.files = 1;
  EmptyFiles();
  auto opened = std::async(std::launch::async, [this] { return OpenOrDie().geometry.files; });
  EXPECT_EQ(opened.wait_for(std::chrono::seconds(1)), std::future_status::timeout);
  io.End();
  EXPECT_EQ(opened.get(), 1u);
}

TEST_F(DiskFilesTest, SoIsItBeforeTheFilesAreCheckedWithoutADaemon) {
  KilledDaemon io = KillDaemonBut("blocks-01.kvt");
  auto opened = std::async(std::launch::async,
                           [this] { return OpenOfflineDisk(options_.directory)->geometry.files; });
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
      const DiskLocation slab = files.geometry.SlabStart(i);
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
  {
    const DiskFiles files = OpenOrDie();
    ASSERT_TRUE(Write(files, DiskLocation{3 * kSlabBytes}, 3));
  }
  options_.bytes = 2 * kMiB + 15 * kSlabBytes;
  {
    const DiskFiles files = OpenOrDie();
    EXPECT_EQ(files.geometry.slabs, 15u);
    EXPECT_EQ(files.notes.size(), 1u);
    EXPECT_EQ(ReadByte(files, DiskLocation{3 * kSlabBytes}), 3);
    EXPECT_EQ(ReadByte(files, DiskLocation{14 * kSlabBytes}), 0);
  }
  options_.bytes = 2 * kMiB + 4 * kSlabBytes;
  const DiskFiles files = OpenOrDie();
  EXPECT_EQ(files.geometry.slabs, 4u);
  EXPECT_EQ(ReadByte(files, DiskLocation{3 * kSlabBytes}), 3);
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
  EXPECT_NE(error.context.find("truncate -s 0 blocks-*.kvt"), std::string::npos);

  EmptyFiles();
  const DiskFiles files = OpenOrDie();
  EXPECT_TRUE(files.created);
  EXPECT_NE(files.set_uuid, uuid);
  EXPECT_EQ(files.epoch, 1u);
}

TEST_F(DiskFilesTest, AnotherNumberOfFilesNeedsEmptyFiles) {
  { const DiskFiles files = OpenOrDie(); }
  options_.files = 1;
  EXPECT_EQ(OpenError().reason, "files_changed");
  EmptyFiles();
  EXPECT_EQ(OpenOrDie().geometry.files, 1u);
  EXPECT_FALSE(std::filesystem::exists(FilePath(1)));
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

TEST_F(DiskFilesTest, AMissingFileIsNamed) {
  { const DiskFiles files = OpenOrDie(); }
  std::filesystem::remove(FilePath(1));
  const Error error = OpenError();
  EXPECT_EQ(error.reason, "file_missing");
  EXPECT_NE(error.context.find("blocks-01.kvt"), std::string::npos) << error.context;
}

TEST_F(DiskFilesTest, ATruncatedFileIsNamed) {
  { const DiskFiles files = OpenOrDie(); }
  std::filesystem::resize_file(FilePath(0), kMiB);
  EXPECT_EQ(OpenError().reason, "file_truncated");
}

TEST_F(DiskFilesTest, AFileOfAnotherSetIsNamed) {
  { const DiskFiles files = OpenOrDie(); }
  std::filesystem::copy_file(FilePath(0), FilePath(1),
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(OpenError().reason, "foreign_file");
}

TEST_F(DiskFilesTest, OneDamagedSuperblockPageFallsBackToTheOther) {
  { const DiskFiles files = OpenOrDie(); }
  { const DiskFiles files = OpenOrDie(); }
  // Epoch 2 is in page 0, epoch 1 in page 1.
  Overwrite(0, 40, "damage");
  Overwrite(1, 40, "damage");
  EXPECT_EQ(OpenOrDie().epoch, 2u);
}

TEST_F(DiskFilesTest, SuperblocksDamagedBeyondRepairNeedEmptyFiles) {
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
  // As if the first start had ended between the two files' superblocks of epoch 0.
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
  EXPECT_EQ(files.geometry.slabs, 8u);
  ASSERT_EQ(files.notes.size(), 1u);
  EXPECT_NE(files.notes[0].find("has room for 2.0 MiB of the 25.0 MiB configured"),
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
  ASSERT_EQ(::mkdir(options_.directory.c_str(), 0700), 0);
  ASSERT_EQ(::chown(options_.directory.c_str(), 12345, 12345), 0);
  const Error error = OpenError();
  EXPECT_EQ(error.code, ErrorCode::kPermissionDenied);
  EXPECT_EQ(error.reason, "directory_owner");
}

TEST_F(DiskFilesTest, ClosesADirectoryThatWasOpenToOthers) {
  ASSERT_EQ(::mkdir(options_.directory.c_str(), 0700), 0);
  ASSERT_EQ(::chmod(options_.directory.c_str(), 0755), 0);
  const DiskFiles files = OpenOrDie();
  EXPECT_EQ(files.notes.size(), 1u);
  struct stat status {};
  ASSERT_EQ(::stat(options_.directory.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
}

TEST_F(DiskFilesTest, AnImpossibleDirectoryIsAnErrorByErrno) {
  options_.directory = directory_.path() / "missing" / "disk";
  EXPECT_EQ(OpenError().reason, "ENOENT");
}

TEST_F(DiskFilesTest, RefusesImpossibleOptions) {
  const DiskFilesOptions good = options_;
  const auto refuses = [&](auto change) {
    options_ = good;
    change(options_);
    return OpenError().reason == "bad_disk_options";
  };
  EXPECT_TRUE(refuses([](auto& o) { o.files = 0; }));
  EXPECT_TRUE(refuses([](auto& o) { o.files = kMaxDiskFiles + 1; }));
  EXPECT_TRUE(refuses([](auto& o) { o.slab_bytes = 4096; }));
  EXPECT_TRUE(refuses([](auto& o) { o.slab_bytes += 512; }));
  EXPECT_TRUE(refuses([](auto& o) { o.bytes = 2 * kMiB; }));
  EXPECT_TRUE(refuses([](auto& o) { o.directory.clear(); }));
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
