// SPDX-License-Identifier: Apache-2.0
#include "daemon/app/dev_mode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>

#include "base/units.h"
#include "base/user_paths.h"
#include "tests/fakes/environment.h"
#include "tests/fakes/temporary_directory.h"

namespace kvtier {
namespace {

using ::testing::HasSubstr;

DevFacts Workstation() {
  return {.memory = {.total_bytes = 64 * kGiB, .available_bytes = 48 * kGiB, .limited_by = {}},
          .socket_directory = "/run/user/7/kvtier",
          .disk_directory = "/home/a \"b\"\\c/.cache/kvtier/disk",
          .disk_free_bytes = 200 * kGiB,
          .why_no_disk = {},
          .gpus = 0,
          .why_no_gpu = "no driver"};
}

Config ConfigFor(const DevFacts& facts, const std::vector<std::string>& overrides = {}) {
  const Result<Config> config = DevConfig(facts, overrides);
  EXPECT_TRUE(config) << config.error().ToString();
  return config.value_or(Config{});
}

TEST(DevMode, LeavesMostOfTheMachineToTheEngine) {
  const Config config = ConfigFor(Workstation());
  EXPECT_EQ(config.host.bytes, 12 * kGiB);
  EXPECT_EQ(config.cache.pool_bytes, 6 * kGiB);
  EXPECT_EQ(config.disk.bytes, 20 * kGiB);
  EXPECT_EQ(config.pool.devices, std::vector{DeviceChoice::kHost});
  EXPECT_EQ(config.server.socket, "/run/user/7/kvtier/kvtier.sock");
  EXPECT_EQ(config.server.admin_socket, "/run/user/7/kvtier/admin.sock");
  EXPECT_EQ(config.disk.directory, Workstation().disk_directory);
}

TEST(DevMode, StaysWithinBoundsOnLargeAndSmallMachines) {
  DevFacts facts = Workstation();
  facts.memory.available_bytes = 4096 * kGiB;
  facts.disk_free_bytes = 100000 * kGiB;
  EXPECT_EQ(ConfigFor(facts).host.bytes, 32 * kGiB);
  EXPECT_EQ(ConfigFor(facts).cache.pool_bytes, 16 * kGiB);
  EXPECT_EQ(ConfigFor(facts).disk.bytes, 64 * kGiB);
  facts.memory.available_bytes = 0;
  facts.disk_free_bytes = 9 * kGiB;
  EXPECT_EQ(ConfigFor(facts).host.bytes, 256 * kMiB);
  EXPECT_EQ(ConfigFor(facts).cache.pool_bytes, 128 * kMiB);
  EXPECT_EQ(ConfigFor(facts).disk.bytes, 0u);
}

TEST(DevMode, ServesEveryGpuAndTakesAShareOfEachAtMost) {
  DevFacts facts = Workstation();
  facts.gpus = 8;
  const Config config = ConfigFor(facts);
  EXPECT_EQ(config.pool.devices, std::vector{DeviceChoice::kAll});
  EXPECT_DOUBLE_EQ(config.pool.free_fraction, 0.2);
  EXPECT_THAT(DevScreen(facts, config), HasSubstr("20 %"));
  EXPECT_THAT(DevScreen(facts, config), HasSubstr("each of 8 GPUs"));
}

TEST(DevMode, TakesMoreHostMemoryForMoreEngines) {
  DevFacts facts = Workstation();
  facts.memory.available_bytes = 2048 * kGiB;
  EXPECT_EQ(ConfigFor(facts).host.bytes, 32 * kGiB);
  facts.gpus = 8;
  EXPECT_EQ(ConfigFor(facts).host.bytes, 256 * kGiB);
  facts.memory.available_bytes = 400 * kGiB;
  EXPECT_EQ(ConfigFor(facts).host.bytes, 100 * kGiB) << "a quarter stays a quarter";
}

TEST(DevMode, LeavesASmallControlGroupMostOfItsMemory) {
  DevFacts facts = Workstation();
  facts.memory = {.total_bytes = 200 * kMiB, .available_bytes = 198 * kMiB, .limited_by = "/pod"};
  const Config config = ConfigFor(facts);
  EXPECT_LE(config.host.bytes + config.cache.pool_bytes, 100 * kMiB);
  EXPECT_GE(config.host.bytes, config.cache.slab_bytes) << "less would not start";
}

TEST(DevMode, TakesTheHostMemoryThatTheLastDaemonLeft) {
  DevFacts facts = Workstation();
  facts.kept_host_bytes = 5 * kGiB;
  const Config config = ConfigFor(facts);
  EXPECT_EQ(config.host.bytes, 5 * kGiB) << "less memory is free than before";
  EXPECT_THAT(DevScreen(facts, config), HasSubstr("as the last daemon has left it"));
  EXPECT_THAT(DevScreen(facts, config), HasSubstr("kvtierctl stop --release gives it back"));
  const Config other = ConfigFor(facts, {"host.bytes=1GiB"});
  EXPECT_EQ(other.host.bytes, 1 * kGiB);
  EXPECT_THAT(DevScreen(facts, other),
              HasSubstr("with what fits of the 5.0 GiB that the last daemon"));
}

TEST(DevMode, GivesThePoolsThatTheLastDaemonLeftTheirSizeAgain) {
  DevFacts facts = Workstation();
  facts.kept_pool_bytes = 3 * kGiB;
  const Config config = ConfigFor(facts);
  EXPECT_EQ(config.cache.pool_bytes, 3 * kGiB) << "a lower cap may have no room for them";
  EXPECT_THAT(DevScreen(facts, config), HasSubstr("no driver; as the last daemon has left it"));
}

TEST(DevMode, GoesWithoutADiskThatCannotBeUsed) {
  DevFacts facts = Workstation();
  facts.why_no_disk = "/home: Read-only file system";
  EXPECT_EQ(ConfigFor(facts).disk.bytes, 0u);
  EXPECT_THAT(DevScreen(facts, ConfigFor(facts)), HasSubstr("off: /home: Read-only file system"));
}

TEST(DevMode, NoOverrideBringsBackADiskThatCannotBeUsed) {
  DevFacts facts = Workstation();
  facts.why_no_disk = "it belongs to user 9";
  const Result<Config> refused = DevConfig(facts, {"disk.bytes=2GiB"});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().context, HasSubstr("it belongs to user 9"));
  const Config elsewhere = ConfigFor(facts, {"disk.bytes=2GiB", "disk.directory=/mnt/mine"});
  EXPECT_EQ(elsewhere.disk.bytes, 2 * kGiB);
  EXPECT_THAT(DevScreen(facts, elsewhere), HasSubstr("2.0 GiB  /mnt/mine\n"));
}

TEST(DevMode, OverridesHoldAndMistakesSayWhereTheyAre) {
  EXPECT_EQ(ConfigFor(Workstation(), {"host.bytes=1GiB"}).host.bytes, 1 * kGiB);
  const Result<Config> wrong = DevConfig(Workstation(), {"host.bites=1GiB"});
  ASSERT_FALSE(wrong);
  EXPECT_THAT(wrong.error().context, HasSubstr("--set host.bites=1GiB"));
}

TEST(DevMode, SaysOnOneScreenWhatItChoseAndWhatToTypeNext) {
  const ScopedVariable unnamed(kSocketVariable, std::nullopt);
  const std::string screen = DevScreen(Workstation(), ConfigFor(Workstation()));
  EXPECT_LE(std::ranges::count(screen, '\n'), 24);
  for (const char* part : {"12.0 GiB", "6.0 GiB", "20.0 GiB", "no driver", "kvtierctl status",
                           "kvtier.demo", "Clients of this user find it"}) {
    EXPECT_THAT(screen, HasSubstr(part));
  }
  EXPECT_THAT(DevScreen(Workstation(), ConfigFor(Workstation(), {"server.socket=/run/x.sock"})),
              HasSubstr("export KVTIER_SOCKET=/run/x.sock"));
  const ScopedVariable empty(kSocketVariable, "");
  EXPECT_EQ(DevScreen(Workstation(), ConfigFor(Workstation())), screen);
}

// With a runtime directory and a cache directory of the test's own.
class DevDirectoriesTest : public testing::Test {
 protected:
  [[nodiscard]] static DevFacts Gather() {
    const Result<DevFacts> facts = GatherDevFacts(nullptr);
    EXPECT_TRUE(facts) << facts.error().ToString();
    return facts.value_or(DevFacts{});
  }

