// SPDX-License-Identifier: Apache-2.0
// Two daemons that share nothing but a directory.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/harness/two_hosts_test.h"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

constexpr const char* kBindfs = "/usr/bin/bindfs";

// A directory seen through a file system of its own, whose server can be stopped.
class Mount {
 public:
  Mount(std::string from, std::string at) : from_(std::move(from)), at_(std::move(at)) {
    fs::create_directory(at_);
    std::vector<std::string> words = {kBindfs, "-f", from_, at_};
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    if (::posix_spawn(&pid_, kBindfs, nullptr, nullptr, arguments.data(), environ) != 0) return;
    // Where mounting is not allowed it ends at once.
    is_mounted_ =
        Eventually([this] { return IsThere() || ::waitpid(pid_, nullptr, WNOHANG) != 0; });
    is_mounted_ = is_mounted_ && IsThere();
  }
  // Calls that hang there fail when the server has ended.
  ~Mount() {
    if (!is_mounted_) return;
    Signal(SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    ::umount2(at_.c_str(), MNT_DETACH);
  }
  Mount(const Mount&) = delete;
  Mount& operator=(const Mount&) = delete;

  [[nodiscard]] bool is_mounted() const { return is_mounted_; }
  void Signal(int signal) const { ::kill(pid_, signal); }

 private:
  [[nodiscard]] bool IsThere() const {
    struct stat below {
    }, at{};
    return ::stat(from_.c_str(), &below) == 0 && ::stat(at_.c_str(), &at) == 0 &&
           below.st_dev != at.st_dev;
  }

  const std::string from_;
  const std::string at_;
  pid_t pid_ = -1;
  bool is_mounted_ = false;
};

class ColdFilesTest : public TwoHostsTest {
 protected:
  void SetUp() override {
    TwoHostsTest::SetUp();
    fs::create_directory(root());
  }
  [[nodiscard]] fs::path root() const { return fs::path(directory()) / "shared"; }
  [[nodiscard]] std::vector<std::string> StoreSettings() const override {
    const fs::path seen = mount_ ? fs::path(directory()) / "mounted" : root();
    return {"cold.endpoint=file://" + seen.string() + "?max_bytes=1GiB"};
  }
  [[nodiscard]] std::vector<fs::path> Files() const {
    std::vector<fs::path> files;
    std::error_code gone;  // a directory or file that a daemon renames meanwhile
    for (fs::recursive_directory_iterator at(root(), gone), end; at != end; at.increment(gone)) {
      if (at->is_regular_file(gone) && !at->path().filename().string().starts_with('.')) {
        files.push_back(at->path());
      }
    }
    return files;
  }
  [[nodiscard]] size_t CountObjects() override { return Files().size(); }
  // Hosts that start from now on see the directory through it.
  [[nodiscard]] bool MountFileSystem() {
    if (!fs::exists(kBindfs)) return false;
    mount_ = std::make_unique<Mount>(root(), directory() + "/mounted");
    return mount_->is_mounted();
  }
  // Changes a file and leaves its end.
  template <typename Change>
  void Damage(const fs::path& file, Change change) {
    struct stat before {};
    ASSERT_EQ(::stat(file.c_str(), &before), 0);
    change();
    const timespec times[] = {before.st_atim, before.st_mtim};
    ASSERT_EQ(::utimensat(AT_FDCWD, file.c_str(), times, 0), 0);
  }
  // Before the daemons, that nothing hangs there when they end.
  void TearDown() override {
    mount_.reset();
    TwoHostsTest::TearDown();
  }

