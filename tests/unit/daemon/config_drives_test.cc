// SPDX-License-Identifier: Apache-2.0
// The keys that name the drives of the disk tier.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "daemon/config/config_loader.h"

namespace kvtier {
namespace {

std::string Complaint(const std::string& text) {
  const Result<Config> config = ParseConfig(text, "test.toml", {});
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

}  // namespace
}  // namespace kvtier
