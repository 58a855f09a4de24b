// SPDX-License-Identifier: Apache-2.0
// Host memory outlives the daemon: real daemons and a real keeper.
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>

#include "base/posix.h"
#include "base/user_paths.h"
#include "tests/fakes/environment.h"
#include "tests/integration/harness/daemon_test.h"

namespace kvtier {
namespace {

constexpr size_t kPrompts = 8;
constexpr size_t kBlocks = 8;
// A pool of two prompts, host memory for all, and no disk that could bring blocks back.
constexpr TierSizes kSizes{.pool_blocks = 2 * kBlocks, .host_blocks = 128, .disk_blocks = 0};

bool EndsSoon(int32_t pid) {
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  pollfd waiting{.fd = process.get(), .events = POLLIN, .revents = 0};
  return !process.valid() || ::poll(&waiting, 1, 10'000) == 1;
}

class KeptHostTest : public DaemonTest {
 protected:
  void TearDown() override {
    (void)Ctl({"stop", "--release"});
    DaemonTest::TearDown();
  }

  void Start(std::vector<std::string> more_settings = {}, const std::string& program = "") {
    more_settings.insert(more_settings.begin(), "restart.keep_for=1min");
    StartDaemon(kSizes, std::move(more_settings), /*config_file=*/"", program);
  }
  void StartWithHostBlocks(uint64_t blocks) {
    StartDaemon({.pool_blocks = 2 * kBlocks, .host_blocks = blocks, .disk_blocks = 0},
                {"restart.keep_for=1min"});
  }
  // The last ones push the others out of the pool. At rest after each, so that none is dropped
  // because a busy machine copies down too slowly.
  void Fill() {
    for (size_t i = 0; i < kPrompts + 2; ++i) {
      (void)Play(PromptNumber(i));
      (void)Admin("settle");
    }
  }
  // Plays the prompts that were in host memory alone.
  [[nodiscard]] ReplayReport PlayAgain() {
    ReplayReport all;
    for (size_t i = 0; i < kPrompts; ++i) {
      const ReplayReport one = Play(PromptNumber(i));
      for (int tier = 0; tier < kTierCount; ++tier) all.blocks.hit[tier] += one.blocks.hit[tier];
      all.blocks.miss += one.blocks.miss;
      all.wrong_blocks += one.wrong_blocks;
      all.errors += one.errors;
    }
    return all;
  }
  [[nodiscard]] static TraceRequest PromptNumber(size_t i) {
    return Prompt(fmt::format("prompt {}", i), kBlocks);
  }
  [[nodiscard]] int32_t KeeperPid() {
    const boost::json::value status = Admin("status");
    return static_cast<int32_t>(JsonView(&status)["restart"]["pid"].Count());
  }
  [[nodiscard]] bool LogHas(const std::string& text) {
    return Log().find(text) != std::string::npos;
  }
  static void ExpectAllFromHost(const ReplayReport& report) {
    EXPECT_EQ(report.blocks.hit[static_cast<int>(Tier::kHost)], kPrompts * kBlocks);
    EXPECT_EQ(report.blocks.miss, 0u);
    EXPECT_EQ(report.wrong_blocks, 0u);
    EXPECT_EQ(report.errors, 0u) << "an acquire that fails finds nothing";
  }
};

TEST_F(KeptHostTest, StatusSaysWhoKeepsWhat) {
  Start();
  const boost::json::value status = Admin("status");
  const JsonView restart = JsonView(&status)["restart"];
  EXPECT_EQ(restart["holder"].Text(), "kvtier-keeper");
  EXPECT_GT(restart["pid"].Count(), 0u);
  EXPECT_EQ(restart["until"].Text(), "1min after the daemon's end");
  EXPECT_GT(restart["bytes"]["kvtier-keeper"].Count(), 128 * kTestBlockBytes);
  EXPECT_NE(Ctl({"status"}).output.find("kept by kvtier-keeper (pid"), std::string::npos);
}

TEST_F(KeptHostTest, AfterAKillTheBlocksAreHostHits) {
  Start();
  Fill();
  const int32_t keeper = KeeperPid();
  daemon().Kill();
  const auto killed = std::chrono::steady_clock::now();
  ASSERT_TRUE(daemon().Restart());
  const auto serving = std::chrono::steady_clock::now();
  EXPECT_EQ(KeeperPid(), keeper);
  EXPECT_TRUE(LogHas("host.adopted"));
  (void)Admin("settle");
  ExpectAllFromHost(PlayAgain());
  fmt::print("serving again after {} ms\n",
             std::chrono::duration_cast<std::chrono::milliseconds>(serving - killed).count());
}

TEST_F(KeptHostTest, AfterSigtermTheBlocksAreHostHits) {
  Start();
  Fill();
  EXPECT_EQ(daemon().Terminate(), 0);
  EXPECT_TRUE(LogHas("kept by kvtier-keeper until 1min after the daemon's end"));
  ASSERT_TRUE(daemon().Restart());
  (void)Admin("settle");
  ExpectAllFromHost(PlayAgain());
}

TEST_F(KeptHostTest, ManyDeathsInARowLoseNothing) {
  Start();
  Fill();
  for (int deaths = 0; deaths < 5; ++deaths) {
    daemon().Kill();
    ASSERT_TRUE(daemon().Restart());
  }
  (void)Admin("settle");
  ExpectAllFromHost(PlayAgain());
}

TEST_F(KeptHostTest, StartsThatFailForAnotherReasonAreNoDeaths) {
  Start();
  Fill();
  EXPECT_EQ(daemon().Terminate(), 0);
  {
    const UniqueFd other(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    daemon().admin_socket().copy(address.sun_path, sizeof(address.sun_path) - 1);
    ASSERT_EQ(::bind(other.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_EQ(::listen(other.get(), /*backlog=*/1000), 0) << "a full queue is waited for";
    for (int starts = 0; starts < 6; ++starts) EXPECT_FALSE(daemon().Restart());
  }
  ASSERT_TRUE(daemon().Restart());
  EXPECT_TRUE(LogHas("socket_in_use"));
  EXPECT_FALSE(LogHas("not_adopted")) << "neither host memory nor the pool";
  (void)Admin("settle");
  ExpectAllFromHost(PlayAgain());
}

TEST_F(KeptHostTest, WithTheKeeperKilledTooNothingIsAdoptedAndNothingIsWrong) {
  Start();
  Fill();
  const int32_t keeper = KeeperPid();
  daemon().Kill();
  ::kill(keeper, SIGKILL);
  EXPECT_TRUE(EndsSoon(keeper));
  ASSERT_TRUE(daemon().Restart());
  EXPECT_FALSE(LogHas("host.adopted"));
  const ReplayReport after = PlayAgain();
  EXPECT_EQ(after.blocks.miss, kPrompts * kBlocks);
  EXPECT_EQ(after.wrong_blocks, 0u);
}

TEST_F(KeptHostTest, AKeeperThatIsKilledIsReplacedAndTheBlocksSurviveTheDaemon) {
  Start();
  Fill();
  const int32_t first = KeeperPid();
  ::kill(first, SIGKILL);
  while (KeeperPid() == first || KeeperPid() == 0) {
  }
  EXPECT_TRUE(Eventually([this] { return LogHas("keeper.lost"); }));
  daemon().Kill();
  ASSERT_TRUE(daemon().Restart());
  (void)Admin("settle");
  ExpectAllFromHost(PlayAgain());
}

TEST_F(KeptHostTest, AKeeperThatIsStoppedWhileADaemonStartsHasItsBlocksWhenItGoesOn) {
  Start();
  const int32_t keeper = KeeperPid();
  daemon().Kill();
  ::kill(keeper, SIGSTOP);
  ASSERT_TRUE(daemon().Restart());
  ::kill(keeper, SIGCONT);
  while (KeeperPid() != keeper) {
  }
  Fill();
  daemon().Kill();
  ASSERT_TRUE(daemon().Restart());
  (void)Admin("settle");
  ExpectAllFromHost(PlayAgain());
}

TEST_F(KeptHostTest, ANewProgramFindsTheBlocksOfTheOld) {
  Start();
  Fill();
  EXPECT_EQ(daemon().Terminate(), 0);
  // As a package's files are put in place: another directory, another file.
  const std::filesystem::path upgraded = std::filesystem::path(directory()) / "upgraded";
  std::filesystem::create_directory(upgraded);
  for (const std::string program : {"kvtierd", "kvtier-keeper"}) {
    std::filesystem::copy_file(std::filesystem::path(KvtierdPath()).parent_path() / program,
                               upgraded / program);
  }
  Start({}, upgraded / "kvtierd");
  (void)Admin("settle");
  ExpectAllFromHost(PlayAgain());
}

TEST_F(KeptHostTest, MoreHostMemoryHasAllThatTheLastDaemonHad) {
  Start();
  Fill();
  daemon().Kill();
  StartWithHostBlocks(256);
  EXPECT_TRUE(LogHas("it had "));
  (void)Admin("settle");
  ExpectAllFromHost(PlayAgain());
  daemon().Kill();
  ASSERT_TRUE(daemon().Restart());
  (void)Admin("settle");
  ExpectAllFromHost(PlayAgain());
}

TEST_F(KeptHostTest, LessHostMemoryHasWhatFits) {
  Start();
  Fill();
  daemon().Kill();
  StartWithHostBlocks(40);
  (void)Admin("settle");
  const ReplayReport after = PlayAgain();
  EXPECT_GT(after.blocks.hit[static_cast<int>(Tier::kHost)], 0u);
  EXPECT_GT(after.blocks.miss, 0u);
  EXPECT_EQ(after.wrong_blocks, 0u);
}

TEST_F(KeptHostTest, StoppingLeavesItAndReleasingGivesItBack) {
  Start();
  const int32_t keeper = KeeperPid();
  const ProgramResult stopped = Ctl({"stop"});
  EXPECT_EQ(stopped.exit_code, 0) << stopped.errors;
  EXPECT_EQ(stopped.output, "stopped\n");
  EXPECT_EQ(::kill(keeper, 0), 0) << "it holds the memory";
  const ProgramResult released = Ctl({"stop", "--release"});
  EXPECT_EQ(released.exit_code, 0) << released.errors;
  EXPECT_EQ(released.output, "no daemon ran; nothing stays in memory\n");
  EXPECT_TRUE(EndsSoon(keeper));
  EXPECT_EQ(Ctl({"stop", "--release"}).exit_code, 3) << "neither daemon nor keeper is there";
}

TEST_F(KeptHostTest, WhatAUsersOwnDaemonHasLeftIsReleasedWithoutNamingIt) {
  // The command that names none would find that daemon first, and stop it.
  if (std::filesystem::exists(kSystemSocket)) GTEST_SKIP() << "a daemon serves this machine";
  Start();
  const int32_t keeper = KeeperPid();
  EXPECT_EQ(daemon().Terminate(), 0);
  auto made = TemporaryDirectory::Create();
  ASSERT_TRUE(made) << made.error().ToString();
  const std::filesystem::path runtime = made->path();
  std::filesystem::create_directory_symlink(directory(), runtime / "kvtier");
  const ScopedVariable runtime_variable("XDG_RUNTIME_DIR", runtime);
  const ScopedVariable temporary_variable("TMPDIR", runtime);
  const ScopedVariable unnamed(kSocketVariable, std::nullopt);
  const std::string absent = runtime / "kvtier.sock";
  EXPECT_EQ(RunProgram({KvtierctlPath(), "--socket", absent, "stop", "--release"}).exit_code, 3)
      << "another one was named";
  const ProgramResult released = RunProgram({KvtierctlPath(), "stop", "--release"});
  EXPECT_EQ(released.exit_code, 0) << released.errors;
  EXPECT_TRUE(EndsSoon(keeper));
  EXPECT_EQ(RunProgram({KvtierctlPath(), "stop", "--release"}).exit_code, 0) << "nothing is left";
  EXPECT_EQ(RunProgram({KvtierctlPath(), "stop"}).exit_code, 3);
}

TEST_F(KeptHostTest, StoppingWithReleaseEndsTheKeeperToo) {
  Start();
  const int32_t keeper = KeeperPid();
  const ProgramResult stopped = Ctl({"stop", "--release"});
  EXPECT_EQ(stopped.exit_code, 0) << stopped.errors;
  EXPECT_EQ(stopped.output, "stopped; nothing stays in memory\n");
  EXPECT_TRUE(EndsSoon(keeper));
  EXPECT_TRUE(LogHas("nothing stays kept"));
}

TEST_F(KeptHostTest, SwitchedOffNothingIsKept) {
  Start({"restart.keep_for=0s"});
  Fill();
  const boost::json::value status = Admin("status");
  EXPECT_EQ(JsonView(&status)["restart"]["bytes"]["kvtier-keeper"].Count(), 0u);
  daemon().Kill();
  ASSERT_TRUE(daemon().Restart());
  EXPECT_EQ(PlayAgain().blocks.miss, kPrompts * kBlocks);
}

}  // namespace
}  // namespace kvtier
