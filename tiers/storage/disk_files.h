// SPDX-License-Identifier: Apache-2.0
// The disk tier's directories, one to a drive: their locks, preallocated files and superblocks.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/executor.h"
#include "base/result.h"
#include "tiers/storage/block_file.h"
#include "tiers/storage/disk_directory.h"
#include "tiers/storage/disk_geometry.h"
#include "tiers/storage/disk_set.h"
#include "tiers/storage/io_engine.h"

namespace kvtier {

enum class DiskEngine : uint8_t {
  kAuto,   // io_uring where the kernel allows it, else pread; says so in the notes
  kUring,  // io_uring or an error
  kPread,
};

struct DiskFilesOptions {
  // One, which is made if it is missing, or several, which are not: one that cannot be had, or has
  // no business here, is left out.
  std::vector<std::filesystem::path> directories;
  // A hard cap over all files, superblock areas included, shared out equally.
  uint64_t bytes = 0;
  uint64_t slab_bytes = 64 * kMiB;
  // Each file system keeps at least this much free.
  uint64_t free_floor_bytes = 0;
  int64_t now_ms = 0;  // Unix time
  // A drive that was away for so long is no drive of the set any more: its blocks have expired.
  int64_t forget_after_ms = 24 * 60 * 60 * 1000;
  // For tests: the end of the patience with the locks of a process that has ended, one for all
  // drives. Nothing: LastIoDeadline, as the drives are opened.
  std::optional<std::chrono::steady_clock::time_point> locks_until = std::nullopt;
  // Empty: blocks lie on disk as they are. Otherwise they are encrypted, by the caller, and this is
  // called once, with the directories locked and in its hands, the first of them of a drive that
  // the last start had: false if the keys of earlier blocks are gone. The drives then begin anew,
  // as each does when encryption was turned on or off. Its errors are returned, and nothing has
  // been changed then.
  std::function<Result<bool>(const std::vector<std::filesystem::path>&)> has_keys;
  DiskEngine engine = DiskEngine::kAuto;
  IoEngineOptions io;
  // For tests: behave as if the kernel had refused io_uring.
  bool refuse_uring = false;
};

// Move-only. Its destruction closes the files (see the engines) and gives up the locks.
struct DiskFiles {
  std::vector<DirectoryLock> locks;  // first, so that they go last
  // The drives of `files`, so that their sizes can be changed.
  std::shared_ptr<std::vector<DiskDrive>> opened = std::make_shared<std::vector<DiskDrive>>();
  DiskGeometry geometry;
  Digest128 set_uuid;    // random; another one after the files were made anew
  uint64_t epoch = 0;    // this start's; 1 for the first
  bool created = false;  // the files were made or emptied by this start: nothing is in them
  // True if less than the configured bytes could be had, or a drive of the set is away.
  bool degraded = false;
  std::vector<StartedDrive> drives;    // of `files`, by their numbers
  std::vector<LeftOutDrive> left_out;  // directories that this start goes without
  uint32_t drives_away = 0;            // bit by number
  // Notes that an operator should read in the log, one sentence each.
  std::vector<std::string> notes;
  std::vector<std::unique_ptr<BlockFile>> files;
};

// Opens `options.directories` (0700, owned by this user) and the file in each, of as many whole
// slabs as the cap, the file system and the floor allow; grows or cuts existing files when these
// have changed, losing the slabs with the highest numbers. An empty directory is a new drive of the
// set. Durably begins a new epoch. Blocks: call before the event loop runs. `loop` must outlive the
// files. Errors, of which several directories leave out those that concern one of them only:
//   kInvalidArgument "bad_disk_options"; kPermissionDenied "directory_owner", "file_owner";
//   kAlreadyExists "directory_locked" naming the other process;
//   kWrongState "same_directory", "slab_bytes_changed", "file_truncated", "not_a_file",
//     "foreign_drive" (of another set), "drive_copy" (of a drive that is there, too);
//   kCorrupt "bad_superblock" (a file that was emptied by hand is a new drive);
//   kResourceExhausted "disk_full" when not one slab fits, "too_many_drives";
//   kUnsupported "io_uring_refused"; kIoError by errno name.
[[nodiscard]] Result<DiskFiles> OpenDiskFiles(const DiskFilesOptions& options, EventQueue* loop);

}  // namespace kvtier
