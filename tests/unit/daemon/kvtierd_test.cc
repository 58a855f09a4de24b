// SPDX-License-Identifier: Apache-2.0
// The program: arguments, exit codes, signals.

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/fakes/temporary_directory.h"
#include "tests/unit/daemon/kvtierd_process.h"
#include "tests/unit/daemon/verbs.h"
#include "tests/unit/daemon/wire_client.h"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

TEST(Kvtierd, TellsItsVersionAndWhetherItWasBuiltForGpus) {
  Kvtierd kvtierd({"--version"});
  EXPECT_EQ(kvtierd.Wait(), 0);
  EXPECT_EQ(kvtierd.output().substr(0, 8), "kvtierd ");
  EXPECT_NE(kvtierd.output().find(" CUDA"), std::string::npos) << kvtierd.output();
}

TEST(Kvtierd, RefusesUnknownArguments) { EXPECT_EQ(Kvtierd({"--frobnicate"}).Wait(), 2); }

// A script's variable without a value.
TEST(Kvtierd, RefusesAnEmptyPathOfTheConfiguration) {
  EXPECT_EQ(Kvtierd({"--config", "", "--check-config"}).Wait(), 2);
}

TEST(Kvtierd, ChecksAConfigurationAndShowsIt) {
  Kvtierd kvtierd({"--check-config", "--set", "pool.bytes=2GiB"});
  EXPECT_EQ(kvtierd.Wait(), 0);
  EXPECT_NE(kvtierd.output().find("\nbytes = \"2GiB\"\n"), std::string::npos);
}

TEST(Kvtierd, ACheckTellsAllMistakesALineEach) {
  const TestDirectory directory;
  const std::string path = directory.path() / "kvtierd.toml";
  std::ofstream(path) << "[pool]\nbites = 3\n[disk]\nfiles = 0\n";
  Kvtierd kvtierd({"--check-config", "--config", path});
  EXPECT_EQ(kvtierd.Wait(), 78);
  EXPECT_NE(kvtierd.output().find("kvtierd: " + path + ":2:"), std::string::npos);
  EXPECT_NE(kvtierd.output().find("kvtierd: " + path + ":4:"), std::string::npos);
}

TEST(Kvtierd, ACheckRefusesAPasswordForADirectoryThatHostsShare) {
  Kvtierd kvtierd({"--check-config", "--set", "cold.endpoint=file:///srv/kv", "--set",
                   "cold.password_file=/etc/kvtier/password"});
  EXPECT_EQ(kvtierd.Wait(), 78);
  EXPECT_NE(kvtierd.output().find("cold.password_file is of no use"), std::string::npos)
      << kvtierd.output();
}

TEST(Kvtierd, ACheckLooksForTheFilesAndTheGpuThatAreNamed) {
  Kvtierd kvtierd({"--check-config", "--set", "disk.encryption=aes-256-gcm", "--set",
                   "disk.root_key=/nonexistent/root.key", "--set",
                   "cold.endpoint=resp://127.0.0.1:6379", "--set",
                   "cold.password_file=/nonexistent/password", "--set", "pool.device=cuda:15"});
  EXPECT_EQ(kvtierd.Wait(), 0) << kvtierd.output();
  for (const char* const found :
       {"warning: --set disk.root_key=/nonexistent/root.key: disk.root_key: ",
        "warning: --set cold.password_file=/nonexistent/password: cold.password_file: ",
        "warning: --set pool.device=cuda:15: pool.device: "}) {
    EXPECT_NE(kvtierd.output().find(found), std::string::npos) << found << kvtierd.output();
  }
}

TEST(Kvtierd, ACheckLooksForAFileOfCredentialsAndNotIntoIt) {
  const TestDirectory directory;
  const std::string path = directory.path() / "credentials";
  const auto checked = [&path] {
    Kvtierd kvtierd({"--check-config", "--set", "cold.endpoint=s3://blocks", "--set",
                     "cold.password_file=" + path});
    EXPECT_EQ(kvtierd.Wait(), 0);
    return kvtierd.output();
  };
  EXPECT_NE(checked().find("cold.password_file: " + path + " cannot be read"), std::string::npos);
  std::ofstream(path) << "\n[default]\n";
  EXPECT_EQ(checked().find("cold.password_file: "), std::string::npos);
}

