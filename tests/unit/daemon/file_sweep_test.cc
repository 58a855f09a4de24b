// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/files/file_sweep.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "daemon/cold/files/file_system.h"
#include "tests/fakes/shared_directory.h"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kThreeYearsS = int64_t{1000} * 86'400;

// The server's clock, in Unix time.
class ServerFiles : public FileSystem {
 public:
  explicit ServerFiles(const int64_t* now_s) : now_s_(*now_s) {}
  int Touch(int file) override {
    const timespec times[] = {{.tv_sec = now_s_}, {.tv_sec = now_s_}};
    return ::futimens(file, times);
  }

 private:
  const int64_t& now_s_;
};

// Files of another user.
class RefusingFiles final : public ServerFiles {
 public:
  using ServerFiles::ServerFiles;
  int Open(int directory, const char* name, int flags) override {
    return name == refused ? -error : FileSystem::Open(directory, name, flags);
  }
  int Unlink(int directory, const char* name, int flags) override {
    return name == refused ? -error : FileSystem::Unlink(directory, name, flags);
  }

  std::string refused;
  int error = EACCES;
};

class FileSweepTest : public SharedDirectoryTest {
 protected:
  void Sweep(uint64_t max_bytes = 0) {
    FileSweep host(
        &root_, &files_, max_bytes, [this] { return ++pauses_ < max_pauses_; }, now_);
    EXPECT_EQ(LookTwice(&host), std::nullopt);
  }
  // Once to see the stamp, and once to sweep.
  std::optional<std::string> LookTwice(FileSweep* host) {
    MakeFile("kvtier/.swept", now_s_ - FileSweep::kEveryS);
    std::optional<std::string> first = host->Look();
    std::optional<std::string> second = host->Look();
    return first ? first : second;
  }
  void AgeDirectories() const {
    const timespec times[] = {{.tv_sec = now_s_}, {.tv_sec = now_s_ - 2 * 3600}};
    for (const auto& entry : fs::recursive_directory_iterator(root())) {
      if (!entry.is_directory()) continue;
      ASSERT_EQ(::utimensat(AT_FDCWD, entry.path().c_str(), times, 0), 0);
    }
  }
  void MakeExpired(const std::string& directory, size_t count) {
    for (size_t i = 0; i < count; ++i) MakeFile(directory + "/f" + std::to_string(i), now_s_ - 1);
  }

  int64_t now_s_ = std::time(nullptr);
  const FileSweep::Now now_ = [this] { return now_s_; };
  ServerFiles files_{&now_s_};
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
  MakeExpired("kvtier/1/a/m/aa", 600);
  max_pauses_ = 1;
  Sweep();
  EXPECT_EQ(pauses_, 1u);
  EXPECT_GT(CountFiles(), 300u);
  max_pauses_ = 1000;
  Sweep();
  EXPECT_EQ(CountFiles(), 0u);
}

TEST_F(FileSweepTest, DirectoriesThatWereEmptiedGoWhenTheyAreOldInPartsAsFilesDo) {
  constexpr size_t kModels = 100;
  for (size_t i = 0; i < kModels; ++i) {
    MakeFile("kvtier/1/a/model" + std::to_string(i) + "/aa/f", now_s_ - 1);
  }
  MakeFile("kvtier/1/b/m/aa/f", now_s_ + 3600);
  AgeDirectories();
  fs::create_directories(root() / "kvtier/1/b/young/aa");
  Sweep();
  EXPECT_FALSE(fs::exists(root() / "kvtier/1/a"));
  EXPECT_TRUE(fs::exists(root() / "kvtier/1/b/m/aa/f"));
  EXPECT_TRUE(fs::exists(root() / "kvtier/1/b/young/aa")) << "a file is about to be written";
  EXPECT_EQ(pauses_, 3 * kModels / FileSweep::kEntriesOfPart);
}

// Another host's, which comes to the directory in the last moment.
TEST_F(FileSweepTest, ADirectoryWithANewFileStaysAndIsNoFailure) {
  class LateFiles final : public ServerFiles {
   public:
    using ServerFiles::ServerFiles;
    int Unlink(int directory, const char* name, int flags) override {
      if (flags == AT_REMOVEDIR) write();
      return FileSystem::Unlink(directory, name, flags);
    }

    std::function<void()> write;
  } files(&now_s_);
  MakeFile("kvtier/1/a/m/aa/old", now_s_ - 1);
  AgeDirectories();
  files.write = [this] { MakeFile("kvtier/1/a/m/aa/new", now_s_ + 3600); };
  FileSweep host(
      &root_, &files, 0, [] { return true; }, now_);
  EXPECT_EQ(LookTwice(&host), std::nullopt);
  EXPECT_TRUE(fs::exists(root() / "kvtier/1/a/m/aa/new"));
}

