// SPDX-License-Identifier: Apache-2.0
// The program as systemd sees it: readiness, signs of life, reload, drain, and refusals to start.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "base/units.h"
#include "tests/fakes/temporary_directory.h"
#include "tests/unit/daemon/kvtierd_process.h"
#include "tests/unit/daemon/notify_socket.h"
#include "tests/unit/daemon/verbs.h"
#include "tests/unit/daemon/wire_client.h"

namespace kvtier {
namespace {

class KvtierdService : public testing::Test {
 protected:
  [[nodiscard]] std::string ConfigPath() const { return directory_.path() / "kvtierd.toml"; }
  void WriteConfig(const std::string& text) const { std::ofstream(ConfigPath()) << text; }
  // Small tiers, and the file's settings.
  [[nodiscard]] std::vector<std::string> Arguments() const {
    std::vector<std::string> arguments = SmallArguments(directory_.path());
    arguments.insert(arguments.end(), {"--config", ConfigPath()});
    return arguments;
  }

  // The same, less the one setting that the file is to give.
  [[nodiscard]] std::vector<std::string> ArgumentsWithout(const std::string& key) const {
    std::vector<std::string> arguments;
    for (const std::string& argument : Arguments()) {
      if (argument.starts_with(key + "=")) {
        arguments.pop_back();  // its "--set"
      } else {
        arguments.push_back(argument);
      }
    }
    return arguments;
  }

