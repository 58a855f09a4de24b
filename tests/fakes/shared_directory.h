// SPDX-License-Identifier: Apache-2.0
// A directory that hosts share as a store, and its files as other hosts leave them.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/fakes/temporary_directory.h"

namespace kvtier {

class SharedDirectoryTest : public testing::Test {
 protected:
  [[nodiscard]] std::filesystem::path root() const { return directory_.path() / "store"; }
  void SetUp() override { std::filesystem::create_directory(root()); }

  // But for those of sweeps themselves.
  [[nodiscard]] size_t CountFiles() const {
    size_t count = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root())) {
      const std::string name = entry.path().filename();
      if (!entry.is_directory() && name != ".swept" && name != ".clock") ++count;
    }
    return count;
  }
  // A file as a writer leaves it.
  void MakeFile(const std::string& name, int64_t end_s, size_t bytes = 10) const {
    const std::filesystem::path path = root() / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << std::string(bytes, 'x');
    const timespec times[] = {{.tv_sec = end_s}, {.tv_sec = end_s}};
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  }

  const TestDirectory directory_;
};

}  // namespace kvtier
