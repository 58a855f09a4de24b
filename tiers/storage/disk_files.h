// SPDX-License-Identifier: Apache-2.0
// The disk tier's directory: its lock, its preallocated files and their superblocks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/executor.h"
#include "base/result.h"
#include "tiers/storage/block_file.h"
#include "tiers/storage/disk_directory.h"
#include "tiers/storage/disk_geometry.h"
#include "tiers/storage/io_engine.h"

namespace kvtier {

enum class DiskEngine : uint8_t {
  kAuto,   // io_uring where the kernel allows it, else pread; says so in the notes
  kUring,  // io_uring or an error
  kPread,
};

struct DiskFilesOptions {
  std::filesystem::path directory;
  // A hard cap over all files, superblock areas included.
  uint64_t bytes = 0;
  uint32_t files = 1;
  uint64_t slab_bytes = 64 * kMiB;
  // The file system keeps at least this much free.
  uint64_t free_floor_bytes = 0;
  // Empty: blocks lie on disk as they are. Otherwise they are encrypted, by the caller, and this is
  // called once, with the directory locked: false if the keys of earlier blocks are gone.
  // The set then begins anew, as it does when encryption was turned on or off. Its errors are
  // returned, and nothing has been changed then.
  std::function<Result<bool>()> has_keys;
  DiskEngine engine = DiskEngine::kAuto;
  IoEngineOptions io;
  // For tests: behave as if the kernel had refused io_uring.
  bool refuse_uring = false;
};

// Move-only. Its destruction closes the files (see the engines) and gives up the lock.
struct DiskFiles {
  DirectoryLock lock;  // first, so that it goes last
  DiskGeometry geometry;
  Digest128 set_uuid;    // random; another one after the files were made anew
  uint64_t epoch = 0;    // this start's; 1 for the first
  bool created = false;  // the files were made or emptied by this start: nothing is in them
  // True if less than the configured bytes could be had.
  bool degraded = false;
  // Notes that an operator should read in the log, one sentence each.
  std::vector<std::string> notes;
  std::vector<std::unique_ptr<BlockFile>> files;
};

// Creates or opens `options.directory` (0700, owned by this user) and the files in it, of as many
// whole slabs as the cap, the file system and the floor allow; grows or cuts existing files when
// these have changed, losing the slabs with the highest numbers. Durably begins a new epoch.
// Blocks: call before the event loop runs. `loop` must outlive the files. Errors:
//   kInvalidArgument "bad_disk_options"; kPermissionDenied "directory_owner", "file_owner";
//   kAlreadyExists "directory_locked" naming the other process;
//   kWrongState "slab_bytes_changed", "files_changed", "file_missing", "file_truncated",
//     "foreign_file", "not_a_file"; kCorrupt "bad_superblock" (files that were emptied by hand
//     begin a new set);
//   kResourceExhausted "disk_full" when not one slab fits; kUnsupported "io_uring_refused";
//   kIoError by errno name.
[[nodiscard]] Result<DiskFiles> OpenDiskFiles(const DiskFilesOptions& options, EventQueue* loop);

}  // namespace kvtier
