// SPDX-License-Identifier: Apache-2.0
// Two daemons that share nothing but a store, which a real server keeps.
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/harness/daemon_test.h"
#include "tools/support/admin.h"

namespace kvtier {
namespace {

constexpr const char* kServer = "/usr/bin/redis-server";
constexpr size_t kBlocks = 12;

// Asks again until it holds. A test that is wrong takes a minute to say so.
bool Eventually(const std::function<bool()>& holds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

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

class ColdTest : public DaemonTest {
 protected:
  void SetUp() override {
    DaemonTest::SetUp();
    if (!std::filesystem::exists(kServer)) GTEST_SKIP() << "no " << kServer;
    server_ = std::make_unique<Server>(directory());
  }
  void TearDown() override {
    DaemonTest::TearDown();
    server_.reset();
  }
  // The deadline is that of a machine on which much else runs.
  [[nodiscard]] std::vector<std::string> Settings() const {
    return {"cold.kind=resp", "cold.endpoint=" + server_->socket(), "cold.after=0s",
            "cold.lookup_deadline_ms=5000", "cold.read_deadline_ms=10000"};
  }
  // A daemon in a directory of its own, as on another host.
  void StartOtherHost(const std::vector<std::string>& more_settings = {}) {
    PrivateDaemonOptions options;
    options.program = KvtierdPath();
    options.settings = {"pool.device=host"};
    for (const auto& part : {SettingsOf({}), Settings(), more_settings}) {
      options.settings.insert(options.settings.end(), part.begin(), part.end());
    }
    auto daemon = PrivateDaemon::Start(std::move(options));
    ASSERT_TRUE(daemon) << daemon.error().ToString();
    other_.emplace(std::move(*daemon));
  }
  [[nodiscard]] ReplayReport PlayOnOther(const TraceRequest& request) {
    ReplayTarget target;
    target.socket = other_->socket();
    target.settle_admin_socket = other_->admin_socket();
    target.block_bytes = kTestBlockBytes;
    auto client = ReplayClient::Connect(target, kTestBlockTokens);
    EXPECT_TRUE(client) << client.error().ToString();
    if (!client) return {};
    const Status played = client->Play(request);
    EXPECT_TRUE(played) << played.error().ToString();
    return client->Finish();
  }
  [[nodiscard]] boost::json::value Cold(const std::string& admin_socket) {
    const auto reply = CallAdmin(admin_socket, R"({"op":"status"})", 60'000);
    EXPECT_TRUE(reply) << reply.error().ToString();
    return reply ? boost::json::parse(*reply).at("cold") : boost::json::value();
  }
  // The first host computes the blocks, uses them once, and writes them to the store.
  void WriteByFirstHost() {
    StartDaemon({}, Settings());
    EXPECT_EQ(Play(Prompt("shared", kBlocks)).blocks.miss, kBlocks);
    EXPECT_EQ(Play(Prompt("shared", kBlocks)).blocks.miss, 0u);
    // More than the pool has: the first leave it for host.
    EXPECT_EQ(Play(Prompt("others", 60)).wrong_blocks, 0u);
    EXPECT_EQ(Play(Prompt("more", 60)).wrong_blocks, 0u);
    ASSERT_TRUE(Eventually([this] { return server_->Names().size() >= kBlocks; }))
        << boost::json::serialize(Cold(daemon().admin_socket()));
  }

  std::unique_ptr<Server> server_;
  std::optional<PrivateDaemon> other_;
};

TEST_F(ColdTest, WhatOneHostComputedAnotherServesByteForByte) {
  WriteByFirstHost();
  StartOtherHost();
  const ReplayReport report = PlayOnOther(Prompt("shared", kBlocks));
  EXPECT_EQ(report.blocks.miss, 0u) << report.ToJson();
  EXPECT_EQ(report.blocks.hit[static_cast<int>(Tier::kDisk)], kBlocks);
  EXPECT_EQ(report.wrong_blocks, 0u);
  const boost::json::value cold = Cold(other_->admin_socket());
  EXPECT_EQ(cold.at("read_blocks").to_number<uint64_t>(), kBlocks);
  for (const std::string& name : server_->Names()) {
    EXPECT_GT(std::stoll(server_->Ask({"TTL", name})), 0) << name;
  }
}

TEST_F(ColdTest, AStoppedStoreCostsMissesAndIsUsedAgainWhenItGoesOn) {
  WriteByFirstHost();
  StartOtherHost({"cold.lookup_deadline_ms=1000"});
  server_->Signal(SIGSTOP);
  const ReplayReport computed = PlayOnOther(Prompt("shared", kBlocks / 2));
  EXPECT_EQ(computed.blocks.miss, kBlocks / 2);
  EXPECT_EQ(PlayOnOther(Prompt("shared", kBlocks / 2)).blocks.miss, 0u) << "local hits";
  EXPECT_EQ(Cold(other_->admin_socket()).at("lookups").at("late").to_number<uint64_t>(), 1u);
  server_->Signal(SIGCONT);
  // What is late once more is computed here, so that each try asks for a block that none asked for.
  uint64_t read_blocks = 0;
  for (size_t blocks = kBlocks / 2 + 1; blocks <= kBlocks && read_blocks == 0; ++blocks) {
    EXPECT_EQ(PlayOnOther(Prompt("shared", blocks)).wrong_blocks, 0u);
    read_blocks = Cold(other_->admin_socket()).at("read_blocks").to_number<uint64_t>();
  }
  EXPECT_GT(read_blocks, 0u);
}

TEST_F(ColdTest, AKilledStoreCostsMisses) {
  WriteByFirstHost();
  StartOtherHost();
  server_->Kill();
  EXPECT_EQ(PlayOnOther(Prompt("shared", kBlocks)).blocks.miss, kBlocks);
  EXPECT_EQ(PlayOnOther(Prompt("shared", kBlocks)).blocks.miss, 0u);
  EXPECT_EQ(other_->Terminate(), 0);
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
  EXPECT_GT(
      Cold(other_->admin_socket()).at("failed_reads").at("checksum_mismatch").to_number<uint64_t>(),
      0u);
  // Another block under each name.
  other_.reset();
  for (const std::string& name : names) {
    (void)server_->Ask({"SETBIT", name, "90000", "0"});
    if (name != names[0]) (void)server_->Ask({"COPY", names[0], name, "REPLACE"});
  }
  StartOtherHost();
  const ReplayReport report = PlayOnOther(Prompt("shared", kBlocks));
  EXPECT_EQ(report.wrong_blocks, 0u);
  const boost::json::value failed = Cold(other_->admin_socket()).at("failed_reads");
  EXPECT_GT(failed.at("identity_mismatch").to_number<uint64_t>() +
                failed.at("checksum_mismatch").to_number<uint64_t>(),
            0u);
}

}  // namespace
}  // namespace kvtier
