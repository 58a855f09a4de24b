// SPDX-License-Identifier: Apache-2.0
// The program with --dev: it serves without root and without a configuration.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <string>

#include "base/user_paths.h"
#include "daemon/keeper/keeper_link.h"
#include "tests/fakes/environment.h"
#include "tests/fakes/temporary_directory.h"
#include "tests/unit/daemon/kvtierd_process.h"
#include "tests/unit/daemon/wire_client.h"

namespace kvtier {
namespace {

using ::testing::HasSubstr;

// A home of the test's own, and tiers that are small enough to open at once.
class KvtierdDevTest : public testing::Test {
 protected:
  [[nodiscard]] static std::vector<std::string> Arguments() {
    return {"--dev",         "--set", "host.bytes=128MiB", "--set", "pool.bytes=16MiB",   "--set",
            "disk.bytes=0B", "--set", "pool.device=host",  "--set", "restart.keep_for=0s"};
  }

  const TestDirectory directory_;
  const ScopedVariable runtime_{"XDG_RUNTIME_DIR", directory_.path()};
  const ScopedVariable cache_{"XDG_CACHE_HOME", directory_.path() / "cache"};
  const ScopedVariable socket_{kSocketVariable, std::nullopt};
};

TEST_F(KvtierdDevTest, ServesWhereClientsLookAndSaysWhatToTypeNext) {
  Kvtierd kvtierd(Arguments());
  ASSERT_TRUE(kvtierd.ReadUntil("kvtier.demo\n")) << kvtierd.output();
  EXPECT_THAT(kvtierd.output(), HasSubstr("Clients of this user find it"));
  EXPECT_EQ(FindSocket(), directory_.path() / "kvtier/kvtier.sock");
  WireClient client(FindSocket());
  (void)client.Attach();
  kvtierd.Signal(SIGTERM);
  EXPECT_EQ(kvtierd.Wait(), 0);
}

TEST_F(KvtierdDevTest, TheNextOneHasItsPoolsAgainThoughLessMemoryIsFree) {
  std::vector<std::string> arguments{"--dev",         "--set", "host.bytes=128MiB", "--set",
                                     "disk.bytes=0B", "--set", "pool.device=host"};
  const std::string screen = "as the last daemon has left it";
  for (const bool again : {false, true}) {
    Kvtierd kvtierd(arguments);
    ASSERT_TRUE(kvtierd.ReadUntil("kvtier.demo\n")) << kvtierd.output();
    EXPECT_EQ(kvtierd.output().find("size_changed"), std::string::npos) << kvtierd.output();
    EXPECT_EQ(kvtierd.output().find(screen) != std::string::npos, again) << kvtierd.output();
    WireClient client(FindSocket());
    (void)client.Attach();
    kvtierd.Signal(SIGTERM);
    EXPECT_EQ(kvtierd.Wait(), 0);
  }
  EXPECT_TRUE(KeeperLink::End(KeeperPlace::Beside(directory_.path() / "kvtier/kvtier.sock", "")));
}

TEST_F(KvtierdDevTest, RefusesAConfigurationFileBesides) {
  Kvtierd kvtierd({"--dev", "--config", "/nonexistent.toml"});
  EXPECT_EQ(kvtierd.Wait(), 2);
}

TEST_F(KvtierdDevTest, ShowsItsConfigurationWithoutServing) {
  Kvtierd kvtierd({"--dev", "--check-config"});
  EXPECT_EQ(kvtierd.Wait(), 0);
  EXPECT_THAT(kvtierd.output(), HasSubstr((directory_.path() / "cache/kvtier/disk").string()));
}

TEST_F(KvtierdDevTest, EndsWith78WhereAnotherUserCouldListen) {
  std::filesystem::create_directory(directory_.path() / "kvtier");
  std::filesystem::permissions(directory_.path() / "kvtier", std::filesystem::perms(0777));
  Kvtierd kvtierd(Arguments());
  EXPECT_EQ(kvtierd.Wait(), 78);
  EXPECT_THAT(kvtierd.output(), HasSubstr("can be written by other users"));
}

}  // namespace
}  // namespace kvtier
