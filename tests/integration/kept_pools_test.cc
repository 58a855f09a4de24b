// SPDX-License-Identifier: Apache-2.0
// Pools outlive the daemon: real daemons and a real keeper.
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "tests/integration/harness/daemon_test.h"

namespace kvtier {
namespace {

constexpr size_t kPrompts = 8;
constexpr size_t kBlocks = 8;
// A pool that holds every prompt twice, and nothing below that could bring blocks back.
constexpr TierSizes kSizes{
    .pool_blocks = 2 * kPrompts * kBlocks, .host_blocks = 12, .disk_blocks = 0};

class KeptPoolsTest : public DaemonTest {
 protected:
  void TearDown() override {
    (void)Ctl({"stop", "--release"});
    DaemonTest::TearDown();
  }

  void Start(std::vector<std::string> more_settings = {}, const TierSizes& sizes = kSizes) {
    more_settings.insert(more_settings.begin(), "restart.keep_for=1min");
    StartDaemon(sizes, std::move(more_settings));
  }
  ReplayReport PlayAll() {
    ReplayReport all;
    for (size_t i = 0; i < kPrompts; ++i) {
      const ReplayReport one = Play(Prompt(fmt::format("prompt {}", i), kBlocks));
      for (int tier = 0; tier < kTierCount; ++tier) all.blocks.hit[tier] += one.blocks.hit[tier];
      all.blocks.miss += one.blocks.miss;
      all.wrong_blocks += one.wrong_blocks;
    }
    return all;
  }
  void KillAndRestart() {
    daemon().Kill();
    ASSERT_TRUE(daemon().Restart());
  }
  void ExpectAllFromPool() {
    const ReplayReport again = PlayAll();
    EXPECT_EQ(again.blocks.hit[static_cast<int>(Tier::kPool)], kPrompts * kBlocks);
    EXPECT_EQ(again.blocks.miss, 0u);
    EXPECT_EQ(again.wrong_blocks, 0u);
  }
  void ExpectNothingThere() {
    const ReplayReport again = PlayAll();
    EXPECT_EQ(again.blocks.hit[static_cast<int>(Tier::kPool)], 0u);
    EXPECT_EQ(again.wrong_blocks, 0u);
  }
  [[nodiscard]] std::string Adoption() {
    const boost::json::value status = Admin("status");
    const boost::json::array& pools = status.at("restart").at("pools").as_array();
    return pools.empty() ? "" : std::string(pools.at(0).at("adoption").as_string());
  }
};

TEST_F(KeptPoolsTest, AfterAKillTheBlocksArePoolHits) {
  Start();
  (void)PlayAll();
  KillAndRestart();
  EXPECT_EQ(Adoption(), "adopted");
  ExpectAllFromPool();
}

TEST_F(KeptPoolsTest, AfterSigtermTheBlocksArePoolHits) {
  Start();
  (void)PlayAll();
  EXPECT_EQ(daemon().Terminate(), 0);
  ASSERT_TRUE(daemon().Restart());
  ExpectAllFromPool();
}

TEST_F(KeptPoolsTest, ManyDeathsInARowLoseNothing) {
  Start();
  (void)PlayAll();
  for (int deaths = 0; deaths < 8; ++deaths) {
    KillAndRestart();
    (void)Admin("status");
    ExpectAllFromPool();
  }
}

TEST_F(KeptPoolsTest, AClientThatGoesOnWritingToItsOwnBlocksHarmsNothing) {
  Start();
  (void)PlayAll();
  const auto writer = Connect();
  ASSERT_NE(writer, nullptr);
  auto own = writer->pool().Acquire({}, {}, 6);
  ASSERT_TRUE(own) << own.error().reason;
  std::vector<std::span<std::byte>> bytes;
  for (const kvt_block& block : own->new_blocks.blocks())
    bytes.push_back(*writer->pool().Bytes(block));
  ASSERT_EQ(bytes.size(), 6u);
  std::atomic<bool> over = false;
  std::thread writing([&] {
    for (int value = 0; !over; ++value) {
      for (const auto& block : bytes) std::memset(block.data(), value, block.size());
    }
  });
  KillAndRestart();
  EXPECT_EQ(Adoption(), "adopted");
  ExpectAllFromPool();
  // All other blocks of the pool are used, some of them several times.
  for (int i = 0; i < 16; ++i) (void)Play(Prompt(fmt::format("other {}", i), kBlocks));
  const ReplayReport last = Play(Prompt("other 15", kBlocks));
  EXPECT_EQ(last.blocks.hit[static_cast<int>(Tier::kPool)], kBlocks);
  EXPECT_EQ(last.wrong_blocks, 0u);
  const boost::json::value status = Admin("status");
  EXPECT_EQ(status.at("pools").at(0).at("quarantined").to_number<uint64_t>(), 6u);
  over = true;
  writing.join();
}

TEST_F(KeptPoolsTest, AClientThatMayWriteToMostOfAPoolMakesItBeginAnew) {
  Start();
  const auto writer = Connect();
  ASSERT_NE(writer, nullptr);
  auto own = writer->pool().Acquire({}, {}, 2 * kPrompts * kBlocks / 2 + 1);
  ASSERT_TRUE(own) << own.error().reason;
  KillAndRestart();
  EXPECT_EQ(Adoption(), "held_by_clients");
  (void)PlayAll();
  ExpectAllFromPool();
}

TEST_F(KeptPoolsTest, AClientReconnectsAndFindsItsBlocks) {
  Start();
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  ASSERT_TRUE(client->Play(Prompt("prompt 0", kBlocks)));
  const auto base = client->pool().Info().base;
  KillAndRestart();
  while (!client->connection().IsConnected()) (void)client->connection().Ping();
  (void)client->connection().Flush();
  ASSERT_TRUE(client->Play(Prompt("prompt 0", kBlocks)));
  EXPECT_EQ(client->Finish().blocks.hit[static_cast<int>(Tier::kPool)], kBlocks);
  EXPECT_EQ(client->Finish().wrong_blocks, 0u);
  EXPECT_EQ(client->pool().Info().base, base) << "its mapping is still good";
}

TEST_F(KeptPoolsTest, AnotherCapKeepsThePoolsThatItHasRoomFor) {
  TierSizes larger = kSizes;
  larger.pool_blocks *= 2;
  Start();
  (void)PlayAll();
  for (const TierSizes& sizes : {larger, kSizes}) {
    daemon().Kill();
    Start({}, sizes);
    EXPECT_EQ(Adoption(), "adopted");
    ExpectAllFromPool();
  }
}

TEST_F(KeptPoolsTest, ACapBelowThePoolBeginsEmptyAndSaysSo) {
  Start();
  (void)PlayAll();
  daemon().Kill();
  Start({}, {.pool_blocks = 2 * kPrompts * kBlocks - 8, .host_blocks = 12, .disk_blocks = 0});
  EXPECT_EQ(Adoption(), "size_changed");
  EXPECT_TRUE(Eventually([this] { return Log().find("pool.not_adopted") != std::string::npos; }));
  ExpectNothingThere();
}

TEST_F(KeptPoolsTest, SwitchedOffNothingIsKept) {
  Start();
  (void)PlayAll();
  daemon().Kill();
  Start({"restart.keep_for=0s"});
  EXPECT_EQ(Adoption(), "");
  ExpectNothingThere();
  KillAndRestart();
  EXPECT_EQ(Adoption(), "");
  ExpectNothingThere();
}

TEST_F(KeptPoolsTest, StoppingWithReleaseGivesItBack) {
  Start();
  (void)PlayAll();
  EXPECT_EQ(Ctl({"stop", "--release"}).exit_code, 0);
  Start();
  ExpectNothingThere();
}

}  // namespace
}  // namespace kvtier
