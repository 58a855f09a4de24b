// SPDX-License-Identifier: Apache-2.0
// The disk tier's drives, held and understood without a daemon and without changing them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/result.h"
#include "tiers/storage/disk_directory.h"
#include "tiers/storage/disk_geometry.h"
#include "tiers/storage/disk_set.h"
#include "tiers/storage/parallel_reader.h"

namespace kvtier {

// Move-only; holds the directories' locks.
struct OfflineDisk {
  std::vector<DirectoryLock> locks;
  // Has no slabs when the superblocks do not tell.
  DiskGeometry geometry;
  std::vector<StartedDrive> drives;  // by their numbers
  uint32_t drives_away = 0;          // bit by number
  Digest128 set_uuid;
  uint64_t epoch = 0;  // of the last start
  bool encrypted = false;
  // The faults of the superblocks, one sentence each.
  std::vector<std::string> faults;

  [[nodiscard]] bool usable() const { return geometry.slabs() > 0; }
  [[nodiscard]] std::vector<std::filesystem::path> directories() const;
};

// Errors: kNotFound "no_disk_directory", "no_disk_files"; kAlreadyExists "directory_locked" while a
// daemon runs; others of OpenDiskDirectory, and of DiskSetFile's Open and Lock. Faults of the
// files' contents are none of them.
[[nodiscard]] Result<OfflineDisk> OpenOfflineDisk(
    const std::vector<std::filesystem::path>& directories);

}  // namespace kvtier
