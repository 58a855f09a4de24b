// SPDX-License-Identifier: Apache-2.0
// Reload, drain and restart while clients replay: no wrong byte, and nothing worse than misses.
#include <fmt/format.h>
#include <signal.h>

#include <array>
#include <atomic>
#include <chrono>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "tests/integration/harness/daemon_test.h"

namespace kvtier {
namespace {

constexpr int kClients = 2;
constexpr int kConversations = 24;
constexpr size_t kLongestPrompt = 20;
constexpr int kReloads = 40;
constexpr int kResizes = 20;
constexpr int kRestarts = 3;
// Enough for a busy machine to write all that is left.
constexpr std::chrono::seconds kDrainDeadline(20);
// The time that farewells and the last I/O may take after the deadline, see shutdown.cc: 6 seconds,
// and more on a busy machine.
constexpr std::chrono::seconds kGrace(60);

class ServiceUnderLoadTest : public DaemonTest {
 protected:
  ~ServiceUnderLoadTest() override { (void)StopClients(); }

  [[nodiscard]] std::string ConfigFile() const { return directory() + "/kvtierd.toml"; }
  void WriteConfig(const std::string& text) const { std::ofstream(ConfigFile()) << text; }

  void StartUnderLoad(const TierSizes& sizes = {.pool_blocks = 120,
                                                .host_blocks = 150,
                                                .disk_blocks = 600},
                      std::vector<std::string> settings = {}) {
    StartDaemon(sizes, std::move(settings), ConfigFile());
    ReplayTarget target;
    target.socket = daemon().socket();
    target.block_bytes = kTestBlockBytes;
    target.reconnect_max_ms = 2;
    // All are connected before a test ends the daemon, after which nothing listens for a while.
    std::vector<ReplayClient> players;
    for (int i = 0; i < kClients; ++i) {
      auto player = ReplayClient::Connect(target, kTestBlockTokens);
      ASSERT_TRUE(player) << player.error().ToString();
      players.push_back(std::move(*player));
    }
    for (int i = 0; i < kClients; ++i) {
      clients_.emplace_back([this, i, player = std::move(players[i])]() mutable {
        reports_[i] = PlayUntilOver(&player, i);
      });
    }
  }

  // The reports of all clients together.
  ReplayReport StopClients() {
    over_ = true;
    for (std::thread& client : clients_) client.join();
    clients_.clear();
    ReplayReport all;
    for (const ReplayReport& report : reports_) all.Add(report);
    return all;
  }

  // The requests played by then.
  void WaitForRequests(uint64_t more) {
    for (const uint64_t until = played_ + more; played_ < until;) std::this_thread::yield();
  }

  // Changes the size of host memory, and does not wait for it.
  void ResizeHost(uint64_t slabs) {
    WriteConfig(fmt::format("[host]\nbytes = \"{}B\"\n", slabs * kTestSlabBytes));
    ASSERT_EQ(::kill(daemon().pid(), SIGHUP), 0);
  }
  void WaitForHostBytes(uint64_t bytes) {
    for (uint64_t capacity = 0, ready = 0; capacity != bytes || ready != bytes;) {
      const boost::json::value status = Admin("status");
      JsonView host = JsonView(&status)["tiers"]["host"];
      capacity = host["capacity_bytes"].Count();
      ready = host["ready_bytes"].Count();
    }
  }

  [[nodiscard]] std::string LogText() {
    std::ostringstream text;
    text << std::ifstream(daemon().log_path()).rdbuf();
    return text.str();
  }

 private:
  ReplayReport PlayUntilOver(ReplayClient* client, uint64_t seed) {
    std::mt19937_64 random(seed);
    while (!over_) {
      const auto name = fmt::format("conversation {}", random() % kConversations);
      EXPECT_TRUE(client->Play(Prompt(name, 1 + random() % kLongestPrompt)));
      ++played_;
    }
    return client->Finish();
  }

