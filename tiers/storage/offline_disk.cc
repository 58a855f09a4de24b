// SPDX-License-Identifier: Apache-2.0
#include "tiers/storage/offline_disk.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <system_error>
#include <utility>

#include "tiers/storage/disk_files.h"
#include "tiers/storage/disk_set_file.h"

namespace kvtier {
namespace {

struct FoundFile {
  std::string name;
  std::optional<Superblock> superblock;
  uint64_t bytes = 0;
};

// Files are numbered from 0; the first missing number ends the set as far as names tell.
Result<std::vector<FoundFile>> FindFiles(const std::filesystem::path& directory,
                                         std::vector<std::string>* faults) {
  std::vector<FoundFile> found;
  for (uint32_t number = 0; number < kMaxDiskFiles; ++number) {
    const std::string name = DiskSetFileName(number);
    Result<DiskSetFile> file = DiskSetFile::Open(directory / name, false);
    if (!file && file.error().code == ErrorCode::kNotFound) break;
    if (!file) return tl::unexpected<Error>(std::move(file).error());
    KVT_RETURN_IF_ERROR(file->Lock());
    found.push_back({.name = name});
    KVT_ASSIGN_OR_RETURN(found.back().bytes, file->GetSize());
    Result<std::optional<Superblock>> superblock = file->ReadSuperblock();
    if (!superblock) {
      faults->push_back(superblock.error().ToString());
    } else if (!*superblock) {
      faults->push_back(name + ": never begun, its superblock is empty");
    } else {
      found.back().superblock = **superblock;
    }
  }
  return found;
}

// Compares with the set's newest superblock. Sizes and epochs may differ by one interrupted start.
void CheckFile(const FoundFile& file, uint32_t number, const Superblock& newest,
               std::vector<std::string>* faults) {
  if (!file.superblock) return;
  const Superblock& own = *file.superblock;
  if (own.set_uuid != newest.set_uuid || own.file_number != number ||
      own.file_count != newest.file_count || own.slab_bytes != newest.slab_bytes ||
      own.encrypted != newest.encrypted) {
    faults->push_back(
        fmt::format("{}: is file {} of {} of set {}, expected file {} of {} of set {}", file.name,
                    own.file_number, own.file_count, own.set_uuid.Hex(), number, newest.file_count,
                    newest.set_uuid.Hex()));
  }
  if (file.bytes < own.file_bytes) {
    faults->push_back(fmt::format("{}: has {} bytes, its superblock says {}", file.name, file.bytes,
                                  own.file_bytes));
  }
  if (newest.epoch - own.epoch > 1) {
    faults->push_back(fmt::format("{}: its last start was {}, that of the set {}", file.name,
                                  own.epoch, newest.epoch));
  }
}

// As many slabs as every file has, counted round the files in turn.
uint64_t SlabsOf(const std::vector<FoundFile>& files, const Superblock& newest) {
  uint64_t slabs = UINT64_MAX;
  for (uint64_t i = 0; i < files.size(); ++i) {
    const uint64_t bytes = std::min(files[i].bytes, files[i].superblock->file_bytes);
    const uint64_t own =
        bytes > kFirstSlabOffset ? (bytes - kFirstSlabOffset) / newest.slab_bytes : 0;
    slabs = std::min(slabs, own * files.size() + i);
  }
  return slabs;
}

}  // namespace

Result<OfflineDisk> OpenOfflineDisk(const std::filesystem::path& directory) {
  std::error_code error;
  if (!std::filesystem::is_directory(directory, error)) {
    return MakeError(ErrorCode::kNotFound, "no_disk_directory", directory.native());
  }
  OfflineDisk disk;
  KVT_ASSIGN_OR_RETURN(disk.directory, OpenDiskDirectory(directory));
  KVT_ASSIGN_OR_RETURN(const std::vector<FoundFile> files, FindFiles(directory, &disk.faults));
  if (files.empty()) return MakeError(ErrorCode::kNotFound, "no_disk_files", directory.native());

  const auto newest = std::ranges::max_element(files, {}, [](const FoundFile& file) {
    return file.superblock ? file.superblock->epoch + 1 : 0;
  });
  // Not one superblock could be read: the geometry stays empty, and `faults` says why.
  if (!newest->superblock) return disk;
  const Superblock& superblock = *newest->superblock;
  disk.set_uuid = superblock.set_uuid;
  disk.epoch = superblock.epoch;
  disk.encrypted = superblock.encrypted;
  if (superblock.file_count != files.size()) {
    disk.faults.push_back(
        fmt::format("{} files found, the set has {}", files.size(), superblock.file_count));
  }
  for (uint32_t i = 0; i < files.size(); ++i) CheckFile(files[i], i, superblock, &disk.faults);
  const bool whole = superblock.file_count == files.size() &&
                     std::ranges::all_of(files, [&](const FoundFile& file) {
                       return file.superblock && file.superblock->set_uuid == superblock.set_uuid &&
                              file.superblock->slab_bytes == superblock.slab_bytes;
                     });
  if (whole) {
    disk.geometry = {.slab_bytes = superblock.slab_bytes,
                     .files = superblock.file_count,
                     .slabs = SlabsOf(files, superblock)};
  }
  return disk;
}

}  // namespace kvtier