  const TestDirectory directory_;
  const std::filesystem::path disk_ = directory_.path() / "cache/kvtier/disk";
  const ScopedVariable runtime_{"XDG_RUNTIME_DIR", directory_.path()};
  const ScopedVariable cache_{"XDG_CACHE_HOME", directory_.path() / "cache"};
};

TEST_F(DevDirectoriesTest, AreMadeForThisUserAlone) {
  const DevFacts facts = Gather();
  EXPECT_EQ(facts.socket_directory, directory_.path() / "kvtier");
  EXPECT_EQ(facts.disk_directory, disk_);
  EXPECT_EQ(facts.why_no_disk, "");
  EXPECT_GT(facts.disk_free_bytes, 0u);
  for (const std::string& made : {facts.socket_directory, facts.disk_directory}) {
    EXPECT_EQ(std::filesystem::status(made).permissions(), std::filesystem::perms::owner_all);
  }
}

TEST_F(DevDirectoriesTest, ADiskDirectoryThatCannotBeMadeIsLeftOut) {
  const ScopedVariable cache("XDG_CACHE_HOME", "/proc/nowhere");
  EXPECT_THAT(Gather().why_no_disk, HasSubstr("/proc/nowhere/kvtier/disk: "));
}

TEST_F(DevDirectoriesTest, ADiskDirectoryThatOthersMayWriteToIsLeftOut) {
  std::filesystem::create_directories(disk_);
  std::filesystem::permissions(disk_, std::filesystem::perms(0777));
  const DevFacts facts = Gather();
  EXPECT_EQ(facts.why_no_disk, disk_.string() + " can be written by other users");
  EXPECT_EQ(ConfigFor(facts).disk.bytes, 0u);
}

TEST_F(DevDirectoriesTest, ADiskDirectoryOfAnotherUserIsLeftOut) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to give files away";
  std::filesystem::create_directories(disk_);
  ASSERT_EQ(::chown(disk_.c_str(), 1, 1), 0);
  EXPECT_THAT(Gather().why_no_disk, HasSubstr("belongs to user 1, not to 0"));
}

TEST_F(DevDirectoriesTest, ALinkToADiskDirectoryIsLeftOut) {
  std::filesystem::create_directories(disk_.parent_path());
  std::filesystem::create_directory_symlink(directory_.path(), disk_);
  EXPECT_THAT(Gather().why_no_disk, HasSubstr("is a symbolic link"));
}

}  // namespace
}  // namespace kvtier
