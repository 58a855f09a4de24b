// SPDX-License-Identifier: Apache-2.0
// One file of the disk tier's set, before an engine takes it: opening, its superblock, its size.
// Blocking calls, for start-up.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

#include "base/posix.h"
#include "base/result.h"
#include "tiers/storage/disk_directory.h"
#include "tiers/storage/superblock.h"

namespace kvtier {

// The name of the one file that each directory of the tier has.
inline constexpr std::string_view kDiskFileName = "blocks.kvt";

class DiskSetFile {
 public:
  // Opens the file, for direct I/O if the file system allows it; creates it if `create`. A missing
  // file is kNotFound "file_missing". Errors: kPermissionDenied "file_owner", kWrongState
  // "not_a_file", kIoError by errno name.
  [[nodiscard]] static Result<DiskSetFile> Open(const std::filesystem::path& path, bool create);
  // See LockDataFile. Blocks for as long as a killed daemon's I/O is under way. A file that is only
  // looked at beside a daemon's own descriptors is not locked.
  [[nodiscard]] Status Lock(std::chrono::steady_clock::time_point until) const {
    return LockDataFile(fd_.get(), path_, until);
  }

  // The newer valid superblock; nothing if neither page was ever written. Errors: kCorrupt
  // "bad_superblock" if there is something else; kIoError.
  [[nodiscard]] Result<std::optional<Superblock>> ReadSuperblock();
  // Writes, durably, the page that was not the last to be read or written.
  [[nodiscard]] Status WriteSuperblock(const Superblock& superblock);

  // Discards all contents; the file reads as zeros from then on.
  [[nodiscard]] Status Empty();
  // Makes sure that `bytes` are allocated, and that the file durably has this size. Errors:
  // kResourceExhausted "ENOSPC" (also for quotas and file size limits), kIoError. Returns false if
  // the file system cannot preallocate: the file then has the size, but not the blocks.
  [[nodiscard]] Result<bool> Preallocate(uint64_t bytes);
  // Cuts off what lies beyond `bytes`, if anything.
  [[nodiscard]] Status Cut(uint64_t bytes);

  struct Namespace {
    uint64_t device = 0;                  // the file system's number
    uint64_t allocated_bytes = 0;         // to this file
    uint64_t file_system_free_bytes = 0;  // for anyone without privileges
  };
  [[nodiscard]] Result<Namespace> GetNamespace() const;
  [[nodiscard]] Result<uint64_t> GetSize() const;

  [[nodiscard]] bool direct() const { return direct_; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] UniqueFd TakeFd() { return std::move(fd_); }
  // Another descriptor of the open file, which shares its lock.
  [[nodiscard]] Result<UniqueFd> DuplicateFd() const;

 private:
  DiskSetFile(std::filesystem::path path, UniqueFd fd, bool direct)
      : path_(std::move(path)), fd_(std::move(fd)), direct_(direct) {}
  [[nodiscard]] Result<bool> Allocate(uint64_t bytes) const;
  [[nodiscard]] tl::unexpected<Error> Failed(std::string_view call) const;

  std::filesystem::path path_;
  UniqueFd fd_;
  bool direct_ = false;
  size_t next_page_ = 0;
};

}  // namespace kvtier
