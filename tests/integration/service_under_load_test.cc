// SPDX-License-Identifier: Apache-2.0
// Reload, drain and restart while clients replay: no wrong byte, and nothing worse than misses.
#include <fmt/format.h>
#include <signal.h>

#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "tests/integration/harness/daemon_test.h"
#include "tiers/storage/superblock.h"

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

  // In slabs; no disk tier with 0.
  struct Slabs {
    uint64_t host = 0;
    uint64_t disk = 0;
  };
  void WriteSizes(const Slabs& slabs) const {
    const uint64_t disk = slabs.disk == 0 ? 0 : kFirstSlabOffset + slabs.disk * kTestSlabBytes;
    WriteConfig(fmt::format("[host]\nbytes = \"{}B\"\n[disk]\nbytes = \"{}B\"\n",
                            slabs.host * kTestSlabBytes, disk));
  }
  // Changes the sizes, and does not wait for them.
  void Resize(const Slabs& slabs) {
    WriteSizes(slabs);
    ASSERT_EQ(::kill(daemon().pid(), SIGHUP), 0);
  }
  void WaitForSizes(const Slabs& slabs) {
    for (Slabs now; now.host != slabs.host || now.disk != slabs.disk;) {
      const boost::json::value status = Admin("status");
      JsonView host = JsonView(&status)["tiers"]["host"];
      JsonView disk = JsonView(&status)["tiers"]["disk"];
      const bool all_ready = host["ready_bytes"].Count() == host["capacity_bytes"].Count();
      now.host = all_ready ? host["capacity_bytes"].Count() / kTestSlabBytes : 0;
      now.disk = disk["capacity_bytes"].Count() / kTestSlabBytes;
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

TEST_F(ServiceUnderLoadTest, SizesThatChangeDisturbNobody) {
  WriteSizes({.host = 50, .disk = 200});
  StartUnderLoad({.pool_blocks = 120, .host_blocks = 0, .disk_blocks = 0});
  std::mt19937_64 random(1);
  for (int i = 0; i < kResizes; ++i) {
    const Slabs slabs{.host = 10 + random() % 90, .disk = 40 + random() % 200};
    Resize(slabs);
    // Some are overtaken by the next.
    WaitForRequests(random() % 10);
    if (i % 4 == 0) WaitForSizes(slabs);
  }
  const Slabs last{.host = 12, .disk = 60};
  Resize(last);
  WaitForSizes(last);
  WaitForRequests(50);
  const ReplayReport report = StopClients();
  EXPECT_EQ(report.wrong_blocks, 0u);
  EXPECT_EQ(report.errors, 0u);
  EXPECT_EQ(report.requests_without_daemon, 0u);
  EXPECT_GT(report.blocks.hit[static_cast<int>(Tier::kHost)], 0u);
  // The cap holds at once; the file is cut when all beyond has gone.
  const std::string file = daemon().disk_directory() + "/blocks.kvt";
  while (std::filesystem::file_size(file) > kFirstSlabOffset + last.disk * kTestSlabBytes) {
    std::this_thread::yield();
  }
}

TEST_F(ServiceUnderLoadTest, DeathsInTheMidstOfAResizeCostMissesOnly) {
  WriteSizes({.host = 50, .disk = 200});
  StartUnderLoad({.pool_blocks = 120, .host_blocks = 0, .disk_blocks = 0},
                 {"restart.keep_for=1min"});
  std::mt19937_64 random(2);
  for (int i = 0; i < kResizes / 2; ++i) {
    WaitForRequests(20);
    const bool smaller = i % 2 == 0;
    const Slabs slabs{.host = (smaller ? 10 : 50) + random() % 10,
                      .disk = (smaller ? 60 : 200) + random() % 20};
    Resize(slabs);
    WaitForRequests(random() % 5);
    daemon().Kill();
    ASSERT_TRUE(daemon().Restart());
    WaitForSizes(slabs);
  }
  const ReplayReport report = StopClients();
  EXPECT_EQ(report.wrong_blocks, 0u);
  EXPECT_EQ(report.errors, 0u);
  EXPECT_EQ(LogText().find("restart.damaged"), std::string::npos);
  EXPECT_EQ(LogText().find("disk.damaged"), std::string::npos);
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
