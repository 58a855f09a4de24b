// SPDX-License-Identifier: Apache-2.0
// Both engines behind BlockFile, with one and the same suite.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <filesystem>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "base/executor.h"
#include "base/result.h"
#include "base/units.h"
#include "tests/fakes/aligned_bytes.h"
#include "tests/fakes/denied_call.h"
#include "tests/fakes/temporary_directory.h"
#include "tiers/storage/block_file.h"

namespace kvtier {
namespace {

constexpr uint64_t kFileBytes = 8 * kMiB;

class IoEngineTest : public ::testing::TestWithParam<std::string> {
 protected:
  EngineFile OpenFile(const std::string& name, uint64_t bytes, int flags = O_RDWR) {
    const std::filesystem::path path = directory_.path() / name;
    const UniqueFd maker(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    KVT_CHECK(maker.valid() && ::ftruncate(maker.get(), static_cast<off_t>(bytes)) == 0);
    UniqueFd fd(::open(path.c_str(), flags | O_DIRECT | O_CLOEXEC));
    KVT_CHECK(fd.valid());
    return {std::move(fd), bytes};
  }

  std::vector<std::unique_ptr<BlockFile>> Start(std::vector<EngineFile> files) {
    if (GetParam() == "pread") return MakePreadBlockFiles(std::move(files), options_, &loop_);
    auto made = MakeUringBlockFiles(&files, options_, &loop_);
    KVT_CHECK(made.has_value());
    return std::move(*made);
  }

  std::vector<std::unique_ptr<BlockFile>> StartOne(int flags = O_RDWR) {
    std::vector<EngineFile> files;
    files.push_back(OpenFile("one", kFileBytes, flags));
    return Start(std::move(files));
  }

  // A callback that keeps the outcome.
  IoDone Keep() {
    const size_t place = outcomes_.size();
    outcomes_.emplace_back();
    pending_ += 1;
    return [this, place](Status status) {
      KVT_CHECK(!outcomes_[place].has_value());
      outcomes_[place] = std::move(status);
      pending_ -= 1;
    };
  }
  void WaitForAll() {
    loop_.RunUntil([this] { return pending_ == 0; });
  }
  Status WaitForOutcome() {
    WaitForAll();
    return *outcomes_.back();
  }

  TestDirectory directory_;
  BlockingLoop loop_;
  IoEngineOptions options_;
  std::vector<std::optional<Status>> outcomes_;
  int pending_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Engines, IoEngineTest, ::testing::Values("io_uring", "pread"),
                         [](const auto& info) { return info.param; });

TEST_P(IoEngineTest, ReadsBackWhatWasWritten) {
  const auto files = StartOne();
  EXPECT_EQ(files[0]->engine(), GetParam());
  EXPECT_EQ(files[0]->bytes(), kFileBytes);
  const AlignedBytes written(kMiB, 0x5a);
  const AlignedBytes read(kMiB, 0);
  files[0]->Write(4096, written.Slice(0, kMiB), Keep());
  ASSERT_TRUE(WaitForOutcome());
  files[0]->Sync(Keep());
  ASSERT_TRUE(WaitForOutcome());
  files[0]->Read(4096, read.Slice(0, kMiB), Keep());
  ASSERT_TRUE(WaitForOutcome());
  EXPECT_EQ(std::memcmp(written.data(), read.data(), kMiB), 0);
}

TEST_P(IoEngineTest, ServesMoreThanTheKernelTakesAtOnceOverSeveralFiles) {
  std::vector<EngineFile> opened;
  for (int i = 0; i < 3; ++i) opened.push_back(OpenFile(std::to_string(i), kFileBytes));
  const auto files = Start(std::move(opened));
  constexpr uint64_t kBlocks = 600;
  constexpr uint64_t kBlockBytes = 16 * kKiB;
  const AlignedBytes written(kBlocks * kBlockBytes, 0);
  const AlignedBytes read(kBlocks * kBlockBytes, 0xff);
  for (uint64_t i = 0; i < kBlocks; ++i) {
    const auto block = written.Slice(i * kBlockBytes, kBlockBytes);
    std::memset(block.data(), static_cast<int>(i % 251), block.size());
    files[i % 3]->Write(i / 3 * kBlockBytes, block, Keep());
  }
  WaitForAll();
  for (uint64_t i = 0; i < kBlocks; ++i) {
    files[i % 3]->Read(i / 3 * kBlockBytes, read.Slice(i * kBlockBytes, kBlockBytes), Keep());
  }
  WaitForAll();
  for (const auto& outcome : outcomes_) EXPECT_TRUE(outcome->has_value());
  EXPECT_EQ(std::memcmp(written.data(), read.data(), written.size()), 0);
}

TEST_P(IoEngineTest, ALargeRequestAndASmallOneAreServed) {
  const auto files = StartOne();
  const AlignedBytes buffer(2 * kMiB, 1);
  files[0]->Write(0, buffer.Slice(0, 2 * kMiB), Keep());
  files[0]->Write(2 * kMiB, buffer.Slice(0, 4096), Keep());
  WaitForAll();
  for (const auto& outcome : outcomes_) EXPECT_TRUE(outcome->has_value());
}

TEST_P(IoEngineTest, RegisteredMemoryServesReadsAndWrites) {
  const auto files = StartOne();
  const AlignedBytes arena(4 * kMiB, 0x77);
  files[0]->RegisterMemory(arena.Slice(0, 2 * kMiB));
  files[0]->RegisterMemory(arena.Slice(2 * kMiB, 2 * kMiB));
  // Inside an entry, and across the border of two.
  files[0]->Write(0, arena.Slice(0, kMiB), Keep());
  files[0]->Write(kMiB, arena.Slice(kMiB + 4096, 2 * kMiB), Keep());
  WaitForAll();
  std::memset(arena.data(), 0, arena.size());
  files[0]->Read(0, arena.Slice(0, 2 * kMiB), Keep());
  files[0]->Read(2 * kMiB, arena.Slice(2 * kMiB, kMiB), Keep());
  WaitForAll();
  for (const auto& outcome : outcomes_) EXPECT_TRUE(outcome->has_value());
  const AlignedBytes expected(3 * kMiB, 0x77);
  EXPECT_EQ(std::memcmp(arena.data(), expected.data(), expected.size()), 0);
}

TEST_P(IoEngineTest, AFileThatEndsEarlyGivesShortIo) {
  std::vector<EngineFile> opened;
  opened.push_back(OpenFile("short", 16 * kKiB));
  opened[0].bytes = kFileBytes;
  const auto files = Start(std::move(opened));
  const AlignedBytes buffer(64 * kKiB, 0);
  files[0]->Read(0, buffer.Slice(0, 64 * kKiB), Keep());
  const Status outcome = WaitForOutcome();
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, ErrorCode::kIoError);
  EXPECT_EQ(outcome.error().reason, "short_io");
}

TEST_P(IoEngineTest, ErrorsCarryTheErrnosName) {
  const auto files = StartOne(O_RDONLY);
  const AlignedBytes buffer(4096, 0);
  files[0]->Write(0, buffer.Slice(0, 4096), Keep());
  const Status outcome = WaitForOutcome();
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, ErrorCode::kIoError);
  EXPECT_EQ(outcome.error().reason, "EBADF");
}

TEST_P(IoEngineTest, AnErrorLeavesLaterRequestsAlone) {
  const auto files = StartOne(O_RDONLY);
  const AlignedBytes buffer(4096, 0);
  files[0]->Write(0, buffer.Slice(0, 4096), Keep());
  files[0]->Read(0, buffer.Slice(0, 4096), Keep());
  WaitForAll();
  EXPECT_FALSE(outcomes_[0]->has_value());
  EXPECT_TRUE(outcomes_[1]->has_value());
}

// Keeps its work until the test lets it be done.
class ManualExecutor final : public Executor {
 public:
  void Run(std::function<void()> work, std::function<void()> /*done*/) override {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(work));
    ++tasks_given_;
  }
  [[nodiscard]] int threads() const override { return 4; }
  // Does the next task. False if there is none.
  bool RunOne() {
    std::function<void()> task;
    {
      const std::lock_guard lock(mutex_);
      if (tasks_.empty()) return false;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
    return true;
  }
  [[nodiscard]] int tasks_given() {
    const std::lock_guard lock(mutex_);
    return tasks_given_;
  }

 private:
  std::mutex mutex_;
  std::deque<std::function<void()>> tasks_;
  int tasks_given_ = 0;
};

TEST_P(IoEngineTest, ABurstOfReadsIsCheckedByAFewTasksAndToldByFewEvents) {
  constexpr uint64_t kBlocks = 128;
  constexpr uint64_t kBlockBytes = 16 * kKiB;
  ManualExecutor executor;
  options_.executor = &executor;
  std::atomic<int> checked = 0;
  auto files = StartOne();
  const AlignedBytes read(kBlocks * kBlockBytes, 0xff);
  for (uint64_t i = 0; i < kBlocks; ++i) {
    files[0]->ReadAndCheck(
        i * kBlockBytes, read.Slice(i * kBlockBytes, kBlockBytes), [&checked] { ++checked; },
        Keep());
  }
  // The file has zeros. Until all have come it is no burst where the disk is slow.
  const auto has_come = [&read](uint64_t block) {
    const auto* const last =
        reinterpret_cast<const volatile std::byte*>(read.data() + (block + 1) * kBlockBytes - 1);
    return *last == std::byte{0};
  };
  for (uint64_t i = 0; i < kBlocks && GetParam() == "io_uring"; ++i) {
    while (!has_come(i)) std::this_thread::yield();
  }
  // The loop is busy all the while. No task outlives its share, so that offloads get their turn.
  while (checked < static_cast<int>(kBlocks)) (void)executor.RunOne();
  // io_uring tells of many reads at once. The threads of pread end theirs one by one, and how many
  // end before the next task begins is theirs to decide.
  if (GetParam() == "io_uring") {
    EXPECT_LE(executor.tasks_given(), static_cast<int>(kBlocks) / 4);
  }
  EXPECT_EQ(loop_.RunPosted(), 1u);
  EXPECT_EQ(pending_, 0);
  // The engine does not end before its tasks have, and a thread may still give one that comes too
  // late to help.
  std::atomic<bool> ended = false;
  std::thread late_tasks([&] {
    while (!ended) {
      if (!executor.RunOne()) std::this_thread::yield();
    }
  });
  files.clear();
  ended = true;
  late_tasks.join();
}

TEST_P(IoEngineTest, AReadIsToldOnlyWhenItWasChecked) {
  ManualExecutor executor;
  options_.executor = &executor;
  const auto files = StartOne();
  const AlignedBytes written(4096, 0x5a);
  files[0]->Write(0, written.Slice(0, 4096), Keep());
  ASSERT_TRUE(WaitForOutcome());
  const AlignedBytes buffer(4096, 0);
  std::byte seen{0};
  files[0]->ReadAndCheck(
      0, buffer.Slice(0, 4096), [&] { seen = buffer.data()[0]; }, Keep());
  while (executor.tasks_given() == 0) std::this_thread::yield();
  loop_.RunPosted();
  EXPECT_EQ(pending_, 1);
  while (executor.RunOne()) {
  }
  EXPECT_EQ(seen, std::byte{0x5a});
  ASSERT_TRUE(WaitForOutcome());
}

TEST_P(IoEngineTest, AReadThatFailedIsNotChecked) {
  const auto files = StartOne(O_WRONLY);
  const AlignedBytes buffer(4096, 0);
  bool checked = false;
  files[0]->ReadAndCheck(
      0, buffer.Slice(0, 4096), [&] { checked = true; }, Keep());
  EXPECT_FALSE(WaitForOutcome());
  EXPECT_FALSE(checked);
}

TEST_P(IoEngineTest, WithoutAnExecutorTheEngineChecks) {
  const auto files = StartOne();
  const AlignedBytes buffer(4096, 0);
  bool checked = false;
  files[0]->ReadAndCheck(
      0, buffer.Slice(0, 4096), [&] { checked = true; }, Keep());
  ASSERT_TRUE(WaitForOutcome());
  EXPECT_TRUE(checked);
}

TEST_P(IoEngineTest, ClosingEndsEveryRequestExactlyOnce) {
  options_.threads = 2;
  const AlignedBytes buffer(4 * kMiB, 3);
  {
    const auto files = StartOne();
    for (uint64_t i = 0; i < 64; ++i) {
      files[0]->Write(i * 64 * kKiB, buffer.Slice(i * 64 * kKiB, 64 * kKiB), Keep());
    }
  }
  loop_.RunPosted();
  EXPECT_EQ(pending_, 0);
  for (const auto& outcome : outcomes_) {
    ASSERT_TRUE(outcome.has_value());
    if (!*outcome) {
      EXPECT_EQ(outcome->error().reason, "closed");
    }
  }
}

TEST_P(IoEngineTest, AFileLivesOnWhenItsNeighbourIsClosed) {
  std::vector<EngineFile> opened;
  for (int i = 0; i < 2; ++i) opened.push_back(OpenFile(std::to_string(i), kFileBytes));
  auto files = Start(std::move(opened));
  const AlignedBytes buffer(4096, 0);
  files[0]->Write(0, buffer.Slice(0, 4096), Keep());
  files[0].reset();
  files[1]->Write(0, buffer.Slice(0, 4096), Keep());
  WaitForAll();
  for (const auto& outcome : outcomes_) EXPECT_TRUE(outcome->has_value());
}

TEST_P(IoEngineTest, RequestsMadeFromACallbackAreServed) {
  const auto files = StartOne();
  const AlignedBytes buffer(4096, 9);
  files[0]->Write(0, buffer.Slice(0, 4096), [&, done = Keep()](Status status) {
    EXPECT_TRUE(status);
    files[0]->Read(0, buffer.Slice(0, 4096), done);
  });
  EXPECT_TRUE(WaitForOutcome());
}

TEST(UringBlockFileTest, RefusedRegistrationIsToldOnceAndIoGoesOn) {
  const TestDirectory directory;
  BlockingLoop loop;
  std::vector<std::string> told;
  IoEngineOptions options;
  options.log = [&](std::string note) { told.push_back(std::move(note)); };
  UniqueFd fd(::open((directory.path() / "f").c_str(), O_RDWR | O_CREAT | O_DIRECT, 0600));
  std::vector<EngineFile> opened;
  opened.push_back({std::move(fd), kMiB});
  auto files = MakeUringBlockFiles(&opened, options, &loop);
  ASSERT_TRUE(files) << files.error().ToString();
  // Memory that the process may not touch cannot be registered.
  void* forbidden = ::mmap(nullptr, kMiB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(forbidden, MAP_FAILED);
  for (int i = 0; i < 2; ++i) {
    (*files)[0]->RegisterMemory({static_cast<std::byte*>(forbidden), kMiB});
  }
  const AlignedBytes buffer(4096, 9);
  bool written = false;
  (*files)[0]->Write(0, buffer.Slice(0, 4096),
                     [&](Status status) { written = status.has_value(); });
  loop.RunUntil([&] { return written && !told.empty(); });
  files->clear();
  loop.RunPosted();
  EXPECT_EQ(told.size(), 1u);
  EXPECT_NE(told[0].find("EFAULT"), std::string::npos) << told[0];
  ::munmap(forbidden, kMiB);
}

// Descriptors of the rings that this process has.
std::vector<UniqueFd> DuplicateRings() {
  std::vector<UniqueFd> rings;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry.path(), gone) != "anon_inode:[io_uring]") continue;
    rings.emplace_back(::dup(std::stoi(entry.path().filename().string())));
  }
  return rings;
}

