// SPDX-License-Identifier: Apache-2.0
// Two drives' directories as OpenDiskFiles finds them, and what tests do to them between starts.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/executor.h"
#include "base/posix.h"
#include "base/result.h"
#include "tests/fakes/aligned_bytes.h"
#include "tests/fakes/temporary_directory.h"
#include "tiers/storage/disk_files.h"
#include "tiers/storage/disk_set_file.h"
#include "tiers/storage/superblock.h"

namespace kvtier {

inline constexpr uint64_t kSlabBytes = 256 * kKiB;
inline constexpr int64_t kNowMs = 1'800'000'000'000;

class DiskFilesTest : public ::testing::Test {
 protected:
  DiskFilesTest() {
    options_.directories = {directory_.path() / "disk", directory_.path() / "second"};
    for (const auto& directory : options_.directories) ::mkdir(directory.c_str(), 0700);
    options_.now_ms = kNowMs;
    options_.slab_bytes = kSlabBytes;
    options_.bytes = 2 * kMiB + 10 * kSlabBytes;
    options_.engine = DiskEngine::kPread;
    options_.io.threads = 1;
  }

  DiskFiles OpenOrDie() {
    Result<DiskFiles> files = OpenDiskFiles(options_, &loop_);
    KVT_CHECK(files.has_value());
    return std::move(*files);
  }
  Error OpenError() {
    Result<DiskFiles> files = OpenDiskFiles(options_, &loop_);
    return files ? Error{ErrorCode::kInternal, "opened", ""} : files.error();
  }
  // As an operator does who gives up what they hold.
  void EmptyFiles() const {
    for (int i = 0; i < static_cast<int>(options_.directories.size()); ++i) {
      std::filesystem::resize_file(FilePath(i), 0);
    }
  }
  [[nodiscard]] std::filesystem::path FilePath(int number) const {
    return options_.directories[static_cast<size_t>(number)] / kDiskFileName;
  }
  // The next start has the first directory alone.
  void UseOne() {
    options_.directories.resize(1);
    options_.bytes = kMiB + 5 * kSlabBytes;
  }
  // A byte of the drive's first slab.
  static DiskLocation On(uint32_t drive) { return DiskLocation{drive * kSlabBytes}; }
  // Where a drive that is unmounted leaves nothing.
  void MoveAside(int number) const {
    const std::filesystem::path& directory = options_.directories[static_cast<size_t>(number)];
    std::filesystem::rename(directory, directory.native() + ".aside");
  }
  void MoveBack(int number) const {
    const std::filesystem::path& directory = options_.directories[static_cast<size_t>(number)];
    std::filesystem::rename(directory.native() + ".aside", directory);
  }
  void Overwrite(int number, uint64_t offset, const std::string& bytes) const {
    std::fstream file(FilePath(number), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    file << bytes;
    KVT_CHECK(file.good());
  }

  // One block's worth of bytes at a location, through the engine.
  Status Write(const DiskFiles& files, DiskLocation location, uint8_t value) {
    const AlignedBytes bytes(4096, value);
    std::optional<Status> outcome;
    files.files[files.geometry.FileOf(location)]->Write(
        files.geometry.OffsetInFile(location), bytes.Slice(0, 4096),
        [&](Status status) { outcome = std::move(status); });
    loop_.RunUntil([&] { return outcome.has_value(); });
    return *outcome;
  }
  int ReadByte(const DiskFiles& files, DiskLocation location) {
    const AlignedBytes bytes(4096, 0xee);
    std::optional<Status> outcome;
    files.files[files.geometry.FileOf(location)]->Read(
        files.geometry.OffsetInFile(location), bytes.Slice(0, 4096),
        [&](Status status) { outcome = std::move(status); });
    loop_.RunUntil([&] { return outcome.has_value(); });
    return *outcome ? static_cast<int>(bytes.data()[0]) : -1;
  }

  // The remains of a daemon that was killed: a process that has some of its open files.
  class KilledDaemon {
   public:
    // `stay`: the end of a pipe at whose other end the process waits.
    explicit KilledDaemon(UniqueFd stay) : stay_(std::move(stay)) {}
    void End() { stay_.Reset(); }

   private:
    UniqueFd stay_;
  };

  // Closes all but `kept` and the open files whose names in /proc end so.
  static void CloseAllBut(const std::string& name_end, int kept) {
    std::vector<int> others;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
      const int fd = std::stoi(entry.path().filename().string());
      if (fd > 2 && fd != kept && !target.ends_with(name_end)) others.push_back(fd);
    }
    for (const int fd : others) ::close(fd);
  }

  // Kills a daemon that has opened the disk tier. The process left has the open files named, and no
  // other one has them.
  KilledDaemon KillDaemonBut(const std::string& name_end) {
    int pair[2];
    KVT_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    UniqueFd stay(pair[0]);
    char byte = 'x';
    const pid_t daemon = ::fork();
    if (daemon == 0) {
      const DiskFiles files = OpenOrDie();
      while (::fork() != 0) ::pause();
      CloseAllBut(name_end, pair[1]);
      KVT_CHECK(::write(pair[1], &byte, 1) == 1);
      (void)!::read(pair[1], &byte, 1);
      ::_exit(0);
    }
    ::close(pair[1]);
    KVT_CHECK(::read(stay.get(), &byte, 1) == 1);
    ::kill(daemon, SIGKILL);
    KVT_CHECK(::waitpid(daemon, nullptr, 0) == daemon);
    return KilledDaemon(std::move(stay));
  }

  TestDirectory directory_;
  BlockingLoop loop_;
  DiskFilesOptions options_;
};

}  // namespace kvtier
