// SPDX-License-Identifier: Apache-2.0
// The directory of the disk tier: its lock, which one process holds at a time, the locks of its
// data files, which I/O under way holds for longer, and its marks.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/posix.h"
#include "base/result.h"
#include "tiers/types/block_key.h"

namespace kvtier {

// Move-only; gives the lock up with its end.
class DirectoryLock {
 public:
  DirectoryLock() = default;
  explicit DirectoryLock(UniqueFd fd) : fd_(std::move(fd)) {}
  DirectoryLock(DirectoryLock&&) = default;
  DirectoryLock& operator=(DirectoryLock&& other) noexcept;
  ~DirectoryLock();

 private:
  void Unlock();
  UniqueFd fd_;
};

// Move-only.
struct DiskDirectory {
  DirectoryLock lock;
  UniqueFd fd;
  // The correction made on the way, for the log.
  std::optional<std::string> note;
};

// The end of a start's patience with locks that a process that has ended still holds: all of them
// have one, because its last I/O ends at the same time in all its files, and because systemd's
// patience with the start ends, too. A minute and a half from now.
[[nodiscard]] std::chrono::steady_clock::time_point LastIoDeadline();

// Creates the directory (not its parents) if need be and `create`, makes it private to this user
// and locks it; waits a moment for a process that is just ending. Errors: kPermissionDenied
// "directory_owner" if another user owns it; kAlreadyExists "directory_locked" naming the process
// that has it; kIoError "last_io_under_way" (of a process that has ended) at `until`; kIoError by
// errno name.
[[nodiscard]] Result<DiskDirectory> OpenDiskDirectory(
    const std::filesystem::path& path, bool create = true,
    std::chrono::steady_clock::time_point until = LastIoDeadline());

// Asks what OpenDiskDirectory would meet, beside a daemon that has the directory, too: makes,
// changes and locks nothing. Returns whether there are files that this process may look into: root
// may ask for another user, and opens nothing that that user has put there. Errors:
// kPermissionDenied "directory_owner"; kIoError by errno name.
[[nodiscard]] Result<bool> LookAtDiskDirectory(const std::filesystem::path& path, bool create);

// Locks the open file `fd`, a data file at `path`, until all its descriptors are closed and its
// last I/O has ended. REQUIRES: its directory is locked. So the lock is free, unless the kernel is
// still at a killed daemon's requests of this file, which are waited for: a late write could arrive
// in a slot that another block has been given, and a late read, in such host memory.
// Errors: kIoError "last_io_under_way" at `until`; kIoError by errno name.
[[nodiscard]] Status LockDataFile(int fd, const std::filesystem::path& path,
                                  std::chrono::steady_clock::time_point until);

// Makes a small file in the directory, durable and atomic, in which a checksum stands before each
// line; without lines removes it. Errors: kIoError "epoch_mark".
[[nodiscard]] Status WriteMark(const std::filesystem::path& directory, std::string_view name,
                               const std::vector<std::string>& lines);
// Calls `take` with each whole line of the file, and with those of versions that wrote no
// checksums; it says whether the line holds. Returns how many lines are damaged or cannot be read.
[[nodiscard]] size_t ReadMark(const std::filesystem::path& directory, std::string_view name,
                              const std::function<bool(std::istringstream*)>& take);

// The disk files' side of the handshake with the index: a small file beside them that names the
// start in which the index was last opened. Without it a copy of the index from a backup could not
// be told from one that a crash kept from being opened. Static functions only; they block.
// `directory` is that of the disk files.
class EpochMark {
 public:
  // The marked epoch, 0 if there is no mark, UINT64_MAX (no index is that new) if it cannot be
  // read.
  [[nodiscard]] static uint64_t Read(const std::filesystem::path& directory);
  // Durable and atomic. Errors: kIoError "epoch_mark".
  [[nodiscard]] static Status Write(const std::filesystem::path& directory, uint64_t epoch);
  // Durable. Errors: kIoError "epoch_mark".
  [[nodiscard]] static Status Remove(const std::filesystem::path& directory);
};

// Names the distrusted identities for an index that is rebuilt, since no header tells them. As
// EpochMark.
class DistrustMark {
 public:
  // Adds those of the directory to `distrusted`. Returns how many lines are damaged, and lost.
  [[nodiscard]] static size_t AddTo(std::vector<NamespaceIdentity>* distrusted,
                                    const std::filesystem::path& directory);
  // Durable and atomic; without any there is no file. Errors: kIoError "epoch_mark".
  [[nodiscard]] static Status Write(const std::filesystem::path& directory,
                                    const std::vector<NamespaceIdentity>& distrusted);
};

}  // namespace kvtier
