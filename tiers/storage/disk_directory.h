// SPDX-License-Identifier: Apache-2.0
// The directory of the disk tier, held by one process at a time.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "base/result.h"
#include "base/unique_fd.h"

namespace kvtier {

// Move-only; gives the lock up with its end.
class DirectoryLock {
 public:
  DirectoryLock() = default;
  explicit DirectoryLock(UniqueFd fd) : fd_(std::move(fd)) {}
  DirectoryLock(DirectoryLock&&) = default;
  DirectoryLock& operator=(DirectoryLock&& other) noexcept;
  ~DirectoryLock();

  // For IoEngineOptions::held_fd. Owned by this object; -1 if there is no lock.
  [[nodiscard]] int fd() const { return fd_.get(); }

 private:
  void Unlock();
  UniqueFd fd_;
};

// Move-only.
struct DiskDirectory {
  DirectoryLock lock;
  UniqueFd fd;
  // What was set right on the way, for the log.
  std::optional<std::string> note;
};

// Creates the directory (not its parents) if need be, makes it private to this user and locks it;
// waits a moment for a process that is just ending. Errors: kPermissionDenied "directory_owner" if
// it is somebody else's; kAlreadyExists "directory_locked" naming the process that has it; kIoError
// by errno name.
[[nodiscard]] Result<DiskDirectory> OpenDiskDirectory(const std::filesystem::path& path);

}  // namespace kvtier