TEST_F(FileSweepTest, AHostSweepsWhenNoneHasForMinutesAndAWrongClockStopsNone) {
  FileSweep host(
      &root_, &files_, 0, [] { return true; }, now_);
  const auto sweeps = [&](int64_t later_s) {
    now_s_ += later_s;
    MakeFile("kvtier/1/a/m/aa/aa01", now_s_ - 1);
    EXPECT_EQ(host.Look(), std::nullopt);
    return CountFiles() == 0;
  };
  EXPECT_EQ(host.Look(), std::nullopt);
  EXPECT_FALSE(fs::exists(root() / "kvtier")) << "nothing was ever written";
  MakeFile("kvtier/.swept", now_s_);
  EXPECT_FALSE(sweeps(0));
  EXPECT_FALSE(sweeps(FileSweep::kEveryS - 1));
  EXPECT_TRUE(sweeps(1));
  EXPECT_FALSE(sweeps(FileSweep::kEveryS - 1));
  EXPECT_TRUE(sweeps(1));
  MakeFile("kvtier/.swept", now_s_ + kThreeYearsS);
  EXPECT_FALSE(sweeps(60)) << "a host may be sweeping";
  EXPECT_TRUE(sweeps(60));
}

TEST_F(FileSweepTest, AHostWhoseClockIsNotTheFileSystemsSweepsNothingAndTellsOnce) {
  int64_t own_s = 1'000'000;
  FileSweep host(
      &root_, &files_, 0, [] { return true; }, [&] { return own_s; });
  MakeFile("kvtier/1/a/m/aa/aa01", now_s_ + 3600);
  const std::string why =
      "this host cannot sweep: kvtier/.clock: the clocks of this host and of the file system "
      "differ by a minute or more";
  EXPECT_EQ(LookTwice(&host), why);
  own_s = now_s_ + 60;
  EXPECT_EQ(LookTwice(&host), std::nullopt);
  EXPECT_EQ(CountFiles(), 1u);
  MakeFile("kvtier/1/a/m/aa/aa02", now_s_ - 1);
  own_s = now_s_ - 59;
  EXPECT_EQ(LookTwice(&host), std::nullopt);
  EXPECT_TRUE(fs::exists(root() / "kvtier/1/a/m/aa/aa01"));
  EXPECT_EQ(CountFiles(), 1u);
  own_s = now_s_ - 60;
  EXPECT_EQ(LookTwice(&host), why) << "a new failure";
}

TEST_F(FileSweepTest, AHostBehindTheOthersSweepsNothingWhereClientsSetTheTimeThemselves) {
  int64_t own_s = 1'000'000;
  ServerFiles files(&own_s);
  FileSweep host(
      &root_, &files, 0, [] { return true; }, [&] { return own_s; });
  MakeFile("kvtier/1/a/m/aa/aa01", now_s_ + 3600);
  MakeFile("kvtier/.clock", now_s_);
  EXPECT_NE(LookTwice(&host), std::nullopt);
  EXPECT_TRUE(fs::exists(root() / "kvtier/1/a/m/aa/aa01"));
}

TEST_F(FileSweepTest, AClockThatIsSetWrongDuringASweepEndsIt) {
  for (int i = 0; i < 600; ++i) MakeFile("kvtier/1/a/m/aa/f" + std::to_string(i), now_s_ + 3600);
  int64_t own_s = now_s_;
  FileSweep host(
      &root_, &files_, 0,
      [&] {
        own_s += kThreeYearsS;
        return true;
      },
      [&] { return own_s; });
  EXPECT_EQ(LookTwice(&host),
            "a sweep has ended: kvtier/.clock: the clocks of this host and of the file system "
            "differ by a minute or more");
  EXPECT_EQ(CountFiles(), 600u);
}

TEST_F(FileSweepTest, WhileAHostSweepsForLongNoOtherBegins) {
  MakeExpired("kvtier/1/a/m/aa", 600);
  FileSweep other(
      &root_, &files_, 0, [] { return true; }, now_);
  FileSweep host(
      &root_, &files_, 0,
      [&] {
        now_s_ += FileSweep::kEveryS;
        const size_t files = CountFiles();
        EXPECT_EQ(other.Look(), std::nullopt);
        EXPECT_EQ(CountFiles(), files);
        return true;
      },
      now_);
  EXPECT_EQ(LookTwice(&host), std::nullopt);
  EXPECT_EQ(CountFiles(), 0u);
}

