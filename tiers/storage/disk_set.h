// SPDX-License-Identifier: Apache-2.0
// The files of the disk tier as found at start-up, and how they are brought to the configured
// shape. Blocking calls, for start-up.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "tiers/storage/disk_geometry.h"
#include "tiers/storage/disk_set_file.h"
#include "tiers/storage/superblock.h"

namespace kvtier {

struct DiskSetShape {
  uint32_t files = 1;
  uint64_t slab_bytes = 0;
  uint64_t bytes = 0;             // the cap, over all files
  uint64_t free_floor_bytes = 0;  // to leave to the file system
  bool encrypted = false;
};

// Move-only. Call in this order, with the directory locked: Inspect, then CheckUsable (and on its
// error either give up or Reset), SizeAndBegin, TakeFiles. The files are locked; see LockDataFile.
class DiskSet {
 public:
  [[nodiscard]] static Result<DiskSet> Inspect(const std::filesystem::path& directory,
                                               const DiskSetShape& shape);

  // Whether the files can be used as they are, or there are none yet. See OpenDiskFiles for the
  // errors; they say what differs and what to do.
  [[nodiscard]] Status CheckUsable() const;
  // Whether there is nothing to keep: no files, such as no daemon ever came to use, or such as were
  // being emptied when that was cut off.
  [[nodiscard]] bool IsNew() const;
  // As the files say. REQUIRES: CheckUsable, and not IsNew.
  [[nodiscard]] bool encrypted() const;
  // Empties and creates the files that are needed, removes all others. A mark tells of
  // an interrupted reset until SizeAndBegin has begun the set.
  [[nodiscard]] Status Reset();
  // Gives the files as many slabs as cap, file system and floor allow, and durably begins a new
  // epoch. Errors: kResourceExhausted "disk_full"; kIoError.
  [[nodiscard]] Status SizeAndBegin();

  [[nodiscard]] const DiskGeometry& geometry() const { return geometry_; }
  [[nodiscard]] const Digest128& set_uuid() const { return set_uuid_; }
  [[nodiscard]] uint64_t epoch() const { return epoch_; }
  [[nodiscard]] bool degraded() const { return geometry_.slabs < SlabsWithinCap(); }
  [[nodiscard]] std::vector<std::string> TakeNotes() { return std::move(notes_); }
  [[nodiscard]] std::vector<DiskSetFile> TakeFiles();

 private:
  struct Found {
    std::optional<DiskSetFile> file;
    std::optional<Superblock> superblock;
    std::optional<Error> damage;
  };

  DiskSet(std::filesystem::path directory, const DiskSetShape& shape)
      : directory_(std::move(directory)), shape_(shape) {}
  [[nodiscard]] Status InspectFile(uint32_t number);
  [[nodiscard]] Status MarkEmptying();
  [[nodiscard]] Status EndEmptying();
  [[nodiscard]] Status CheckFile(uint32_t number, const Superblock& first) const;
  [[nodiscard]] uint64_t SlabsWithinCap() const;
  [[nodiscard]] Result<uint64_t> SlabsThatFit() const;
  [[nodiscard]] Status Preallocate();
  [[nodiscard]] Result<bool> PreallocateAll();
  [[nodiscard]] Status Begin();
  [[nodiscard]] Status CutToSize();
  void NoteSize(uint64_t slabs_before);

  std::filesystem::path directory_;
  DiskSetShape shape_;
  bool emptying_ = false;     // the mark is there
  std::vector<Found> found_;  // by file number; at least `shape_.files`
  DiskGeometry geometry_;
  Digest128 set_uuid_;
  uint64_t epoch_ = 0;
  std::vector<std::string> notes_;
};

}  // namespace kvtier
