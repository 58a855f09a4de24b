// SPDX-License-Identifier: Apache-2.0
// The keys that name the drives of the disk tier.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "daemon/config/config_check.h"
#include "daemon/config/config_loader.h"
#include "tests/fakes/temporary_directory.h"

namespace kvtier {
namespace {

Result<Config> FromText(const std::string& text) { return ParseConfig(text, "test.toml", {}); }

std::string Complaint(const std::string& text) {
  const Result<Config> config = FromText(text);
  return config ? "" : config.error().context;
}

TEST(ConfigDrives, DirectoriesOfDrivesAreDistinctAndNotGivenTwice) {
  const auto told = [](const std::string& text) {
    return Complaint("[disk]\nbytes = \"1GiB\"\n" + text);
  };
  EXPECT_EQ(told("directories = [\"/mnt/a\", \"/mnt/b\"]\n"), "");
  EXPECT_EQ(told("directories = [\"/mnt/a\", \"/mnt/x/../a/\"]\n"),
            "test.toml:3:15: disk.directories names \"/mnt/a\" twice; remove one");
  EXPECT_THAT(told("directories = [\"/mnt/a\", \"/mnt/a/b\"]\n"),
              testing::HasSubstr("\"/mnt/a/b\" lies within \"/mnt/a\""));
  EXPECT_THAT(told("directories = [\"/mnt/a\"]\ndirectory = \"/mnt/b\"\n"),
              testing::HasSubstr("disk.directories and disk.directory are both given"));
  EXPECT_THAT(told("directories = [\"/srv/kv\"]\n[server]\nsocket = \"/srv/kv/a.sock\"\n"),
              testing::HasSubstr("overlap"));
}

TEST(ConfigDrives, ALookAtTheDrivesFindsThoseThatAreMissingAndThoseThatAreOne) {
  const TestDirectory there;
  const std::filesystem::path path = there.path();
  std::filesystem::create_directory(path / "a");
  std::filesystem::create_directory(path / "b");
  std::filesystem::create_directory_symlink(path / "a", path / "link");
  const auto doubts = [&](const std::string& first, const std::string& second) {
    return BeyondDisk(
        *FromText(fmt::format("[disk]\ndirectories = [\"{0}/{1}\", \"{0}/{2}\"]\n"
                              "bytes = \"256MiB\"\n",
                              path.string(), first, second)));
  };
  EXPECT_TRUE(doubts("a", "b").empty());
  ASSERT_EQ(doubts("a", "missing").size(), 1u);
  EXPECT_THAT(doubts("a", "missing")[0], testing::HasSubstr("missing is not there"));
  ASSERT_EQ(doubts("a", "link").size(), 1u);
  EXPECT_THAT(doubts("a", "link")[0], testing::HasSubstr("are one directory"));
}

}  // namespace
}  // namespace kvtier
