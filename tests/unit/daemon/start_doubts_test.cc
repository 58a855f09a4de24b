// SPDX-License-Identifier: Apache-2.0
// The program is tested for agreement of check and start, in kvtierd_test.cc.
#include "daemon/app/start_doubts.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/machine.h"
#include "daemon/config/config_loader.h"
#include "tests/fakes/temporary_directory.h"

namespace kvtier {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

class StartDoubtsTest : public testing::Test {
 protected:
  // The doubts about small tiers with `disk` and `more`, a line each.
  std::string Doubts(const std::string& disk, const std::string& more = "") {
    const std::string text = fmt::format(
        "[server]\nsocket = \"{0}/k.sock\"\nadmin_socket = \"{0}/a.sock\"\n"
        "[pool]\ndevice = \"host\"\nbytes = \"64MiB\"\n[host]\nbytes = \"64MiB\"\n"
        "[disk]\n{1}\n",
        sockets_.path().native(), disk);
    std::vector<std::string> set;
    if (!more.empty()) set.push_back(more);
    std::string told;
    for (const StartDoubt& doubt :
         DoubtsOfStart(ParseConfig(text, "test.toml", set).value(), CudaGpus())) {
      told += (doubt.is_final ? "final: " : "") + doubt.text + "\n";
    }
    return told;
  }

  const TestDirectory sockets_;
  const TestDirectory directory_;
  const std::string path_ = directory_.path();
};

TEST_F(StartDoubtsTest, ADirectoryMayBeMadeAndTheOneAboveItMayNot) {
  const auto told = [this](const std::string& directory, const std::string& bytes) {
    return Doubts(fmt::format("directory = \"{}\"\nbytes = \"{}\"", directory, bytes));
  };
  EXPECT_EQ(told(path_, "128MiB"), "");
  EXPECT_EQ(told(path_ + "/made", "128MiB"), "");
  EXPECT_EQ(told(path_ + "/made/", "128MiB"), "");
  EXPECT_THAT(told(path_ + "/not/made", "128MiB"), HasSubstr("write into " + path_ + "/not: No"));
  EXPECT_TRUE(fs::is_empty(path_)) << "nothing is made";
  EXPECT_EQ(told("relative", "0B"), "") << "there is no disk tier";
  EXPECT_THAT(told("relative", "128MiB"),
              HasSubstr("test.toml:10:13: disk.directory \"relative\""));
  EXPECT_THAT(told(path_, "1000TiB"), HasSubstr("test.toml:11:9: disk.bytes would take"));
}

TEST_F(StartDoubtsTest, ACredentialThatOnlyTheServiceIsGivenIsWarnedOfWithItsKeyAndARemedy) {
  ::unsetenv("CREDENTIALS_DIRECTORY");
  const auto told = [this](const std::string& root_keys) {
    return Doubts(
        fmt::format("directory = \"{}\"\nbytes = \"128MiB\"\n"
                    "encryption = \"aes-256-gcm\"\n{}",
                    path_, root_keys));
  };
  const std::string root = told("root_key = \"kvtier.root\"");
  EXPECT_THAT(root, testing::StartsWith("test.toml:13:12: disk.root_key: kvtier.root names"));
  EXPECT_THAT(root, HasSubstr("LoadCredentialEncrypted="));
  const fs::path file = directory_.path() / "key";
  std::ofstream(file) << std::string(32, 'k');
  fs::permissions(file, fs::perms(0600));
  EXPECT_THAT(
      told(fmt::format("root_key = \"{}\"\nprevious_root_key = \"kvtier.old\"", file.native())),
      testing::StartsWith("test.toml:14:21: disk.previous_root_key: kvtier.old names"));
}

TEST_F(StartDoubtsTest, DrivesThatAreMissingAreLeftOutAndThoseThatAreOneRefused) {
  fs::create_directory(path_ + "/a");
  fs::create_directory(path_ + "/b");
  fs::create_directory_symlink(path_ + "/a", path_ + "/link");
  const auto told = [this](const std::string& second) {
    return Doubts(
        fmt::format("directories = [\"{0}/a\", \"{0}/{1}\"]\nbytes = \"256MiB\"", path_, second));
  };
  EXPECT_EQ(told("b"), "");
  EXPECT_THAT(told("missing"), HasSubstr("open " + path_ + "/missing: No such file"));
  EXPECT_THAT(told("missing"), testing::Not(HasSubstr("final: ")));
  EXPECT_THAT(told("link"), testing::AllOf(HasSubstr("final: "), HasSubstr("are one directory")));
}

TEST_F(StartDoubtsTest, HostMemoryAndPoolsAreComparedWithTheMachinesTogether) {
  const uint64_t bytes = ReadMachineMemory().total_bytes - (32 << 20);
  EXPECT_THAT(Doubts("bytes = \"0B\"", fmt::format("pool.bytes={}KiB", bytes / 1024)),
              HasSubstr("host.bytes and pools in host memory would take"));
}

TEST_F(StartDoubtsTest, ARelativeSocketIsNotRefusedAndTold) {
  EXPECT_THAT(Doubts("bytes = \"0B\"", "server.socket=k.sock"),
              HasSubstr("--set server.socket=k.sock: server.socket \"k.sock\" is looked for"));
}

TEST_F(StartDoubtsTest, ATenantWhoseEventsAreWantedAndThatIsNotThereIsWarnedOf) {
  const auto told = [this](const std::string& names) {
    return Doubts(
        "bytes = \"0B\"\n[[tenant]]\nname = \"team\"\nuids = [1]\n[events]\nendpoint = "
        "\"tcp://127.0.0.1:1\"\ntenants = [" +
        names + "]");
  };
  EXPECT_THAT(told("\"team\", \"default\""), testing::Not(HasSubstr("events.tenants")));
  EXPECT_THAT(told("\"team\", \"taem\""),
              HasSubstr("test.toml:16:11: events.tenants names \"taem\", which no [[tenant]]"));
}

}  // namespace
}  // namespace kvtier
