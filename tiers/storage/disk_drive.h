// SPDX-License-Identifier: Apache-2.0
// A directory of the disk tier as a start finds it: its lock, its file, and the superblock.
// Blocking calls, for start-up.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "base/result.h"
#include "tiers/storage/disk_directory.h"
#include "tiers/storage/disk_set_file.h"
#include "tiers/storage/superblock.h"

namespace kvtier {

// kLook: asks what kServe would meet, as LookAtDiskDirectory does.
enum class DriveUse : uint8_t { kServe, kLook };

// Move-only. Its directory stays locked until the lock is moved out or this ends.
class DiskDrive {
 public:
  // Locks the directory, which is made first if it is missing and `create`, and reads the file's
  // superblock. Nothing else is created or changed. Errors: see OpenDiskFiles; they say what to do.
  // `until`: as of OpenDiskDirectory.
  [[nodiscard]] static Result<DiskDrive> Open(const std::filesystem::path& directory, bool create,
                                              DriveUse use,
                                              std::chrono::steady_clock::time_point until);

  // The file's; none if there is nothing to keep: no file, one that no start has begun, or one that
  // was being emptied when that was cut off.
  [[nodiscard]] const std::optional<Superblock>& superblock() const { return superblock_; }
  // Gives up the file's contents, durably. A mark tells of an interruption, until Begin.
  [[nodiscard]] Status Empty();
  // Makes the file, empty, if there is nothing to keep. REQUIRED before what follows.
  [[nodiscard]] Status Create();

  // Gives the file as many slabs, of at most `slabs`, as the file system has room for: fewer by a
  // sixteenth at a time. Slabs that the superblock speaks of stay until Begin.
  // Errors: kResourceExhausted "disk_full" if there is room for none; kIoError.
  [[nodiscard]] Status Preallocate(uint64_t slabs, uint64_t slab_bytes);
  // As many as Preallocate got.
  [[nodiscard]] uint64_t slabs() const { return slabs_; }
  // Writes the superblock, durably, and cuts off the rest of the file.
  [[nodiscard]] Status Begin(const Superblock& superblock);
  // The file of a drive that has begun gets so many slabs, or as many as the file system has room
  // for above the floor, durably; slabs() has them. On an error it has those that slabs() says.
  // Errors: kIoError.
  [[nodiscard]] Status Resize(uint64_t slabs, uint64_t free_floor_bytes);

  [[nodiscard]] const std::filesystem::path& directory() const { return directory_; }
  [[nodiscard]] DiskSetFile& file() { return *file_; }
  [[nodiscard]] const DiskSetFile& file() const { return *file_; }
  [[nodiscard]] DirectoryLock TakeLock() { return std::move(lock_); }
  // A correction made on the way, for the log; nothing the second time.
  [[nodiscard]] std::optional<std::string> TakeNote() { return std::exchange(note_, {}); }

 private:
  explicit DiskDrive(std::filesystem::path directory) : directory_(std::move(directory)) {}
  [[nodiscard]] Status Inspect(DriveUse use, std::chrono::steady_clock::time_point until);
  [[nodiscard]] Status MarkEmptying();
  [[nodiscard]] Status EndEmptying();
  // Towards so many bytes; reads of the file go on in between.
  void ExtendInSteps(uint64_t bytes);
  [[nodiscard]] Status CutInSteps(uint64_t bytes);

  std::filesystem::path directory_;
  DirectoryLock lock_;  // first, so that it goes last
  std::optional<std::string> note_;
  std::optional<DiskSetFile> file_;
  std::optional<Superblock> superblock_;
  bool emptying_ = false;  // the mark is there
  uint64_t slabs_ = 0;
};

}  // namespace kvtier
