// SPDX-License-Identifier: Apache-2.0
#include "tiers/storage/offline_disk.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <system_error>
#include <utility>

#include "tiers/storage/disk_set_file.h"

namespace kvtier {
namespace {

struct FoundDrive {
  std::filesystem::path directory;
  std::string file;
  Superblock superblock;
  uint64_t bytes = 0;
};

// Nothing if there is no file; one without a superblock is a fault.
Status FindDrive(const std::filesystem::path& directory, bool alone, OfflineDisk* disk,
                 std::vector<FoundDrive>* found, bool* has_file) {
  std::error_code error;
  if (!alone && !std::filesystem::is_directory(directory, error)) {
    disk->faults.push_back(directory.native() + ": no directory");
    return {};
  }
  if (!std::filesystem::is_directory(directory, error)) {
    return MakeError(ErrorCode::kNotFound, "no_disk_directory", directory.native());
  }
  KVT_ASSIGN_OR_RETURN(DiskDirectory opened, OpenDiskDirectory(directory, false));
  disk->locks.push_back(std::move(opened.lock));
  Result<DiskSetFile> file = DiskSetFile::Open(directory / kDiskFileName, false);
  if (!file && file.error().code == ErrorCode::kNotFound) return {};
  if (!file) return tl::unexpected<Error>(std::move(file).error());
  *has_file = true;
  KVT_RETURN_IF_ERROR(file->Lock());
  FoundDrive drive{.directory = directory, .file = file->path().native()};
  KVT_ASSIGN_OR_RETURN(drive.bytes, file->GetSize());
  Result<std::optional<Superblock>> superblock = file->ReadSuperblock();
  if (!superblock) {
    disk->faults.push_back(superblock.error().ToString());
  } else if (!*superblock) {
    disk->faults.push_back(drive.file + ": never begun, its superblock is empty");
  } else {
    drive.superblock = **superblock;
    found->push_back(std::move(drive));
  }
  return {};
}

// Compares with the set's newest superblock. A drive that was away has an earlier epoch.
bool Belongs(const FoundDrive& drive, const Superblock& newest, OfflineDisk* disk) {
  const Superblock& own = drive.superblock;
  if (own.set_uuid != newest.set_uuid || own.slab_bytes != newest.slab_bytes ||
      own.encrypted != newest.encrypted || disk->geometry.drive_slabs[own.drive] != 0) {
    disk->faults.push_back(fmt::format(
        "{}: is drive {} of set {}, which does not go with the newest, drive {} of set {}",
        drive.file, own.drive, own.set_uuid.Hex(), newest.drive, newest.set_uuid.Hex()));
    return false;
  }
  if (drive.bytes < own.file_bytes) {
    disk->faults.push_back(fmt::format("{}: has {} bytes, its superblock says {}", drive.file,
                                       drive.bytes, own.file_bytes));
  }
  return true;
}

}  // namespace

std::vector<std::filesystem::path> OfflineDisk::directories() const {
  std::vector<std::filesystem::path> paths;
  for (const StartedDrive& drive : drives) paths.push_back(drive.directory);
  return paths;
}

Result<OfflineDisk> OpenOfflineDisk(const std::vector<std::filesystem::path>& directories) {
  OfflineDisk disk;
  std::vector<FoundDrive> found;
  bool has_file = false;
  for (const std::filesystem::path& directory : directories) {
    KVT_RETURN_IF_ERROR(FindDrive(directory, directories.size() == 1, &disk, &found, &has_file));
  }
  if (!has_file) {
    return MakeError(ErrorCode::kNotFound, "no_disk_files", directories.front().native());
  }
  // Not one superblock could be read: the geometry stays empty, and `faults` says why.
  if (found.empty()) return disk;
  std::ranges::stable_sort(found, std::greater<>(),
                           [](const FoundDrive& drive) { return drive.superblock.epoch; });
  const Superblock newest = found.front().superblock;
  disk.set_uuid = newest.set_uuid;
  disk.epoch = newest.epoch;
  disk.encrypted = newest.encrypted;
  disk.geometry.slab_bytes = newest.slab_bytes;
  for (const FoundDrive& drive : found) {
    if (!Belongs(drive, newest, &disk)) continue;
    const uint32_t number = drive.superblock.drive;
    const uint64_t bytes = std::min(drive.bytes, drive.superblock.file_bytes);
    const uint64_t room = bytes - std::min(bytes, kFirstSlabOffset);
    disk.geometry.drive_slabs[number] = room / newest.slab_bytes;
    if (room < newest.slab_bytes) continue;
    disk.drives.push_back(
        {.number = number, .directory = drive.directory, .found_epoch = drive.superblock.epoch});
  }
  std::ranges::sort(disk.drives, {}, &StartedDrive::number);
  for (uint32_t i = 0; i < kMaxDrives; ++i) {
    if (newest.seen_s[i] == 0 || disk.geometry.drive_slabs[i] != 0) continue;
    disk.drives_away |= uint32_t{1} << i;
    disk.faults.push_back(fmt::format("drive {} of the set is not there", i));
  }
  return disk;
}

}  // namespace kvtier