TEST(Kvtierd, HasAKeeperWhereItMakesTheSocketsDirectory) {
  const TestDirectory directory;
  std::vector<std::string> arguments = SmallArguments(directory.path());
  const std::string socket = directory.path() / "made" / "kvtier.sock";
  arguments.insert(arguments.end(),
                   {"--set", "server.socket=" + socket, "--set", "restart.keep_for=1s"});
  Kvtierd kvtierd(arguments);
  ASSERT_TRUE(kvtierd.ReadUntil("server.ready"));
  EXPECT_NE(kvtierd.output().find("keeper.ready"), std::string::npos) << kvtierd.output();
}

// A configuration beside a check of it: 0 serves, 1 may start later, 78 never will.
class CheckAndStartTest : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directory(place_ / "directory");
    fs::create_directory_symlink(place_ / "directory", place_ / "link");
    std::ofstream(place_ / "file") << "text";
    fs::permissions(place_ / "file", fs::perms(0600));
  }
  // `settings` may name the test's directory as "@". `told`: the check says why.
  void Expect(int start, bool told, const std::vector<std::string>& settings,
              const Kvtierd::Limits& limits = {}) {
    std::vector<std::string> arguments = SmallArguments(place_);
    for (std::string setting : settings) {
      if (setting.starts_with("disk.directories")) {
        const auto one =
            std::ranges::find(arguments, "disk.directory=" + (place_ / "disk").native());
        arguments.erase(one - 1, one + 1);
      }
      while (setting.find('@') != std::string::npos) {
        setting.replace(setting.find('@'), 1, place_.native());
      }
      arguments.insert(arguments.end(), {"--set", setting});
    }
    SCOPED_TRACE(settings.empty() ? "" : settings.back());
    Kvtierd started(arguments, limits);
    EXPECT_EQ(started.ReadUntil("READY socket="), start == 0) << started.output();
    started.Signal(SIGTERM);
    EXPECT_EQ(started.Wait(), start) << started.output();
    arguments.emplace_back("--check-config");
    Kvtierd checked(arguments, limits);
    EXPECT_EQ(checked.Wait(), start == 78 ? 78 : 0) << checked.output();
    const bool warns = checked.output().find("kvtierd: warning: ") != std::string::npos;
    EXPECT_EQ(warns, told && start != 78) << checked.output();
  }

  const TestDirectory directory_;
  const fs::path place_ = directory_.path();
};

TEST_F(CheckAndStartTest, TheyAgreeAboutSocketsAndAddresses) {
  Expect(0, false, {});
  Expect(0, false, {"server.socket=@/made/kvtier.sock"});
  Expect(1, true, {"server.socket=@/missing/missing/kvtier.sock"});
  Expect(1, true, {"server.socket=@/directory"});
  Expect(1, true, {"server.admin_socket=@/file"});
  Expect(1, true, {"server.admin_socket=@/file/admin.sock"});
  Expect(78, true, {"server.socket=@/" + std::string(108, 'k')});
  Expect(1, true, {"events.endpoint=ipc://@/missing/events.sock"});
  Expect(1, true, {"server.listen_beyond_loopback=true", "metrics.listen=192.0.2.1:9400"});
  Expect(1, true, {"server.listen_beyond_loopback=true", "events.endpoint=tcp://192.0.2.1:9401"});
}

TEST_F(CheckAndStartTest, TheyAgreeAboutTheDisk) {
  Expect(0, true, {"disk.directory=@/missing/missing"});
  Expect(0, true, {"disk.directory=@/file"});
  Expect(78, true, {"disk.bytes=16MiB", R"(disk.directories=["@/directory", "@/link"])"});
  Expect(0, true, {"disk.bytes=16MiB", R"(disk.directories=["@/directory", "@/missing"])"});
  Expect(78, true, {"disk.encryption=aes-256-gcm", "disk.root_key=@/file"});
  Expect(1, true, {"disk.encryption=aes-256-gcm", "disk.root_key=@/missing"});
  Expect(1, true, {"disk.encryption=aes-256-gcm", "disk.root_key=kvtier.root"});
  Expect(0, false, {"disk.directory=@/disk/"});
  Expect(78, true, {"cache.slab_bytes=512KiB"});
}

