// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/files/file_tree.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <system_error>

#include "base/posix.h"
#include "daemon/cold/files/file_sweep.h"
#include "tests/fakes/temporary_directory.h"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

// Counts how often the store's directory is looked for.
class CountedRoots final : public FileSystem {
 public:
  int OpenRoot(const char* path) override {
    ++roots;
    return FileSystem::OpenRoot(path);
  }

  int roots = 0;
};

TEST(RootDirectoryTest, CallsThatOverlapShareTheDirectoryAndLaterOnesFindItAnew) {
  const TestDirectory directory;
  const fs::path root = directory.path() / "store";
  fs::create_directory(root);
  CountedRoots files;
  RootDirectory shared(&files, root);
  {
    FilePath one(&files, &shared);
    FilePath other(&files, &shared);
    for (FilePath* const path : {&one, &other}) EXPECT_EQ(path->Open("ab", O_PATH), -ENOENT);
    EXPECT_EQ(files.roots, 1);
    fs::rename(root, directory.path() / "moved");
    fs::create_directories(root / "ab");
    EXPECT_EQ(other.Open("ab", O_PATH), -ENOENT);
    other.Forget();
    EXPECT_TRUE(UniqueFd(other.Open("ab", O_PATH)).valid()) << "by its name";
    EXPECT_EQ(files.roots, 2);
  }
  FilePath later(&files, &shared);
  EXPECT_TRUE(UniqueFd(later.Open("ab", O_PATH)).valid());
  EXPECT_EQ(files.roots, 3);
}

TEST(FileSweepDescriptorsTest, BetweenSweepsNothingIsOpenSoThatTheStoreCanBeUnmounted) {
  const TestDirectory directory;
  const std::string root = directory.path() / "store";
  fs::create_directories(fs::path(root) / "kvtier" / "1");
  const fs::path stamp = fs::path(root) / "kvtier" / ".swept";
  std::ofstream(stamp).close();
  fs::last_write_time(stamp, fs::file_time_type::clock::now() - std::chrono::hours(1));
  const auto count_open = [&root] {
    int count = 0;
    for (const auto& link : fs::directory_iterator("/proc/self/fd")) {
      std::error_code gone;  // the iterator's own
      count += fs::read_symlink(link, gone).native().starts_with(root) ? 1 : 0;
    }
    return count;
  };
  FileSystem files;
  FileSweep sweep(
      &root, &files, 0, [] { return true; }, [] { return std::time(nullptr); });
  EXPECT_EQ(sweep.Look(), std::nullopt);
  EXPECT_EQ(count_open(), 0);
  EXPECT_EQ(sweep.Look(), std::nullopt);
  EXPECT_EQ(count_open(), 0);
}

}  // namespace
}  // namespace kvtier
