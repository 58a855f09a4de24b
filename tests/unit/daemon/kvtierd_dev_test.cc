// SPDX-License-Identifier: Apache-2.0
// The program with --dev: it serves without root and without a configuration.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include <filesystem>
#include <string>

#include "base/user_paths.h"
#include "daemon/keeper/keeper_link.h"
#include "daemon/keeper/keeper_protocol.h"
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

  // Listens where the keeper of the last daemon with that directory for sockets would.
  [[nodiscard]] UniqueFd ListenAsKeeper(const std::string& name = "kvtier") const {
    const std::filesystem::path place = directory_.path() / name;
    std::filesystem::create_directory(place);
    std::filesystem::permissions(place, std::filesystem::perms::owner_all);
    UniqueFd socket = OpenKeeperSocket((place / kKeeperSocketName).native(), /*listening=*/true);
    EXPECT_EQ(::listen(socket.get(), 1), 0);
    return socket;
  }
  [[nodiscard]] static bool HasInput(const UniqueFd& socket, int timeout_ms) {
    pollfd looked{.fd = socket.get(), .events = POLLIN, .revents = 0};
    return ::poll(&looked, 1, timeout_ms) == 1;
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

// Each question would begin anew the time for which the keeper has the memory.
TEST_F(KvtierdDevTest, ACheckOfTheConfigurationAsksNoKeeper) {
  const UniqueFd keeper = ListenAsKeeper();
  Kvtierd kvtierd({"--dev", "--check-config"});
  EXPECT_EQ(kvtierd.Wait(), 0);
  EXPECT_FALSE(HasInput(keeper, 0));
}

TEST_F(KvtierdDevTest, AKeeperIsToldTheConfiguredTimeAtTheFirstQuestion) {
  const UniqueFd keeper = ListenAsKeeper();
  Kvtierd kvtierd({"--dev", "--set", "restart.keep_for=2h"});
  ASSERT_TRUE(HasInput(keeper, 60'000));
  const UniqueFd daemon(::accept(keeper.get(), nullptr, nullptr));
  ASSERT_TRUE(HasInput(daemon, 60'000));
  KeeperPacket hello;
  UniqueFd none;
  ASSERT_EQ(ReceivePacket(daemon.get(), &hello, &none), Received::kPacket);
  EXPECT_EQ(hello.number, 2 * 3600 * 1000);
}

// A daemon at the usual socket may run, and needs its keeper.
TEST_F(KvtierdDevTest, TheKeeperBesideTheConfiguredSocketIsAskedAndNoOther) {
  const UniqueFd usual = ListenAsKeeper();
  const UniqueFd keeper = ListenAsKeeper("own");
  Kvtierd kvtierd(
      {"--dev", "--set", "server.socket=" + (directory_.path() / "own/k.sock").string()});
  ASSERT_TRUE(HasInput(keeper, 60'000)) << kvtierd.output();
  EXPECT_FALSE(HasInput(usual, 0));
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
