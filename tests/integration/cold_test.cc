// SPDX-License-Identifier: Apache-2.0
// Two daemons that share nothing but a store, which a real server keeps.
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/integration/harness/two_hosts_test.h"

namespace kvtier {
namespace {

constexpr const char* kServer = "/usr/bin/redis-server";

// A server on a socket in a directory, without a file of its own.
class Server {
 public:
  explicit Server(const std::string& directory) : socket_(directory + "/store.sock") { Start(); }
  ~Server() { Kill(); }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  [[nodiscard]] const std::string& socket() const { return socket_; }
  void Start() {
    const std::vector<std::string> arguments = {kServer, "--port",    "0",        "--unixsocket",
                                                socket_, "--save",    "",         "--appendonly",
                                                "no",    "--logfile", "/dev/null"};
    std::vector<char*> words;
    for (const std::string& argument : arguments) {
      words.push_back(const_cast<char*>(argument.c_str()));
    }
    words.push_back(nullptr);
    ASSERT_EQ(::posix_spawn(&pid_, kServer, nullptr, nullptr, words.data(), environ), 0);
    ASSERT_TRUE(Eventually([this] { return Ask({"PING"}) == "PONG\n"; }));
  }
  void Kill() {
    if (pid_ <= 0) return;
    Signal(SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  void Signal(int signal) const { ::kill(pid_, signal); }
  // The answer to one command.
  [[nodiscard]] std::string Ask(const std::vector<std::string>& command) const {
    std::vector<std::string> all = {"/usr/bin/redis-cli", "-s", socket_};
    all.insert(all.end(), command.begin(), command.end());
    return RunProgram(all).output;
  }
  [[nodiscard]] std::vector<std::string> Names() const {
    std::vector<std::string> names;
    std::string rest = Ask({"KEYS", "kvtier/1/*"});
    for (size_t end = rest.find('\n'); end != std::string::npos; end = rest.find('\n')) {
      if (end > 0) names.push_back(rest.substr(0, end));
      rest.erase(0, end + 1);
    }
    return names;
  }

 private:
  const std::string socket_;
  pid_t pid_ = -1;
};

class ColdTest : public TwoHostsTest {
 protected:
  void SetUp() override {
    TwoHostsTest::SetUp();
    if (!std::filesystem::exists(kServer)) GTEST_SKIP() << "no " << kServer;
    server_ = std::make_unique<Server>(directory());
  }
  void TearDown() override {
    TwoHostsTest::TearDown();
    server_.reset();
  }
  [[nodiscard]] std::vector<std::string> StoreSettings() const override {
    std::vector<std::string> settings = {"cold.endpoint=resp://" + server_->socket()};
    settings.insert(settings.end(), encryption_.begin(), encryption_.end());
    return settings;
  }
  // From now on daemons encrypt, with a root key of these bytes.
  void Encrypt(char byte) {
    const std::string path = directory() + "/root." + byte;
    std::ofstream(path, std::ios::binary) << std::string(32, byte);
    std::filesystem::permissions(path, std::filesystem::perms::owner_read);
    encryption_ = {"disk.encryption=aes-256-gcm", "disk.root_key=" + path};
  }
  [[nodiscard]] size_t CountObjects() override { return server_->Names().size(); }

  std::unique_ptr<Server> server_;
  std::vector<std::string> encryption_;
};

TEST_F(ColdTest, WhatOneHostComputedAnotherServesByteForByte) {
  WriteByFirstHost();
  StartOtherHost();
  const ReplayReport report = PlayOnOther(Prompt("shared", kBlocks));
  EXPECT_EQ(report.blocks.miss, 0u) << report.ToJson();
  EXPECT_EQ(report.blocks.hit[static_cast<int>(Tier::kDisk)], kBlocks);
  EXPECT_EQ(report.wrong_blocks, 0u);
  const boost::json::value cold = Cold(other().admin_socket());
  EXPECT_EQ(cold.at("read_blocks").to_number<uint64_t>(), kBlocks);
  const ProgramResult status =
      RunProgram({KvtierctlPath(), "--admin-socket", other().admin_socket(), "status"});
  EXPECT_NE(status.output.find("hits 12 blocks"), std::string::npos) << status.output;
  const ProgramResult verified = RunProgram(
      {KvtierctlPath(), "--admin-socket", other().admin_socket(), "verify", "--tier", "cold"});
  EXPECT_EQ(verified.exit_code, 0);
  EXPECT_NE(verified.output.find("verified 12 blocks"), std::string::npos) << verified.output;
  const ProgramResult listed =
      RunProgram({KvtierctlPath(), "--admin-socket", other().admin_socket(), "ls", "--tier", "cold",
                  "--hashes"});
  EXPECT_EQ(std::ranges::count(listed.output, '\n'), kBlocks) << listed.output;
  for (const std::string& name : server_->Names()) {
    EXPECT_GT(std::stoll(server_->Ask({"TTL", name})), 0) << name;
  }
}

TEST_F(ColdTest, BlocksThatTheStoreDoesNotReturnAreNotCalledGood) {
  WriteByFirstHost();
  server_->Kill();
  const ProgramResult verified = Ctl({"verify", "--tier", "cold"});
  EXPECT_EQ(verified.exit_code, 8);
  EXPECT_NE(verified.output.find("none bad; 12 that could not be read"), std::string::npos)
      << verified.output;
}

TEST_F(ColdTest, AStoppedStoreCostsMissesAndIsUsedAgainWhenItGoesOn) {
  WriteByFirstHost();
  StartOtherHost({"cold.lookup_deadline_ms=1000"});
  server_->Signal(SIGSTOP);
  const ReplayReport computed = PlayOnOther(Prompt("shared", kBlocks / 2));
  EXPECT_EQ(computed.blocks.miss, kBlocks / 2);
  EXPECT_EQ(PlayOnOther(Prompt("shared", kBlocks / 2)).blocks.miss, 0u) << "local hits";
  EXPECT_EQ(Cold(other().admin_socket()).at("lookups").at("late").to_number<uint64_t>(), 1u);
  server_->Signal(SIGCONT);
  ReadByOtherHostFrom(kBlocks / 2 + 1);
}

TEST_F(ColdTest, AKilledStoreCostsMisses) {
  WriteByFirstHost();
  StartOtherHost();
  server_->Kill();
  EXPECT_EQ(PlayOnOther(Prompt("shared", kBlocks)).blocks.miss, kBlocks);
  EXPECT_EQ(PlayOnOther(Prompt("shared", kBlocks)).blocks.miss, 0u);
  EXPECT_EQ(other().Terminate(), 0);
}

TEST_F(ColdTest, AKilledStoreIsAskedAgainWhenItIsBack) {
  WriteByFirstHost();
  StartOtherHost();
  server_->Kill();
  EXPECT_EQ(PlayOnOther(Prompt("shared", 1)).blocks.miss, 1u);
  server_->Start();
  AwaitAnswerToOtherHost();
  EXPECT_EQ(PlayOnOther(Prompt("shared", kBlocks)).wrong_blocks, 0u);
}

// Too soon for an outage: one call fails.
TEST_F(ColdTest, AStoreThatIsRestartedEmptyIsFilledAgain) {
  WriteByFirstHost();
  server_->Kill();
  server_->Start();
  EXPECT_EQ(Play(Prompt("asked", 1)).blocks.miss, 1u);
  EXPECT_TRUE(Eventually([this] { return CountObjects() >= kBlocks; }))
      << boost::json::serialize(Cold(daemon().admin_socket()));
}

TEST_F(ColdTest, ADaemonStartsWithoutItsStore) {
  server_->Kill();
  StartDaemon({}, Settings());
  EXPECT_EQ(Play(Prompt("shared", kBlocks)).blocks.miss, kBlocks);
  EXPECT_EQ(Play(Prompt("shared", kBlocks)).blocks.miss, 0u);
  // The daemon asks for nothing else that would tell it how the store is.
  size_t asked = 0;
  const auto asks_until_it_says = [&](const std::string& id) {
    return Eventually([&] {
      (void)Play(Prompt("new-" + std::to_string(++asked), 1));
      return Log().find(id) != std::string::npos;
    });
  };
  EXPECT_TRUE(asks_until_it_says("cold.away: "));
  server_->Start();
  EXPECT_TRUE(asks_until_it_says("cold.back: "));
  EXPECT_EQ(daemon().Terminate(), 0);
}

TEST_F(ColdTest, AFullStoreTakesNothingAndIsWrittenToWhenItHasSpace) {
  (void)server_->Ask({"CONFIG", "SET", "maxmemory", "1"});
  StartDaemon({}, Settings());
  EXPECT_EQ(Play(Prompt("shared", kBlocks)).blocks.miss, kBlocks);
  EXPECT_EQ(Play(Prompt("shared", kBlocks)).blocks.miss, 0u);
  EXPECT_EQ(Play(Prompt("others", 60)).wrong_blocks, 0u);
  EXPECT_EQ(Play(Prompt("more", 60)).wrong_blocks, 0u);
  EXPECT_TRUE(Eventually([this] {
    return Cold(daemon().admin_socket()).at("write_errors").to_number<uint64_t>() > 0;
  }));
  EXPECT_TRUE(Eventually([this] { return Log().find("cold.failed: ") != std::string::npos; }));
  EXPECT_EQ(Play(Prompt("shared", kBlocks)).blocks.miss, 0u) << "local hits";
  EXPECT_EQ(CountObjects(), 0u);
  (void)server_->Ask({"CONFIG", "SET", "maxmemory", "0"});
  EXPECT_TRUE(Eventually([this] { return CountObjects() >= kBlocks; }));
}

TEST_F(ColdTest, TruncatedObjectsAreMissesWithTheirReasons) {
  WriteByFirstHost();
  const std::string truncate =
      "redis.call('SET', KEYS[1], redis.call('GETRANGE', KEYS[1], 0, 8999))";
  for (const std::string& name : server_->Names()) {
    (void)server_->Ask({"EVAL", truncate, "1", name});
    ASSERT_EQ(server_->Ask({"STRLEN", name}), "9000\n");
  }
  StartOtherHost();
  EXPECT_EQ(PlayOnOther(Prompt("shared", kBlocks)).wrong_blocks, 0u);
  EXPECT_GT(FailedReads("checksum_mismatch"), 0u);
}

TEST_F(ColdTest, DamagedAndForeignObjectsAreMissesWithTheirReasons) {
  WriteByFirstHost();
  const std::vector<std::string> names = server_->Names();
  // One bit of the payload, in all of them.
  for (const std::string& name : names) {
    const std::string byte = server_->Ask({"GETBIT", name, "90000"});
    (void)server_->Ask({"SETBIT", name, "90000", byte.starts_with('1') ? "0" : "1"});
  }
  StartOtherHost();
  EXPECT_EQ(PlayOnOther(Prompt("shared", kBlocks)).wrong_blocks, 0u);
  EXPECT_GT(FailedReads("checksum_mismatch"), 0u);
  // Another block under each name.
  StopOtherHost();
  for (const std::string& name : names) {
    (void)server_->Ask({"SETBIT", name, "90000", "0"});
    if (name != names[0]) (void)server_->Ask({"COPY", names[0], name, "REPLACE"});
  }
  StartOtherHost();
  const ReplayReport report = PlayOnOther(Prompt("shared", kBlocks));
  EXPECT_EQ(report.wrong_blocks, 0u);
  EXPECT_GT(FailedReads("identity_mismatch") + FailedReads("checksum_mismatch"), 0u);
}

TEST_F(ColdTest, HostsWithOneRootKeyReadWhatTheOthersEncrypted) {
  Encrypt('k');
  WriteByFirstHost();
  StartOtherHost();
  const ReplayReport report = PlayOnOther(Prompt("shared", kBlocks));
  EXPECT_EQ(report.blocks.miss, 0u) << report.ToJson();
  EXPECT_EQ(report.wrong_blocks, 0u);
  EXPECT_EQ(Cold(other().admin_socket()).at("read_blocks").to_number<uint64_t>(), kBlocks);
  const ProgramResult verified = RunProgram(
      {KvtierctlPath(), "--admin-socket", other().admin_socket(), "verify", "--tier", "cold"});
  EXPECT_NE(verified.output.find("verified 12 blocks"), std::string::npos) << verified.output;
  StopOtherHost();
  Encrypt('o');
  StartOtherHost();
  EXPECT_EQ(PlayOnOther(Prompt("shared", kBlocks)).blocks.miss, kBlocks) << "another root key";
  EXPECT_EQ(Cold(other().admin_socket()).at("lookups").at("absent").to_number<uint64_t>(), 1u);
}

TEST_F(ColdTest, AnErasureDeletesTheTenantsObjects) {
  Encrypt('k');
  WriteByFirstHost();
  (void)server_->Ask({"SET", "kvtier/1/default2/other", "x"});
  StartOtherHost();
  const ProgramResult erased =
      RunProgram({KvtierctlPath(), "--admin-socket", other().admin_socket(), "erase", "--tenant",
                  "default", "--yes", "--json"});
  EXPECT_EQ(erased.exit_code, 0) << erased.output;
  EXPECT_NE(erased.output.find("\"proven\":true"), std::string::npos) << erased.output;
  EXPECT_EQ(server_->Names(), std::vector<std::string>{"kvtier/1/default2/other"});
}

TEST_F(ColdTest, AHostThatAnErasureHasNotReachedWritesAgain) {
  WriteByFirstHost();
  StartOtherHost();
  const ProgramResult erased =
      RunProgram({KvtierctlPath(), "--admin-socket", other().admin_socket(), "erase", "--tenant",
                  "default", "--yes", "--without-proof"});
  EXPECT_EQ(erased.exit_code, 0) << erased.output;
  ASSERT_EQ(CountObjects(), 0u);
  EXPECT_EQ(Play(Prompt("later", kBlocks)).wrong_blocks, 0u);
  EXPECT_EQ(Play(Prompt("later", kBlocks)).blocks.miss, 0u);
  EXPECT_EQ(Play(Prompt("others again", 60)).wrong_blocks, 0u);
  EXPECT_EQ(Play(Prompt("more again", 60)).wrong_blocks, 0u);
  EXPECT_TRUE(Eventually([this] { return CountObjects() >= kBlocks; }));
  EXPECT_EQ(PlayOnOther(Prompt("later", kBlocks)).blocks.miss, 0u);
}

}  // namespace
}  // namespace kvtier
