// SPDX-License-Identifier: Apache-2.0
// kvtierd as a unit whose descriptors the service manager keeps.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/unit/daemon/fake_systemd.h"
#include "tests/unit/daemon/kvtierd_process.h"

namespace kvtier {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::UnorderedElementsAre;

class KvtierdUnitTest : public testing::TestWithParam<bool> {
 protected:
  ~KvtierdUnitTest() override { End(SIGKILL); }

  // Returns when it serves.
  void Start(const std::vector<std::string>& more_settings = {}) {
    std::vector<std::string> arguments = SmallArguments(directory_.path());
    arguments.insert(arguments.begin(), KVTIERD_PATH);
    arguments.insert(arguments.end(), {"--set", "restart.keep_for=1min"});
    for (const std::string& setting : more_settings) {
      arguments.insert(arguments.end(), {"--set", setting});
    }
    const UniqueFd log(::open(LogPath().c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    pid_ = systemd_.Spawn(arguments, GetParam(), log.get());
    ASSERT_TRUE(systemd_.WaitFor("READY=1")) << Log();
  }
  void End(int signal) {
    if (pid_ <= 0) return;
    ::kill(pid_, signal);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  [[nodiscard]] std::string LogPath() const { return directory_.path() / "log"; }
  [[nodiscard]] std::string Log() const {
    std::ostringstream text;
    text << std::ifstream(LogPath()).rdbuf();
    return text.str();
  }

  TestDirectory directory_;
  FakeSystemd systemd_{16};
  pid_t pid_ = -1;
};

TEST_P(KvtierdUnitTest, HasItsHostMemoryAgainAfterEachEnd) {
  Start();
  EXPECT_THAT(Log(), Not(HasSubstr("host.adopted")));
  for (const int signal : {SIGKILL, SIGTERM, SIGKILL}) {
    End(signal);
    EXPECT_THAT(systemd_.Names(), UnorderedElementsAre("host-arena", "host-table"));
    Start();
    EXPECT_THAT(Log(), HasSubstr("host.adopted")) << signal;
    EXPECT_THAT(Log(), Not(HasSubstr("kvtier-keeper"))) << "systemd keeps it";
  }
  End(SIGTERM);
  EXPECT_THAT(Log(), HasSubstr("kept by systemd until the unit is stopped"));
}

TEST_P(KvtierdUnitTest, LeavesNothingBehindOnceItIsSwitchedOff) {
  Start();
  End(SIGKILL);
  Start({"restart.keep_for=0s"});
  EXPECT_THAT(Log(), Not(HasSubstr("host.adopted")));
  End(SIGKILL);
  EXPECT_THAT(systemd_.Names(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Systemd, KvtierdUnitTest, testing::Bool(), [](const auto& info) {
  return info.param ? "SaysThatItKeeps" : "IsAsked";
});

}  // namespace
}  // namespace kvtier