// The kernel takes a killed process's ring down when it has unpinned the buffers registered with
// it.
TEST(UringBlockFileTest, ARingThatOutlivesItsEngineDoesNotHoldTheFilesLocks) {
  const TestDirectory directory;
  const std::filesystem::path path = directory.path() / "locked";
  UniqueFd locked(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(::flock(locked.get(), LOCK_EX | LOCK_NB), 0);
  BlockingLoop loop;
  std::vector<EngineFile> opened;
  opened.push_back({std::move(locked), kMiB});
  auto files = MakeUringBlockFiles(&opened, {}, &loop);
  ASSERT_TRUE(files) << files.error().ToString();
  const std::vector<UniqueFd> rings = DuplicateRings();
  ASSERT_FALSE(rings.empty());
  const UniqueFd other(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_NE(::flock(other.get(), LOCK_EX | LOCK_NB), 0);
  files->clear();
  EXPECT_EQ(::flock(other.get(), LOCK_EX | LOCK_NB), 0);
}

TEST(UringBlockFileTest, RefusalLeavesTheFilesToTheCaller) {
  BlockingLoop loop;
  std::vector<EngineFile> opened;
  opened.push_back({UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC)), kMiB});
  std::thread([&] {
    DenyCall(__NR_io_uring_setup);
    const auto files = MakeUringBlockFiles(&opened, {}, &loop);
    ASSERT_FALSE(files);
    EXPECT_EQ(files.error().code, ErrorCode::kUnsupported);
    EXPECT_EQ(files.error().reason, "io_uring_refused");
  }).join();
  ASSERT_EQ(opened.size(), 1u);
  EXPECT_TRUE(opened[0].fd.valid());
}

}  // namespace
}  // namespace kvtier