  const TestDirectory directory_;
  NotifySocket systemd_;
};

TEST_F(KvtierdService, IsReadyWhenItServesAndTellsItsTiers) {
  WriteConfig("");
  Kvtierd kvtierd(Arguments());
  EXPECT_EQ(systemd_.Receive(), "STATUS=Looking for another daemon\nEXTEND_TIMEOUT_USEC=120000000");
  const std::string ready = systemd_.ReceiveUntil("READY=1");
  EXPECT_NE(ready.find("STATUS=Serving 0 client(s): pool "), std::string::npos) << ready;
  EXPECT_NE(ready.find(", disk "), std::string::npos) << ready;
  WireClient client(directory_.path() / "kvtier.sock");
  EXPECT_NE(systemd_.ReceiveUntil("STATUS=Serving 1 client(s)"), "");
}

TEST_F(KvtierdService, GivesSignsOfLifeOnlyWhenAskedTo) {
  WriteConfig("");
  ::setenv("WATCHDOG_USEC", "300000", 1);
  Kvtierd watched(Arguments());
  ::unsetenv("WATCHDOG_USEC");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(systemd_.ReceiveUntil("WATCHDOG=1"), "WATCHDOG=1");
  // A process that makes no progress gives none. Its earlier messages are taken first.
  watched.Signal(SIGSTOP);
  while (!systemd_.Receive(/*timeout_ms=*/500).empty()) {
  }
  watched.Signal(SIGCONT);
  EXPECT_EQ(systemd_.ReceiveUntil("WATCHDOG=1"), "WATCHDOG=1");
}

TEST_F(KvtierdService, ReloadTakesWhatItCanAndNamesWhatItCannot) {
  WriteConfig("[log]\nlevel = \"info\"\n");
  Kvtierd kvtierd(Arguments());
  ASSERT_NE(systemd_.ReceiveUntil("READY=1"), "");
  WriteConfig("[retention]\nextended_ttl = \"7d\"\n\n[kernels]\nenabled = false\n");
  kvtierd.Signal(SIGHUP);
  EXPECT_NE(systemd_.ReceiveUntil("RELOADING=1"), "");
  EXPECT_NE(systemd_.ReceiveUntil("READY=1"), "");
  ASSERT_TRUE(kvtierd.ReadUntil("config.reloaded: 1 key(s) changed, 1 wait for a restart"))
      << kvtierd.output();
  const std::string& log = kvtierd.output();
  EXPECT_NE(log.find("config.changed: " + ConfigPath() +
                     ":2:16: retention.extended_ttl: \"7d\" instead of \"1d\""),
            std::string::npos)
      << log;
  EXPECT_NE(log.find("config.needs_restart: " + ConfigPath() +
                     ":5:11: kernels.enabled: false is wanted, true stays until a restart"),
            std::string::npos)
      << log;
}

TEST_F(KvtierdService, ReloadOfAFileWithMistakesTellsThemAndChangesNothing) {
  WriteConfig("");
  Kvtierd kvtierd(Arguments());
  ASSERT_NE(systemd_.ReceiveUntil("READY=1"), "");
  WriteConfig("[retention]\nextended_ttl = \"7d\"\nmemory_ttl = 3\nmax_age = 4\n");
  kvtierd.Signal(SIGHUP);
  EXPECT_TRUE(kvtierd.ReadUntil("config.rejected: " + ConfigPath() + ":3:14: "))
      << kvtierd.output();
  EXPECT_TRUE(kvtierd.ReadUntil("; " + ConfigPath() + ":4:11: ")) << kvtierd.output();
  EXPECT_TRUE(kvtierd.ReadUntil("; nothing was changed"));
  EXPECT_NE(systemd_.ReceiveUntil("READY=1"), "");
  WriteConfig("");
  kvtierd.Signal(SIGHUP);
  EXPECT_TRUE(kvtierd.ReadUntil("config.reloaded: 0 key(s) changed, 0 wait")) << kvtierd.output();
}

TEST_F(KvtierdService, ReloadLetsNewTenantsIn) {
  WriteConfig("[[tenant]]\nname = \"others\"\nuids = [4000000]\n");
  Kvtierd kvtierd(Arguments());
  ASSERT_NE(systemd_.ReceiveUntil("READY=1"), "");
  {
    WireClient refused(directory_.path() / "kvtier.sock");
    EXPECT_EQ(refused.ExpectError(0), "unknown_user");
  }
  WriteConfig("[[tenant]]\nname = \"me\"\nuids = [" + std::to_string(::geteuid()) + "]\n");
  kvtierd.Signal(SIGHUP);
  ASSERT_TRUE(kvtierd.ReadUntil("config.reloaded"));
  WireClient client(directory_.path() / "kvtier.sock");
  (void)Fill(&client, client.Attach().pool, Hashes(0, 3));
}

TEST_F(KvtierdService, ReloadBelowWhatIsPinnedIsRefusedAndNamesKeyAndRemedy) {
  WriteConfig("[disk]\nbytes = \"8MiB\"\n");
  Kvtierd kvtierd(ArgumentsWithout("disk.bytes"));
  ASSERT_NE(systemd_.ReceiveUntil("READY=1"), "");
  WireClient client(directory_.path() / "kvtier.sock");
  const PoolId pool = client.Attach().pool;
  const std::vector<BlockHash> hashes = Hashes(0, 40);
  (void)Fill(&client, pool, hashes);
  ASSERT_EQ(
      client.Call<wire::PinReply>(wire::Pin{.pool = pool, .ttl_ms = 600'000, .hashes = hashes})
          .count,
      40u);
  WriteConfig("[disk]\n\nbytes = \"1280KiB\"\n[retention]\nextended_ttl = \"7d\"\n");
  kvtierd.Signal(SIGHUP);
  EXPECT_TRUE(kvtierd.ReadUntil("config.rejected: " + ConfigPath() +
                                ":3:9: disk.bytes 1280KiB has room for 256.0 KiB of blocks, less "
                                "than the 320.0 KiB that are pinned; unpin blocks"))
      << kvtierd.output();
  EXPECT_EQ(kvtierd.output().find("config.changed"), std::string::npos);
}

TEST_F(KvtierdService, ReloadMakesHostMemorySmallerAndLarger) {
  WriteConfig("[host]\nbytes = \"2MiB\"\n");
  Kvtierd kvtierd(ArgumentsWithout("host.bytes"));
  ASSERT_NE(systemd_.ReceiveUntil("READY=1"), "");
  ASSERT_TRUE(kvtierd.ReadUntil("host.complete")) << kvtierd.output();
  WriteConfig("[host]\nbytes = \"512KiB\"\n");
  kvtierd.Signal(SIGHUP);
  EXPECT_TRUE(kvtierd.ReadUntil("host.bytes: \"512KiB\" instead of \"2MiB\"")) << kvtierd.output();
  EXPECT_TRUE(
      kvtierd.ReadUntil("host.given_back: host memory has 512.0 KiB now, 1.5 MiB were given back"))
      << kvtierd.output();
  EXPECT_NE(systemd_.ReceiveUntil("of 512.0 KiB, disk"), "");
  WriteConfig("[host]\nbytes = \"3MiB\"\n");
  kvtierd.Signal(SIGHUP);
  EXPECT_TRUE(kvtierd.ReadUntil("host.complete: 3.0 MiB of host memory ready")) << kvtierd.output();
}

TEST_F(KvtierdService, ReloadMakesTheDiskTierSmallerAndLarger) {
  const auto file_bytes = [this] {
    return std::filesystem::file_size(directory_.path() / "disk" / "blocks.kvt");
  };
  WriteConfig("[disk]\nbytes = \"8MiB\"\n");
  Kvtierd kvtierd(ArgumentsWithout("disk.bytes"));
  ASSERT_NE(systemd_.ReceiveUntil("READY=1"), "");
  ASSERT_EQ(file_bytes(), 8 * kMiB);
  WriteConfig("[disk]\nbytes = \"3MiB\"\n");
  kvtierd.Signal(SIGHUP);
  EXPECT_TRUE(kvtierd.ReadUntil("disk.resized: 2.0 MiB in 1 file(s)")) << kvtierd.output();
  EXPECT_EQ(file_bytes(), 3 * kMiB);
  EXPECT_NE(systemd_.ReceiveUntil("disk 0 B of 2.0 MiB"), "");
  WriteConfig("[disk]\nbytes = \"12MiB\"\n");
  kvtierd.Signal(SIGHUP);
  EXPECT_TRUE(kvtierd.ReadUntil("disk.resized: 11.0 MiB in 1 file(s)")) << kvtierd.output();
  EXPECT_EQ(file_bytes(), 12 * kMiB);
  WriteConfig("[disk]\nbytes = \"0B\"\n");
  kvtierd.Signal(SIGHUP);
  EXPECT_TRUE(kvtierd.ReadUntil("disk.bytes: \"0B\" is wanted, \"12MiB\" stays until a restart"))
      << kvtierd.output();
}

TEST_F(KvtierdService, ReloadBeyondTheMachinesMemoryIsRefusedAsAWhole) {
  WriteConfig("");
  Kvtierd kvtierd(ArgumentsWithout("host.bytes"));
  ASSERT_NE(systemd_.ReceiveUntil("READY=1"), "");
  WriteConfig("[host]\nbytes = \"1024TiB\"\n[retention]\nextended_ttl = \"7d\"\n");
  kvtierd.Signal(SIGHUP);
  EXPECT_TRUE(kvtierd.ReadUntil("config.rejected: " + ConfigPath() + ":2:9: host.bytes"))
      << kvtierd.output();
  EXPECT_EQ(kvtierd.output().find("config.changed"), std::string::npos);
}

TEST_F(KvtierdService, DrainTellsItsProgressAndHowLongItMayTake) {
  WriteConfig("[drain]\ndeadline = \"20s\"\n");
  Kvtierd kvtierd(Arguments());
  ASSERT_NE(systemd_.ReceiveUntil("READY=1"), "");
  WireClient client(directory_.path() / "kvtier.sock");
  (void)Fill(&client, client.Attach().pool, Hashes(0, 20));
  kvtierd.Signal(SIGTERM);
  EXPECT_NE(systemd_.ReceiveUntil("STOPPING=1"), "");
  const std::string draining = systemd_.ReceiveUntil("STATUS=Draining: 20 blocks to disk");
  EXPECT_NE(draining.find("EXTEND_TIMEOUT_USEC=35000000"), std::string::npos) << draining;
  EXPECT_EQ(kvtierd.Wait(), 0);
}

class KvtierdDrain : public KvtierdService {
 protected:
  static constexpr int kBlocks = 32'000;
  // The number of blocks of 8 KiB, with their headers, that may be written at once.
  static constexpr int kBlocksUnderWay = 32 * 1024 / 8;

  [[nodiscard]] std::vector<std::string> LargeArguments() const {
    std::vector<std::string> arguments = Arguments();
    for (const char* setting : {"pool.bytes=128MiB", "host.bytes=256MiB", "disk.bytes=384MiB",
                                "cache.slab_bytes=1MiB", "retention.persist_after=1d"}) {
      arguments.insert(arguments.end(), {"--set", setting});
    }
    return arguments;
  }

  // With far more to write than a moment is enough for.
  std::unique_ptr<Kvtierd> StartAndFill(const std::string& deadline) {
    WriteConfig("[drain]\ndeadline = \"" + deadline + "\"\n");
    auto kvtierd = std::make_unique<Kvtierd>(LargeArguments());
    EXPECT_NE(systemd_.ReceiveUntil("READY=1"), "");
    // Blocks that memory has no room for yet would leave.
    EXPECT_TRUE(kvtierd->ReadUntil("host.complete"));
    WireClient client(directory_.path() / "kvtier.sock");
    const PoolId pool = client.Attach().pool;
    constexpr int kBlocksPerCall = 8000;
    for (int first = 0; first < kBlocks; first += kBlocksPerCall) {
      (void)Fill(&client, pool, Hashes(static_cast<uint64_t>(first), kBlocksPerCall));
    }
    return kvtierd;
  }
};

TEST_F(KvtierdDrain, EndsAtItsDeadlineAndTellsWhatIsLost) {
  const auto kvtierd = StartAndFill("1ms");
  kvtierd->Signal(SIGTERM);
  EXPECT_EQ(kvtierd->Wait(), 0);
  EXPECT_NE(kvtierd->output().find("drain.incomplete: "), std::string::npos) << kvtierd->output();
  EXPECT_NE(kvtierd->output().find(" blocks were not written in "), std::string::npos);
}

TEST_F(KvtierdDrain, NothingIsWrittenAfterTheDeadlineButWhatWasUnderWay) {
  const auto kvtierd = StartAndFill("1ms");
  kvtierd->Signal(SIGTERM);
  ASSERT_EQ(kvtierd->Wait(), 0);
  const std::string& log = kvtierd->output();
  const size_t told = log.find("drain.incomplete: ");
  ASSERT_NE(told, std::string::npos) << log;
  const int lost = std::stoi(log.substr(told + std::string("drain.incomplete: ").size()));
  // A thousandth of a second, and what writes and one batch of copies had begun.
  EXPECT_GT(lost, kBlocks * 9 / 10 - kBlocksUnderWay) << log;

  Kvtierd next(LargeArguments());
  ASSERT_NE(systemd_.ReceiveUntil("READY=1"), "");
  WireClient admin(directory_.path() / "admin.sock");
  admin.Send(wire::AdminRequest{R"({"op":"status"})"});
  const auto reply = admin.Receive();
  ASSERT_TRUE(reply && reply->Is(wire::MessageType::kAdminReply));
  const auto status =
      boost::json::parse(wire::Decode<wire::AdminReply>(reply->payload).value().json);
  EXPECT_EQ(status.at("tiers").at("disk").at("blocks"), kBlocks - lost);
}

TEST_F(KvtierdDrain, BeforeAStopEndsAtTheDeadlineAndPutsTheTimeoutOff) {
  const auto blocks_left = [this] {
    WireClient admin(directory_.path() / "admin.sock");
    admin.Send(wire::AdminRequest{R"({"op":"drain_before_stop"})"});
    auto reply = admin.Receive();
    while (reply && reply->Is(wire::MessageType::kAdminProgress)) reply = admin.Receive();
    EXPECT_TRUE(reply && reply->Is(wire::MessageType::kAdminReply));
    return boost::json::parse(wire::Decode<wire::AdminReply>(reply->payload).value().json)
        .at("left")
        .to_number<int>();
  };
  {
    const auto kvtierd = StartAndFill("0s");
    EXPECT_EQ(blocks_left(), kBlocks);
    kvtierd->Signal(SIGTERM);
    EXPECT_EQ(kvtierd->Wait(), 0);
    EXPECT_NE(kvtierd->output().find("drain.skipped"), std::string::npos) << kvtierd->output();
  }
  const auto kvtierd = StartAndFill("1ms");
  EXPECT_GT(blocks_left(), kBlocks / 2);
  EXPECT_NE(systemd_.ReceiveUntil("STATUS=Draining before the stop\nEXTEND_TIMEOUT_USEC=10001000"),
            "");
}

TEST_F(KvtierdDrain, TellsWhatTheWriteBudgetRefused) {
  WriteConfig("[disk]\nwrite_budget_per_day = \"64KiB\"\n");
  Kvtierd kvtierd(Arguments());
  ASSERT_NE(systemd_.ReceiveUntil("READY=1"), "");
  WireClient client(directory_.path() / "kvtier.sock");
  (void)Fill(&client, client.Attach().pool, Hashes(0, 20));
  kvtierd.Signal(SIGTERM);
  EXPECT_EQ(kvtierd.Wait(), 0);
  EXPECT_NE(kvtierd.output().find(" 12 were refused"), std::string::npos) << kvtierd.output();
}

TEST_F(KvtierdDrain, TellsHowManyBlocksAreLeftWhenItTakesLong) {
  std::string progress;
  // On a busy machine a drain may end before it is stopped, and then tells of no progress.
  for (int tries = 0; progress.empty() && tries < 5; ++tries) {
    std::filesystem::remove_all(directory_.path() / "disk");
    const auto kvtierd = StartAndFill("1h");
    kvtierd->Signal(SIGTERM);
    ASSERT_NE(systemd_.ReceiveUntil("STATUS=Draining: 32000 blocks"), "");
    // It takes long because it is kept from working. Its earlier messages are taken first.
    kvtierd->Signal(SIGSTOP);
    while (!systemd_.Receive(/*timeout_ms=*/1100).empty()) {
    }
    kvtierd->Signal(SIGCONT);
    do {
      progress = systemd_.Receive(/*timeout_ms=*/10'000);
    } while (!progress.empty() &&
             progress.find(" of 32000 blocks are left, 35") == std::string::npos);
    EXPECT_EQ(kvtierd->Wait(), 0);
    EXPECT_NE(kvtierd->output().find("drain.done"), std::string::npos) << kvtierd->output();
  }
  EXPECT_EQ(progress.find("STATUS=Draining: "), 0u) << progress;
  EXPECT_EQ(progress.find("STATUS=Draining: 0 of"), std::string::npos) << progress;
}

TEST_F(KvtierdService, LockOfAProcessThatIsGoneHoldsNobodyUp) {
  WriteConfig("");
  std::filesystem::create_directory(directory_.path() / "disk");
  std::ofstream(directory_.path() / "disk" / "lock") << "4194304\n";
  Kvtierd kvtierd(Arguments());
  EXPECT_TRUE(kvtierd.ReadUntil("READY socket=")) << kvtierd.output();
}

TEST_F(KvtierdService, LockedDirectoryNamesKeyPlaceHolderAndRemedy) {
  WriteConfig("\n[disk]\ndirectory = \"" + (directory_.path() / "disk").string() + "\"\n");
  Kvtierd first(Arguments());
  ASSERT_NE(systemd_.ReceiveUntil("READY=1"), "");
  std::vector<std::string> arguments = ArgumentsWithout("disk.directory");
  for (const char* key : {"server.socket", "server.admin_socket"}) {
    arguments.insert(arguments.end(),
                     {"--set", std::string(key) + "=" + (directory_.path() / key).string()});
  }
  Kvtierd second(arguments);
  EXPECT_EQ(second.Wait(), 1);
  const std::string& log = second.output();
  EXPECT_NE(log.find(ConfigPath() + ":3:13: disk.directory: "), std::string::npos) << log;
  EXPECT_NE(log.find("is in use by process "), std::string::npos) << log;
  EXPECT_NE(log.find("stop that process, or give this daemon a directory of its own"),
            std::string::npos)
      << log;
}

TEST_F(KvtierdService, DirectoryOfSomeoneElseNamesKeyOwnerAndRemedy) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a directory away";
  WriteConfig("");
  const std::filesystem::path disk = directory_.path() / "disk";
  std::filesystem::create_directory(disk);
  ASSERT_EQ(::chown(disk.c_str(), 12345, 12345), 0);
  Kvtierd kvtierd(Arguments());
  ASSERT_TRUE(kvtierd.ReadUntil("READY socket=")) << kvtierd.output();
  const std::string& log = kvtierd.output();
  EXPECT_NE(log.find("disk.unavailable: "), std::string::npos) << log;
  EXPECT_NE(log.find("disk.directory: " + disk.string() + " belongs to uid 12345"),
            std::string::npos)
      << log;
  EXPECT_NE(log.find("give the directory to the daemon's user"), std::string::npos) << log;
}

TEST_F(KvtierdService, EndsToBeStartedAgainWhenTheDiskOfAStartWithoutItIsThere) {
  WriteConfig("");
  const std::filesystem::path mount = directory_.path() / "mount";
  std::vector<std::string> arguments = Arguments();
  arguments.insert(arguments.end(), {"--set", "disk.directory=" + (mount / "disk").string()});
  Kvtierd kvtierd(arguments);
  ASSERT_TRUE(kvtierd.ReadUntil("READY socket=")) << kvtierd.output();
  EXPECT_NE(kvtierd.output().find("disk.unavailable: "), std::string::npos) << kvtierd.output();
  std::filesystem::create_directory(mount);
  EXPECT_EQ(kvtierd.Wait(), 75) << kvtierd.output();
  Kvtierd next(arguments);
  ASSERT_TRUE(next.ReadUntil("READY socket=")) << next.output();
  EXPECT_EQ(next.output().find("disk.unavailable: "), std::string::npos) << next.output();
}

TEST_F(KvtierdService, AStartThatLacksTheDiskAgainWaitsLongerBeforeTheNext) {
  WriteConfig("");
  {
    // The limit lets a probe's file pass, and not the tier's.
    const Kvtierd::Limits limits{.file_bytes = 1 * kMiB};
    Kvtierd first(Arguments(), limits);
    ASSERT_NE(systemd_.ReceiveUntil("READY=1"), "");
    EXPECT_EQ(first.Wait(), 75) << first.output();
    Kvtierd second(Arguments(), limits);
    ASSERT_NE(systemd_.ReceiveUntil("READY=1"), "");
    EXPECT_TRUE(
        second.ReadUntil("disk.back: the disk could not be had after all: it is tried "
                         "again in 20 s"))
        << second.output();
  }
  {
    Kvtierd with_disk(Arguments());
    ASSERT_NE(systemd_.ReceiveUntil("READY=1"), "");
    with_disk.Signal(SIGTERM);
    EXPECT_EQ(with_disk.Wait(), 0);
  }
  EXPECT_FALSE(std::filesystem::exists(directory_.path() / "kvtier.sock.disk-retry"));
}

TEST_F(KvtierdService, SocketOfARunningDaemonNamesKeyAndRemedy) {
  WriteConfig("");
  Kvtierd first(Arguments());
  ASSERT_NE(systemd_.ReceiveUntil("READY=1"), "");
  std::vector<std::string> arguments = Arguments();
  arguments.insert(arguments.end(), {"--set", "disk.bytes=0B"});
  Kvtierd second(arguments);
  EXPECT_EQ(second.Wait(), 1);
  EXPECT_NE(second.output().find("server.admin_socket: another process listens on "),
            std::string::npos)
      << second.output();
  EXPECT_NE(second.output().find("; stop that process, or name another path"), std::string::npos);
}

}  // namespace
}  // namespace kvtier
