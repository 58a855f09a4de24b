// SPDX-License-Identifier: Apache-2.0
#include "daemon/app/disk_retry.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <functional>

#include "base/units.h"
#include "tests/fakes/temporary_directory.h"

namespace kvtier {
namespace {

// Works at once, and tells of it in a later event.
class PromptExecutor final : public Executor {
 public:
  explicit PromptExecutor(EventLoop* loop) : loop_(*loop) {}
  void Run(std::function<void()> work, std::function<void()> done) override {
    work();
    loop_.Post(std::move(done));
  }

 private:
  EventLoop& loop_;
};

class DiskRetryTest : public testing::Test {
 protected:
  DiskRetryTest() { disk_.directory = directory_.path() / "disk"; }
  [[nodiscard]] std::string ReasonOfProbe() const {
    const Status found = ProbeDisk(disk_, 1 * kMiB);
    return found ? "" : found.error().reason;
  }

  const TestDirectory directory_;
  DiskConfig disk_{.bytes = 64 * kMiB, .free_floor_bytes = 0};
};

TEST_F(DiskRetryTest, AProbeMakesTheDirectoryAndLeavesNothingInIt) {
  EXPECT_EQ(ReasonOfProbe(), "");
  EXPECT_TRUE(std::filesystem::is_empty(disk_.directory));
}

TEST_F(DiskRetryTest, AProbeFailsWithoutRoomOrWithoutAPlace) {
  disk_.free_floor_bytes = uint64_t{1} << 60;
  EXPECT_EQ(ReasonOfProbe(), "disk_full");
  disk_.free_floor_bytes = 0;
  std::ofstream(directory_.path() / "file") << "x";
  disk_.directory = directory_.path() / "file" / "disk";
  EXPECT_EQ(ReasonOfProbe(), "ENOTDIR");
}

TEST_F(DiskRetryTest, RoomThatTheTiersOwnFilesTakeCountsAsFree) {
  EXPECT_EQ(ReasonOfProbe(), "");
  std::ofstream file(std::filesystem::path(disk_.directory) / "blocks.kvt");
  file << std::string(4 * kMiB, 'x') << std::flush;
  const auto space = std::filesystem::space(disk_.directory);
  disk_.free_floor_bytes = space.available - space.available % kMiB;
  EXPECT_EQ(ReasonOfProbe(), "");
}

TEST_F(DiskRetryTest, TellsOnceThatTheDiskIsBackAndNotBefore) {
  EventLoop loop;
  PromptExecutor executor(&loop);
  int probes = 0;
  int told = 0;
  const DiskRetry retry(
      &loop, &executor,
      [&]() -> Status {
        if (++probes < 3) return MakeError(ErrorCode::kIoError, "ENOSPC");
        return {};
      },
      [&] { ++told; }, /*pause_ms=*/1);
  loop.RunUntil([&] { return told > 0; });
  EXPECT_EQ(probes, 3);
  EXPECT_EQ(told, 1);
}

TEST_F(DiskRetryTest, EachStartInVainMakesTheNextPauseLongerUntilOneHasTheDisk) {
  const RetryNote note(directory_.path() / "note");
  EXPECT_EQ(note.PauseMs(), RetryNote::kFirstPauseMs);
  for (int64_t pause_ms = RetryNote::kFirstPauseMs; pause_ms < 3600 * 1000; pause_ms *= 4) {
    EXPECT_EQ(note.PauseMs(), pause_ms);
    ASSERT_TRUE(note.WriteNextPause());
  }
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(note.WriteNextPause());
  EXPECT_EQ(note.PauseMs(), 24 * 3600 * 1000);
  note.Remove();
  EXPECT_EQ(note.PauseMs(), RetryNote::kFirstPauseMs);
  EXPECT_FALSE(RetryNote(directory_.path() / "none" / "note").WriteNextPause());
}

TEST_F(DiskRetryTest, OnlyAFaultThatMayPassIsWaitedFor) {
  for (const char* const reason : {"disk_full", "ENOSPC", "EROFS", "EIO", "ENOENT", "index_open"}) {
    EXPECT_TRUE(DiskMayComeBack({ErrorCode::kIoError, reason, ""})) << reason;
  }
  for (const char* const reason : {"directory_owner", "EACCES", "ENOTDIR"}) {
    EXPECT_FALSE(DiskMayComeBack({ErrorCode::kIoError, reason, ""})) << reason;
  }
}

}  // namespace
}  // namespace kvtier
