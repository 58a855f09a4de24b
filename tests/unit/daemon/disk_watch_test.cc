// SPDX-License-Identifier: Apache-2.0
#include "daemon/resources/disk_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <optional>
#include <vector>

#include "tests/fakes/fake_clock.h"
#include "tests/fakes/fake_executor.h"
#include "tests/fakes/fake_loop.h"
#include "tests/fakes/temporary_directory.h"

namespace kvtier {
namespace {

class DiskWatchTest : public ::testing::Test {
 protected:
  void LookAgain() {
    clock_.Advance(DiskWatch::kLookEveryMs);
    watch_.Tick();
    loop_.RunAll();
  }

  TestDirectory temporary_;
  const std::filesystem::path file_ = temporary_.path() / "blocks.kvt";
  FakeClock clock_;
  FakeLoop loop_;
  FakeExecutor executor_{&loop_};
  std::vector<std::filesystem::path> gone_;
  DiskWatch watch_{Paths(), &clock_, &executor_,
                   [this](const std::filesystem::path& path) { gone_.push_back(path); }};

 private:
  std::vector<std::filesystem::path> Paths() {
    std::ofstream(file_) << "blocks";
    return {temporary_.path(), file_};
  }
};

TEST_F(DiskWatchTest, FilesThatStayAreNotReported) {
  for (int i = 0; i < 3; ++i) LookAgain();
  std::ofstream(file_) << "other blocks";
  LookAgain();
  EXPECT_TRUE(gone_.empty());
}

TEST_F(DiskWatchTest, AFileThatIsDeletedIsReportedOnce) {
  std::filesystem::remove(file_);
  for (int i = 0; i < 3; ++i) LookAgain();
  EXPECT_EQ(gone_, std::vector{file_});
}

TEST_F(DiskWatchTest, AFileThatAnotherReplacesIsReported) {
  const std::filesystem::path other = temporary_.path() / "other";
  std::ofstream(other) << "blocks";
  std::filesystem::rename(other, file_);
  LookAgain();
  EXPECT_EQ(gone_, std::vector{file_});
}

TEST_F(DiskWatchTest, LooksOnceInAWhileAndOnAThreadOfTheExecutor) {
  std::filesystem::remove(file_);
  watch_.Tick();
  EXPECT_EQ(loop_.pending(), 0u) << "it has looked when it was made";
  clock_.Advance(DiskWatch::kLookEveryMs);
  watch_.Tick();
  watch_.Tick();
  EXPECT_EQ(loop_.pending(executor_.source()), 1u);
  EXPECT_TRUE(gone_.empty());
  loop_.RunAll();
  EXPECT_EQ(gone_.size(), 1u);
}

TEST_F(DiskWatchTest, WhoAsksIsToldAtOnceAndAgain) {
  std::vector<std::optional<std::filesystem::path>> answers;
  const auto ask = [&] {
    watch_.Look([&](const std::optional<std::filesystem::path>& gone) { answers.push_back(gone); });
    loop_.RunAll();
  };
  ask();
  std::filesystem::remove(file_);
  ask();
  ask();
  EXPECT_THAT(answers, testing::ElementsAre(std::nullopt, file_, file_));
  EXPECT_EQ(gone_, std::vector{file_}) << "the daemon hears of it, too, once";
}

}  // namespace
}  // namespace kvtier