  std::unique_ptr<Mount> mount_;
};

TEST_F(ColdFilesTest, WhatOneHostComputedAnotherServesByteForByte) {
  WriteByFirstHost();
  StartOtherHost();
  const ReplayReport report = PlayOnOther(Prompt("shared", kBlocks));
  EXPECT_EQ(report.blocks.miss, 0u) << report.ToJson();
  EXPECT_EQ(report.wrong_blocks, 0u);
  EXPECT_EQ(Cold(other().admin_socket()).at("read_blocks").to_number<uint64_t>(), kBlocks);
  const ProgramResult verified = RunProgram(
      {KvtierctlPath(), "--admin-socket", other().admin_socket(), "verify", "--tier", "cold"});
  EXPECT_NE(verified.output.find("verified 12 blocks"), std::string::npos) << verified.output;
}

TEST_F(ColdFilesTest, TruncatedAndDamagedFilesAreMissesWithTheirReasons) {
  WriteByFirstHost();
  size_t damaged = 0;
  for (const fs::path& file : Files()) {
    ASSERT_NO_FATAL_FAILURE(Damage(file, [&] {
      if (++damaged % 2 == 0) return fs::resize_file(file, 9000);
      std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
      stream.seekg(11'000);
      const int byte = stream.get();
      stream.seekp(11'000).put(static_cast<char>(byte ^ 1));
    }));
  }
  StartOtherHost();
  EXPECT_EQ(PlayOnOther(Prompt("shared", kBlocks)).wrong_blocks, 0u);
  EXPECT_GT(FailedReads("checksum_mismatch"), 0u);
}

TEST_F(ColdFilesTest, AnotherBlocksFileIsAMiss) {
  WriteByFirstHost();
  const std::vector<fs::path> files = Files();
  for (const fs::path& file : files) {
    if (file == files[0]) continue;
    ASSERT_NO_FATAL_FAILURE(
        Damage(file, [&] { fs::copy_file(files[0], file, fs::copy_options::overwrite_existing); }));
  }
  StartOtherHost();
  EXPECT_EQ(PlayOnOther(Prompt("shared", kBlocks)).wrong_blocks, 0u);
  EXPECT_GT(FailedReads("identity_mismatch"), 0u);
}

TEST_F(ColdFilesTest, AHostThatIsKilledWhileItWritesLeavesNothingWrong) {
  StartDaemon({}, Settings());
  EXPECT_EQ(Play(Prompt("shared", kBlocks)).blocks.miss, kBlocks);
  EXPECT_EQ(Play(Prompt("shared", kBlocks)).blocks.miss, 0u);
  EXPECT_EQ(Play(Prompt("others", 60)).wrong_blocks, 0u);
  EXPECT_EQ(Play(Prompt("more", 60)).wrong_blocks, 0u);
  ASSERT_TRUE(Eventually([this] { return CountObjects() > 0; }));
  daemon().Kill();
  for (const fs::path& file : Files()) EXPECT_EQ(fs::file_size(file), fs::file_size(Files()[0]));
  // As a writer leaves one that is killed before it renames it.
  std::ofstream(Files()[0].parent_path() / ".tmp.host.1.2.3") << "half";
  StartOtherHost();
  EXPECT_EQ(PlayOnOther(Prompt("shared", kBlocks)).wrong_blocks, 0u);
  const boost::json::value cold = Cold(other().admin_socket());
  EXPECT_EQ(cold.at("failed_reads").at("checksum_mismatch").to_number<uint64_t>(), 0u);
}

TEST_F(ColdFilesTest, ADirectoryThatComesLateIsUsed) {
  fs::remove(root());
  StartDaemon({}, Settings());
  EXPECT_EQ(Play(Prompt("early", kBlocks)).blocks.miss, kBlocks);
  EXPECT_EQ(Play(Prompt("early", kBlocks)).blocks.miss, 0u);
  EXPECT_EQ(CountObjects(), 0u);
  fs::create_directory(root());
  size_t asked = 0;
  EXPECT_TRUE(Eventually([&] {
    const std::string prompt = "later " + std::to_string(++asked);
    EXPECT_EQ(Play(Prompt(prompt, 30)).wrong_blocks, 0u);
    EXPECT_EQ(Play(Prompt(prompt, 30)).wrong_blocks, 0u);
    return CountObjects() > 0;
  }));
}

TEST_F(ColdFilesTest, AFileSystemThatHangsCostsMissesAndIsUsedAgainWhenItGoesOn) {
  WriteByFirstHost();
  if (!MountFileSystem()) GTEST_SKIP() << "nothing mounted by " << kBindfs;
  StartOtherHost({"cold.lookup_deadline_ms=1000"});
  mount_->Signal(SIGSTOP);
  EXPECT_EQ(PlayOnOther(Prompt("shared", kBlocks / 2)).blocks.miss, kBlocks / 2);
  EXPECT_EQ(PlayOnOther(Prompt("shared", kBlocks / 2)).blocks.miss, 0u) << "local hits";
  EXPECT_EQ(Cold(other().admin_socket()).at("lookups").at("late").to_number<uint64_t>(), 1u);
  mount_->Signal(SIGCONT);
  ReadByOtherHostFrom(kBlocks / 2 + 1);
}

TEST_F(ColdFilesTest, ADaemonStopsWhileItsFileSystemHangs) {
  WriteByFirstHost();
  if (!MountFileSystem()) GTEST_SKIP() << "nothing mounted by " << kBindfs;
  StartOtherHost({"cold.lookup_deadline_ms=100"});
  mount_->Signal(SIGSTOP);
  EXPECT_EQ(PlayOnOther(Prompt("shared", kBlocks)).blocks.miss, kBlocks);
  EXPECT_EQ(other().Terminate(), 0);
}

TEST_F(ColdFilesTest, AFileSystemWhoseServerDiesCostsMisses) {
  WriteByFirstHost();
  if (!MountFileSystem()) GTEST_SKIP() << "nothing mounted by " << kBindfs;
  StartOtherHost();
  mount_->Signal(SIGKILL);
  EXPECT_EQ(PlayOnOther(Prompt("shared", kBlocks)).blocks.miss, kBlocks);
  EXPECT_EQ(PlayOnOther(Prompt("shared", kBlocks)).blocks.miss, 0u) << "local hits";
  EXPECT_EQ(other().Terminate(), 0);
}

TEST_F(ColdFilesTest, AnErasureRemovesTheTenantsFiles) {
  WriteByFirstHost();
  const fs::path others = root() / "kvtier/1/default2/model/ab/abcdef";
  fs::create_directories(others.parent_path());
  std::ofstream(others) << "x";
  StartOtherHost();
  const ProgramResult erased =
      RunProgram({KvtierctlPath(), "--admin-socket", other().admin_socket(), "erase", "--tenant",
                  "default", "--yes", "--without-proof"});
  EXPECT_EQ(erased.exit_code, 0) << erased.output;
  EXPECT_EQ(Files(), std::vector<fs::path>{others});
  EXPECT_FALSE(fs::exists(root() / "kvtier/1/default"));
}

}  // namespace
}  // namespace kvtier
