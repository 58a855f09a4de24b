// SPDX-License-Identifier: Apache-2.0
#include "tools/support/temporary_directory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace kvtier {
namespace {

TEST(TemporaryDirectoryTest, GoesWithEverythingInIt) {
  std::string path;
  {
    auto directory = TemporaryDirectory::Create();
    ASSERT_TRUE(directory);
    path = directory->path();
    std::filesystem::create_directory(path + "/inner");
    std::ofstream(path + "/inner/file") << "x";
    EXPECT_TRUE(std::filesystem::exists(path + "/inner/file"));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(TemporaryDirectoryTest, MovedFromDirectoryRemovesNothing) {
  auto directory = TemporaryDirectory::Create();
  ASSERT_TRUE(directory);
  const std::string path = directory->path();
  {
    const TemporaryDirectory owner = std::move(*directory);
    directory = TemporaryDirectory::Create();
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(TemporaryDirectoryTest, UnusableParentIsAnError) {
  const auto directory = TemporaryDirectory::Create("/nowhere");
  ASSERT_FALSE(directory);
  EXPECT_EQ(directory.error().code, ErrorCode::kIoError);
  EXPECT_EQ(directory.error().reason, "ENOENT");
}

}  // namespace
}  // namespace kvtier