  std::atomic<bool> over_ = false;
  std::atomic<uint64_t> played_ = 0;
  std::array<ReplayReport, kClients> reports_;
  std::vector<std::thread> clients_;
};

TEST_F(ServiceUnderLoadTest, ReloadsDisturbNobody) {
  WriteConfig("");
  StartUnderLoad();
  for (int i = 1; i <= kReloads; ++i) {
    WriteConfig(
        fmt::format("[cache]\npool_clean_fraction = {}\nhost_clean_fraction = {}\n"
                    "max_disk_read_bytes = \"{}KiB\"\n[retention]\npersist_after = \"{}s\"\n",
                    0.02 * (i % 40), 0.02 * (40 - i % 40), 1024 + i, i % 3));
    ASSERT_EQ(::kill(daemon().pid(), SIGHUP), 0);
    WaitForRequests(10);
    // The reload is over when its values are in effect.
    for (std::string seen; seen != fmt::format("\"{}KiB\"", 1024 + i);) {
      const boost::json::value config = Admin("config");
      seen = boost::json::serialize(config.at("cache").at("max_disk_read_bytes"));
    }
  }
  const ReplayReport report = StopClients();
  EXPECT_EQ(report.wrong_blocks, 0u);
  EXPECT_EQ(report.errors, 0u);
  EXPECT_EQ(report.requests_without_daemon, 0u);
  EXPECT_GT(report.requests, 10u * kReloads);
}

TEST_F(ServiceUnderLoadTest, SizesOfHostMemoryThatChangeDisturbNobody) {
  WriteConfig(fmt::format("[host]\nbytes = \"{}B\"\n", 50 * kTestSlabBytes));
  StartUnderLoad({.pool_blocks = 120, .host_blocks = 0, .disk_blocks = 600});
  std::mt19937_64 random(1);
  for (int i = 0; i < kResizes; ++i) {
    const uint64_t slabs = 10 + random() % 90;
    ResizeHost(slabs);
    // Some are overtaken by the next.
    WaitForRequests(random() % 10);
    if (i % 4 == 0) WaitForHostBytes(slabs * kTestSlabBytes);
  }
  ResizeHost(12);
  WaitForHostBytes(12 * kTestSlabBytes);
  WaitForRequests(50);
  const ReplayReport report = StopClients();
  EXPECT_EQ(report.wrong_blocks, 0u);
  EXPECT_EQ(report.errors, 0u);
  EXPECT_EQ(report.requests_without_daemon, 0u);
  EXPECT_GT(report.blocks.hit[static_cast<int>(Tier::kHost)], 0u);
}

TEST_F(ServiceUnderLoadTest, DeathsInTheMidstOfAResizeCostMissesOnly) {
  WriteConfig(fmt::format("[host]\nbytes = \"{}B\"\n", 50 * kTestSlabBytes));
  StartUnderLoad({.pool_blocks = 120, .host_blocks = 0, .disk_blocks = 0},
                 {"restart.keep_for=1min"});
  std::mt19937_64 random(2);
  for (int i = 0; i < kResizes / 2; ++i) {
    WaitForRequests(20);
    const uint64_t slabs = i % 2 == 0 ? 10 + random() % 10 : 50 + random() % 50;
    ResizeHost(slabs);
    WaitForRequests(random() % 5);
    daemon().Kill();
    ASSERT_TRUE(daemon().Restart());
    WaitForHostBytes(slabs * kTestSlabBytes);
  }
  const ReplayReport report = StopClients();
  EXPECT_EQ(report.wrong_blocks, 0u);
  EXPECT_EQ(report.errors, 0u);
  EXPECT_EQ(LogText().find("restart.damaged"), std::string::npos);
  (void)Ctl({"stop", "--release"});
}

TEST_F(ServiceUnderLoadTest, DrainAndRestartCostMissesOnly) {
  WriteConfig(fmt::format("[drain]\ndeadline = \"{}s\"\n", kDrainDeadline.count()));
  StartUnderLoad();
  for (int i = 0; i < kRestarts; ++i) {
    WaitForRequests(100);
    const auto begun = std::chrono::steady_clock::now();
    EXPECT_EQ(daemon().Terminate(), 0);
    EXPECT_LT(std::chrono::steady_clock::now() - begun, kDrainDeadline + kGrace);
    ASSERT_TRUE(daemon().Restart());
  }
  WaitForRequests(100);
  const ReplayReport report = StopClients();
  EXPECT_EQ(report.wrong_blocks, 0u);
  EXPECT_EQ(report.errors, 0u);
  EXPECT_GT(report.blocks.hit[static_cast<int>(Tier::kDisk)], 0u) << "what was drained was kept";
  const std::string log = LogText();
  EXPECT_NE(log.find("drain.begun"), std::string::npos) << log;
  EXPECT_NE(log.find("drain.done"), std::string::npos) << log;
}

}  // namespace
}  // namespace kvtier