TEST_F(CheckAndStartTest, TheyAgreeAboutTheMachine) {
  Expect(78, true, {"pool.bytes=1023TiB"});
  Expect(1, true, {"host.bytes=1023TiB"});
  Expect(0, false, {"cold.endpoint=file://@"});
  const std::string elsewhere = place_ / "kvtierd";
  fs::copy_file(KVTIERD_PATH, elsewhere);
  Expect(1, true, {"cold.endpoint=file://@"}, {.program = elsewhere});
}

TEST(Kvtierd, EndsWith78OnAnyConfigurationError) {
  const TestDirectory directory;
  const std::string path = directory.path() / "kvtierd.toml";
  std::ofstream(path) << "[server]\nsocket = \"/run/kv";
  Kvtierd truncated({"--config", path});
  EXPECT_EQ(truncated.Wait(), 78);
  EXPECT_NE(truncated.output().find(path + ":2:"), std::string::npos) << truncated.output();
  EXPECT_EQ(Kvtierd({"--config", "/nonexistent.toml"}).Wait(), 78);
  EXPECT_EQ(Kvtierd({"--set", "pool.bytes=3"}).Wait(), 78);
}

// Expects that the daemon serves, and says that it has no disk tier because of `reason`.
void ExpectToServeWithoutDisk(Kvtierd* kvtierd, const std::filesystem::path& directory,
                              const std::string& reason) {
  ASSERT_TRUE(kvtierd->ReadUntil("READY socket=")) << kvtierd->output();
  const std::string& log = kvtierd->output();
  EXPECT_NE(log.find("W disk.unavailable: "), std::string::npos) << log;
  EXPECT_NE(log.find(reason), std::string::npos) << log;
  WireClient client(directory / "kvtier.sock");
  (void)Fill(&client, client.Attach().pool, Hashes(0, 4));
}

TEST(Kvtierd, ServesWithoutADiskTierThatCannotBeMade) {
  const TestDirectory directory;
  auto arguments = SmallArguments(directory.path());
  arguments.insert(arguments.end(), {"--set", "disk.directory=/proc/kvtier"});
  Kvtierd kvtierd(arguments);
  ExpectToServeWithoutDisk(&kvtierd, directory.path(), "/proc/kvtier");
}

TEST(Kvtierd, ServesWithoutADiskTierForWhichThereIsNoRoom) {
  const TestDirectory directory;
  auto arguments = SmallArguments(directory.path());
  arguments.insert(arguments.end(), {"--set", "disk.free_floor_bytes=10TiB"});
  Kvtierd kvtierd(arguments);
  ExpectToServeWithoutDisk(&kvtierd, directory.path(), "disk_full");
}

TEST(Kvtierd, WarnsOfAModelThatDoesNotNameItsWeightsAndOfNoOther) {
  const TestDirectory directory;
  Kvtierd kvtierd(SmallArguments(directory.path()));
  ASSERT_TRUE(kvtierd.ReadUntil("READY socket=")) << kvtierd.output();
  WireClient client(directory.path() / "kvtier.sock");
  (void)client.Hello();
  ModelRecord record = TestModel();
  record.revision.clear();
  record.extra = {{"weights", "files:0123"}};
  record.name = "by-digest";
  (void)client.Call<wire::RegisterModelReply>(wire::RegisterModel{record});
  record.extra.clear();
  record.name = "by-name-alone";
  (void)client.Call<wire::RegisterModelReply>(wire::RegisterModel{record});
  ASSERT_TRUE(kvtierd.ReadUntil("model.no_revision: \"by-name-alone\" of tenant"))
      << kvtierd.output();
  EXPECT_EQ(kvtierd.output().find("\"by-digest\""), std::string::npos) << kvtierd.output();
}

TEST(Kvtierd, ALimitOnTheSizeOfFilesIsAnErrorOfAWriteAndNotTheEnd) {
  const TestDirectory directory;
  Kvtierd kvtierd(SmallArguments(directory.path()), {.file_bytes = 1 << 20});
  ASSERT_TRUE(kvtierd.ReadUntil("READY socket=")) << kvtierd.output();
  kvtierd.Signal(SIGTERM);
  EXPECT_EQ(kvtierd.Wait(), 0) << kvtierd.output();
}

