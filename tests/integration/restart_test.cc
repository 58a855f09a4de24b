// SPDX-License-Identifier: Apache-2.0
// A daemon's promises before it ended are kept when it is back.
#include <filesystem>
#include <fstream>

#include "tests/integration/harness/daemon_test.h"
#include "tiers/storage/disk_geometry.h"

namespace kvtier {
namespace {

constexpr size_t kBlocks = 40;

using RestartTest = DaemonTest;

TEST_F(RestartTest, DrainedBlocksAreServedFromDiskAfterAKill) {
  StartDaemon();
  EXPECT_EQ(Play(Prompt("a", kBlocks)).blocks.miss, kBlocks);
  EXPECT_EQ(JsonView(&static_cast<const boost::json::value&>(Admin("drain")))["left"].Count(), 0u);
  daemon().Kill();
  ASSERT_TRUE(daemon().Restart());

  const ReplayReport after = Play(Prompt("a", kBlocks));
  EXPECT_EQ(after.blocks.hit[static_cast<int>(Tier::kDisk)], kBlocks);
  EXPECT_EQ(after.wrong_blocks, 0u);
  EXPECT_TRUE(after.Complete());
}

TEST_F(RestartTest, TerminatedDaemonDrainsFirstAndExitsCleanly) {
  StartDaemon();
  EXPECT_EQ(Play(Prompt("a", kBlocks)).blocks.miss, kBlocks);
  EXPECT_EQ(daemon().Terminate(), 0);
  ASSERT_TRUE(daemon().Restart());

  const ReplayReport after = Play(Prompt("a", kBlocks));
  EXPECT_EQ(after.blocks.hit[static_cast<int>(Tier::kDisk)], kBlocks);
  EXPECT_EQ(after.wrong_blocks, 0u);
}

TEST_F(RestartTest, ASmallerDiskKeepsTheBlocksThatFitAndSaysHowManyDoNot) {
  StartDaemon();
  EXPECT_EQ(Play(Prompt("a", kBlocks)).blocks.miss, kBlocks);
  EXPECT_EQ(daemon().Terminate(), 0);
  StartDaemon({}, {"disk.bytes=" + std::to_string(kFirstSlabOffset + 5 * kTestSlabBytes) + "B"});

  const boost::json::value status = Admin("status");
  const uint64_t kept = JsonView(&status)["tiers"]["disk"]["persisted_blocks"].Count();
  EXPECT_GT(kept, 0u);
  const std::string lost = std::to_string(kBlocks - kept) + " blocks lay beyond the end";
  EXPECT_NE(Log().find(lost), std::string::npos) << Log();
  EXPECT_EQ(Play(Prompt("a", kBlocks)).wrong_blocks, 0u);
}

TEST_F(RestartTest, LostIndexIsRebuiltFromTheHeaders) {
  StartDaemon();
  EXPECT_EQ(Play(Prompt("a", kBlocks)).blocks.miss, kBlocks);
  (void)Admin("drain");
  daemon().Kill();
  uintmax_t removed = 0;
  for (const auto& entry : std::filesystem::directory_iterator(daemon().disk_directory())) {
    if (entry.is_directory()) removed += std::filesystem::remove_all(entry.path());
  }
  ASSERT_GT(removed, 0u) << "the index is expected in a directory of its own";
  ASSERT_TRUE(daemon().Restart());

  EXPECT_EQ(Play(Prompt("a", kBlocks)).blocks.hit[static_cast<int>(Tier::kDisk)], kBlocks);
  const boost::json::value status = Admin("status");
  EXPECT_TRUE(JsonView(&status)["disk"]["index"]["rebuilt"].IsTrue());
}

TEST_F(RestartTest, ClientOutlivesTheDaemonAndComesBackByItself) {
  StartDaemon();
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  ASSERT_TRUE(client->Play(Prompt("a", kBlocks)));
  (void)Admin("drain");
  daemon().Kill();
  EXPECT_TRUE(client->Play(Prompt("a", kBlocks)));
  EXPECT_EQ(client->Finish().requests_without_daemon, 1u);
  ASSERT_TRUE(daemon().Restart());

  while (!client->connection().IsConnected()) (void)client->connection().Ping();
  // The first flush over the new connection tells of the blocks lost with the old one.
  EXPECT_FALSE(client->connection().Flush());
  const Status played = client->Play(Prompt("a", kBlocks));
  ASSERT_TRUE(played) << played.error().ToString();
  EXPECT_EQ(client->Finish().blocks.hit[static_cast<int>(Tier::kDisk)], kBlocks);
  EXPECT_EQ(client->Finish().wrong_blocks, 0u);
}

TEST_F(RestartTest, SecondDaemonOnTheSameDirectoryIsRefused) {
  StartDaemon();
  const ProgramResult second = RunProgram(
      {KvtierdPath(), "--set", "server.socket=" + directory() + "/other.sock", "--set",
       "server.admin_socket=" + directory() + "/other-admin.sock", "--set",
       "disk.directory=" + daemon().disk_directory(), "--set", "disk.bytes=4MiB", "--set",
       "cache.slab_bytes=64KiB", "--set", "host.bytes=1MiB", "--set", "pool.bytes=1MiB"});
  EXPECT_NE(second.exit_code, 0);
  EXPECT_NE((second.output + second.errors).find("lock"), std::string::npos)
      << second.output << second.errors;
  EXPECT_EQ(Ctl({"status"}).exit_code, 0) << "the first one must not notice";
}

}  // namespace
}  // namespace kvtier
