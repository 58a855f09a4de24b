// SPDX-License-Identifier: Apache-2.0
#include "base/user_paths.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

#include "base/posix.h"
#include "tests/fakes/environment.h"
#include "tests/fakes/temporary_directory.h"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

// A runtime directory and a temporary directory of the test's own, and no socket that is named.
class UserPathsTest : public testing::Test {
 protected:
  UserPathsTest() {
    fs::create_directory(runtime_);
    fs::create_directory(temporary_);
  }

  static void Listen(const fs::path& path) {
    const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    ASSERT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  [[nodiscard]] fs::path fallback() const {
    return temporary_ / ("kvtier-" + std::to_string(::geteuid()));
  }

  const TestDirectory directory_;
  const fs::path runtime_ = directory_.path() / "run";
  const fs::path temporary_ = directory_.path() / "tmp";
  const ScopedVariable runtime_variable_{"XDG_RUNTIME_DIR", runtime_};
  const ScopedVariable temporary_variable_{"TMPDIR", temporary_};
  const ScopedVariable socket_variable_{kSocketVariable, std::nullopt};
};

TEST_F(UserPathsTest, TheSystemsSocketServesWhoHasNoneOfTheirOwn) {
  EXPECT_EQ(FindSocket(), "/run/kvtier/kvtier.sock");
  EXPECT_EQ(AdminSocketBeside(FindSocket()), "/run/kvtier/admin.sock");
}

TEST_F(UserPathsTest, ANamedSocketComesFirst) {
  ASSERT_TRUE(MakeUserSocketDirectory());
  Listen(runtime_ / "kvtier" / "kvtier.sock");
  const ScopedVariable named(kSocketVariable, "/somewhere/else.sock");
  EXPECT_EQ(FindSocket(), "/somewhere/else.sock");
}

TEST_F(UserPathsTest, TheUsersOwnDaemonIsFoundInTheRuntimeDirectory) {
  const Result<std::string> made = MakeUserSocketDirectory();
  ASSERT_TRUE(made);
  EXPECT_EQ(*made, runtime_ / "kvtier");
  EXPECT_EQ(fs::status(*made).permissions(), fs::perms::owner_all);
  Listen(runtime_ / "kvtier" / "kvtier.sock");
  EXPECT_EQ(FindSocket(), runtime_ / "kvtier" / "kvtier.sock");
}

TEST_F(UserPathsTest, WithoutARuntimeDirectoryAPrivateOneIsMadeAndFound) {
  for (const std::optional<std::string>& runtime :
       {std::optional<std::string>(), std::optional<std::string>("/nonexistent")}) {
    const ScopedVariable none("XDG_RUNTIME_DIR", runtime);
    const Result<std::string> made = MakeUserSocketDirectory();
    ASSERT_TRUE(made);
    EXPECT_EQ(*made, fallback());
    EXPECT_EQ(fs::status(*made).permissions(), fs::perms::owner_all);
  }
  Listen(fallback() / "kvtier.sock");
  // A client may have a runtime directory although its daemon had none.
  EXPECT_EQ(FindSocket(), fallback() / "kvtier.sock");
}

TEST_F(UserPathsTest, ADirectoryThatOthersMayWriteToIsNotTrusted) {
  ASSERT_TRUE(MakeUserSocketDirectory());
  Listen(runtime_ / "kvtier" / "kvtier.sock");
  fs::permissions(runtime_ / "kvtier", fs::perms(0777));
  EXPECT_EQ(FindSocket(), kSystemSocket);
  EXPECT_NE(WhyNotTrusted(runtime_ / "kvtier" / "kvtier.sock").find("other users"),
            std::string::npos);
  EXPECT_EQ(MakeUserSocketDirectory().error().reason, "socket_directory_owner");
}

TEST_F(UserPathsTest, ASocketOfAnotherUserIsNotTrusted) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to give files away";
  const ScopedVariable none("XDG_RUNTIME_DIR", std::nullopt);
  ASSERT_TRUE(MakeUserSocketDirectory());
  const fs::path socket = fallback() / "kvtier.sock";
  Listen(socket);
  ASSERT_EQ(FindSocket(), socket);
  ASSERT_EQ(::lchown(socket.c_str(), 1, 1), 0);
  EXPECT_EQ(FindSocket(), kSystemSocket);
  ASSERT_EQ(::lchown(socket.c_str(), 0, 0), 0);
  ASSERT_EQ(::chown(fallback().c_str(), 1, 1), 0);
  EXPECT_EQ(FindSocket(), kSystemSocket);
  EXPECT_NE(WhyNotTrusted(socket).find("belongs to user 1"), std::string::npos);
  EXPECT_EQ(MakeUserSocketDirectory().error().reason, "socket_directory_owner");
}

TEST_F(UserPathsTest, ALinkToADirectoryIsNotTrusted) {
  fs::create_directory(directory_.path() / "real");
  fs::create_directory_symlink(directory_.path() / "real", runtime_ / "kvtier");
  Listen(directory_.path() / "real" / "kvtier.sock");
  EXPECT_EQ(FindSocket(), kSystemSocket);
  EXPECT_FALSE(MakeUserSocketDirectory());
}

TEST_F(UserPathsTest, APlainFileIsNoSocket) {
  ASSERT_TRUE(MakeUserSocketDirectory());
  std::FILE* const file = std::fopen((runtime_ / "kvtier" / "kvtier.sock").c_str(), "w");
  ASSERT_NE(file, nullptr);
  std::fclose(file);
  EXPECT_EQ(FindSocket(), kSystemSocket);
}

}  // namespace
}  // namespace kvtier
