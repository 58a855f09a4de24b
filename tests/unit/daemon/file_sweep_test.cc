// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/files/file_sweep.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <string>

#include "daemon/cold/files/file_system.h"
#include "tests/fakes/shared_directory.h"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kThreeYearsS = int64_t{1000} * 86'400;

class FileSweepTest : public SharedDirectoryTest {
 protected:
  void Sweep(uint64_t max_bytes = 0) {
    FileSweep sweep(&root_, &files_, max_bytes, [this] { return ++pauses_ < max_pauses_; });
    sweep.Run(now_s_);
  }

  const int64_t now_s_ = std::time(nullptr);
  FileSystem files_;
  const std::string root_ = root();
  size_t pauses_ = 0;
  size_t max_pauses_ = 1000;
};

TEST_F(FileSweepTest, FilesPastTheirEndsAndAbandonedOnesGo) {
  MakeFile("kvtier/1/a/m/aa/aa01", now_s_ - 1);
  MakeFile("kvtier/1/a/m/aa/aa02", now_s_ + 10);
  MakeFile("kvtier/1/a/m/aa/aa03", now_s_ + kThreeYearsS);
  MakeFile("kvtier/1/a/m/aa/.tmp.host.1.2.3", now_s_ - 10);
  MakeFile("kvtier/1/a/m/aa/.tmp.host.1.2.4", now_s_ - 2 * FileSweep::kMaxTemporaryAgeS);
  MakeFile("users/own", now_s_ - 1);
  fs::create_symlink(root() / "users/own", root() / "kvtier/1/a/m/aa/link");
  Sweep();
  EXPECT_TRUE(fs::exists(root() / "kvtier/1/a/m/aa/aa02"));
  EXPECT_TRUE(fs::exists(root() / "kvtier/1/a/m/aa/.tmp.host.1.2.3"));
  EXPECT_TRUE(fs::exists(root() / "users/own")) << "nothing of others";
  EXPECT_EQ(CountFiles(), 4u);
}

TEST_F(FileSweepTest, BeyondTheBoundThoseThatEndSoonestGo) {
  for (int hour = 1; hour <= 20; ++hour) {
    MakeFile("kvtier/1/a/m/" + std::to_string(10 + hour) + "/f", now_s_ + hour * 3600, 100);
  }
  Sweep(2000);
  EXPECT_EQ(CountFiles(), 20u);
  Sweep(1250);
  EXPECT_EQ(CountFiles(), 12u);
  EXPECT_FALSE(fs::exists(root() / "kvtier/1/a/m/18/f"));
  EXPECT_TRUE(fs::exists(root() / "kvtier/1/a/m/19/f"));
}

TEST_F(FileSweepTest, OfFilesThatEndTogetherNoMoreGoThanMust) {
  for (int i = 0; i < 50; ++i) {
    MakeFile("kvtier/1/a/m/aa/f" + std::to_string(i), now_s_ / 600 * 600 + 1200, 100);
  }
  Sweep(3000);
  EXPECT_EQ(CountFiles(), 30u);
}

TEST_F(FileSweepTest, ASweepPausesMayBeEndedAndIsGoneOnWithByAnother) {
  for (int i = 0; i < 600; ++i) {
    MakeFile("kvtier/1/a/m/aa/f" + std::to_string(i), now_s_ - 1);
  }
  max_pauses_ = 1;
  Sweep();
  EXPECT_EQ(pauses_, 1u);
  EXPECT_GT(CountFiles(), 300u);
  max_pauses_ = 1000;
  Sweep();
  EXPECT_EQ(CountFiles(), 0u);
}

TEST_F(FileSweepTest, OneHostSweepsAtATimeAndAWrongClockStopsNone) {
  const auto begins = [this](int64_t now_s) {
    FileSweep sweep(&root_, &files_, 0, [] { return true; });
    return sweep.Begin(now_s);
  };
  EXPECT_FALSE(begins(now_s_)) << "nothing was ever written";
  fs::create_directory(root() / "kvtier");
  EXPECT_TRUE(begins(now_s_ + kThreeYearsS));
  EXPECT_TRUE(begins(now_s_));
  EXPECT_FALSE(begins(now_s_ + FileSweep::kEveryS - 1));
  EXPECT_TRUE(begins(now_s_ + FileSweep::kEveryS));
}

}  // namespace
}  // namespace kvtier