TEST(Kvtierd, SecondOneOnADirectoryEndsSoThatItIsTriedAgain) {
  const TestDirectory directory;
  Kvtierd first(SmallArguments(directory.path()));
  ASSERT_TRUE(first.ReadUntil("READY socket="));
  auto arguments = SmallArguments(directory.path());
  for (const char* key : {"server.socket", "server.admin_socket"}) {
    arguments.insert(arguments.end(),
                     {"--set", std::string(key) + "=" + (directory.path() / key).string()});
  }
  Kvtierd second(arguments);
  EXPECT_EQ(second.Wait(), 1);
  EXPECT_NE(second.output().find("directory_locked"), std::string::npos) << second.output();
}

TEST(Kvtierd, SaysThatAThreadOrMemoryCouldNotBeHad) {
  const TestDirectory directory;
  for (const uint64_t mebibytes : {100, 130, 160, 200, 250, 300}) {
    Kvtierd kvtierd(SmallArguments(directory.path()), {.address_space_bytes = mebibytes << 20});
    if (kvtierd.ReadUntil("READY socket=")) continue;
    // RocksDB ends the process itself when it gets no thread of its own, and says so.
    const int code = kvtierd.Wait();
    const std::string& output = kvtierd.output();
    const bool by_index = output.find("pthread") != std::string::npos;
    EXPECT_EQ(output.find("terminate called"), std::string::npos) << output;
    EXPECT_TRUE(by_index || code == 1 || code == 78 || code == 127) << code << ": " << output;
  }
}

TEST(Kvtierd, TooFewDescriptorsAreNamedInTheError) {
  const TestDirectory directory;
  Kvtierd kvtierd(SmallArguments(directory.path()), {.descriptors = 16});
  EXPECT_NE(kvtierd.Wait(), 0);
  EXPECT_NE(kvtierd.output().find("16 descriptors"), std::string::npos) << kvtierd.output();
}

// Each part of the start takes some descriptors, so that each number fails at another place.
TEST(Kvtierd, AnyNumberOfDescriptorsIsEnoughOrIsNamed) {
  for (uint64_t descriptors = 4; descriptors <= 28; ++descriptors) {
    const TestDirectory directory;
    Kvtierd kvtierd(SmallArguments(directory.path()), {.descriptors = descriptors});
    if (kvtierd.ReadUntil("READY socket=")) continue;
    const int code = kvtierd.Wait();
    if (code == 127) continue;  // too few for the dynamic loader, which says so
    EXPECT_TRUE(code == 1 || code == 78) << descriptors << ": " << code;
    EXPECT_NE(kvtierd.output().find("descriptor"), std::string::npos)
        << descriptors << ": " << kvtierd.output();
  }
}

TEST(Kvtierd, TerminationDrainsToDisk) {
  const TestDirectory directory;
  {
    Kvtierd kvtierd(SmallArguments(directory.path()));
    ASSERT_TRUE(kvtierd.ReadUntil("READY socket=")) << kvtierd.output();
    WireClient client(directory.path() / "kvtier.sock");
    (void)Fill(&client, client.Attach().pool, Hashes(0, 20));
    kvtierd.Signal(SIGTERM);
    EXPECT_EQ(client.ExpectError(0), "shutting_down");
    EXPECT_EQ(kvtierd.Wait(), 0);
    EXPECT_NE(kvtierd.output().find("drain.done"), std::string::npos) << kvtierd.output();
  }
  Kvtierd kvtierd(SmallArguments(directory.path()));
  ASSERT_TRUE(kvtierd.ReadUntil("READY socket="));
  EXPECT_TRUE(kvtierd.ReadUntil("index.loaded: 20 blocks")) << kvtierd.output();
  WireClient client(directory.path() / "kvtier.sock");
  const PoolId pool = client.Attach().pool;
  EXPECT_EQ(Acquire(&client, pool, Hashes(0, 20), 0).hits.size(), 20u);
}

TEST(Kvtierd, StartsAgainAfterAKill) {
  const TestDirectory directory;
  for (int round = 0; round < 3; ++round) {
    Kvtierd kvtierd(SmallArguments(directory.path()));
    ASSERT_TRUE(kvtierd.ReadUntil("READY socket=")) << kvtierd.output();
    WireClient client(directory.path() / "kvtier.sock");
    (void)Fill(&client, client.Attach().pool, Hashes(20 * round, 20));
    kvtierd.Signal(SIGKILL);
    EXPECT_EQ(kvtierd.Wait(), -SIGKILL);
    EXPECT_TRUE(client.AtEnd());
  }
}

}  // namespace
}  // namespace kvtier