// The first is held up for as long as one that was killed, and so is the second.
TEST_F(FileSweepTest, AHostWhoseSweepAnotherHasTakenOverEndsIt) {
  MakeExpired("kvtier/1/a/m/aa", 600);
  FileSweep other(
      &root_, &files_, 0, [] { return false; }, now_);
  FileSweep host(
      &root_, &files_, 0,
      [&] {
        ++pauses_;
        EXPECT_EQ(other.Look(), std::nullopt);
        now_s_ += FileSweep::kEveryS;
        const size_t files = CountFiles();
        EXPECT_EQ(other.Look(), std::nullopt);
        EXPECT_LT(CountFiles(), files);
        return true;
      },
      now_);
  EXPECT_EQ(LookTwice(&host), std::nullopt);
  EXPECT_EQ(pauses_, 1u);
  EXPECT_GT(CountFiles(), 0u);
}

TEST_F(FileSweepTest, WithoutADirectoryThatCannotBeReadASweepGoesOnAndTellsOnce) {
  RefusingFiles files(&now_s_);
  MakeExpired("kvtier/1/a/m/aa", 10);
  MakeExpired("kvtier/1/b/m/bb", 10);
  for (int i = 0; i < 20; ++i) {
    MakeFile("kvtier/1/c/m/cc/f" + std::to_string(i), now_s_ + 3600 + i, 100);
  }
  FileSweep host(
      &root_, &files, 1000, [] { return true; }, now_);
  for (const char* const refused : {"a", "b", "c"}) {
    files.refused = refused;
    const std::string path = fs::canonical(root_) / "kvtier/1" / refused;
    EXPECT_EQ(LookTwice(&host), "a sweep leaves out: " + path + ": EACCES: Permission denied");
    EXPECT_EQ(LookTwice(&host), std::nullopt);
    EXPECT_TRUE(fs::exists(root() / "kvtier/1" / refused));
  }
  files.refused = "none";
  EXPECT_EQ(LookTwice(&host), std::nullopt);
  EXPECT_EQ(CountFiles(), 10u) << "as many as the bound allows";
}

TEST_F(FileSweepTest, AFileThatCannotBeRemovedIsTold) {
  RefusingFiles files(&now_s_);
  files.refused = "f1";
  MakeExpired("kvtier/1/a/m/aa", 3);
  FileSweep host(
      &root_, &files, 0, [] { return true; }, now_);
  const std::string path = fs::canonical(root_) / "kvtier/1/a/m/aa/f1";
  EXPECT_EQ(LookTwice(&host), "a sweep leaves out: " + path + ": EACCES: Permission denied");
  EXPECT_EQ(CountFiles(), 1u);
  MakeExpired("kvtier/1/b/m/bb", 2);
  files.error = EPERM;
  const std::optional<std::string> told = LookTwice(&host);
  ASSERT_TRUE(told);
  EXPECT_TRUE(told->ends_with("/f1: EPERM: Operation not permitted, and others")) << *told;
}

TEST_F(FileSweepTest, AHostThatMayNotSweepSaysSo) {
  RefusingFiles files(&now_s_);
  files.refused = ".swept";
  FileSweep host(
      &root_, &files, 0, [] { return true; }, now_);
  EXPECT_EQ(LookTwice(&host), "this host cannot sweep: kvtier/.swept: EACCES: Permission denied");
  files.error = EROFS;
  EXPECT_EQ(LookTwice(&host), std::nullopt) << "it only reads";
}

TEST_F(FileSweepTest, AFileThatIsBeingWrittenIsYoungInALongSweepToo) {
  const std::string directories[] = {"kvtier/1/a/m/aa", "kvtier/1/a/m/bb"};
  for (const std::string& directory : directories) MakeExpired(directory, 300);
  FileSweep host(
      &root_, &files_, 0,
      [&] {
        if (++pauses_ > 1) return true;
        now_s_ += 2 * FileSweep::kMaxTemporaryAgeS;
        for (const std::string& directory : directories) MakeFile(directory + "/.tmp.a", now_s_);
        return true;
      },
      now_);
  EXPECT_EQ(LookTwice(&host), std::nullopt);
  EXPECT_EQ(CountFiles(), 2u);
}

}  // namespace
}  // namespace kvtier
