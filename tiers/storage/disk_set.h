// SPDX-License-Identifier: Apache-2.0
// The drives of the disk tier as found at start-up: which of the directories belong together, and
// how they are brought to the configured shape. Blocking calls, for start-up.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/result.h"
#include "tiers/storage/disk_drive.h"
#include "tiers/storage/disk_geometry.h"

namespace kvtier {

struct DiskSetShape {
  uint64_t slab_bytes = 0;
  uint64_t bytes = 0;             // the cap, over all directories
  uint64_t free_floor_bytes = 0;  // to leave to each file system
  bool encrypted = false;
  uint32_t now_s = 0;           // Unix time
  uint32_t forget_after_s = 0;  // a drive that was away for longer is no drive of the set
  // As of DiskFilesOptions.
  std::optional<std::chrono::steady_clock::time_point> locks_until = std::nullopt;
};

// A drive that serves from this start on.
struct StartedDrive {
  uint32_t number = 0;
  std::filesystem::path directory;
  uint64_t found_epoch = 0;  // of its last start; 0: there was nothing on it
  uint64_t wanted_slabs = 0;
};

// A directory that this start goes without, and why.
struct LeftOutDrive {
  std::filesystem::path directory;
  Error why;
};

// Move-only. Call in this order: Open, EmptyIf, SizeAndBegin, Take... .
class DiskSet {
 public:
  // Leaves out directories that cannot be used, if there are several. With kLook nothing else may
  // be called but left_out. Errors: see OpenDiskFiles.
  [[nodiscard]] static Result<DiskSet> Open(const std::vector<std::filesystem::path>& directories,
                                            const DiskSetShape& shape,
                                            DriveUse use = DriveUse::kServe);

  // The directories in use, as configured; the first is that of the drive which was there last.
  [[nodiscard]] std::vector<std::filesystem::path> directories() const;
  // Empties the drives for which `why` gives a reason, which becomes a note.
  [[nodiscard]] Status EmptyIf(
      const std::function<std::optional<std::string>(const Superblock&)>& why);
  // Gives the new drives numbers and all as many slabs as cap, file systems and floor allow, and
  // durably begins a new epoch. Errors: kResourceExhausted "disk_full" and "too_many_drives";
  // kIoError.
  [[nodiscard]] Status SizeAndBegin();

  [[nodiscard]] const DiskGeometry& geometry() const { return geometry_; }
  [[nodiscard]] const Digest128& set_uuid() const { return set_uuid_; }
  [[nodiscard]] uint64_t epoch() const { return epoch_; }
  [[nodiscard]] bool created() const;
  // Bit by number: drives of the set that are not there, unless they were away for long.
  [[nodiscard]] uint32_t drives_away() const { return away_; }
  [[nodiscard]] bool degraded() const;
  // In the order of their numbers, as are the files.
  [[nodiscard]] const std::vector<StartedDrive>& started() const { return started_; }
  [[nodiscard]] const std::vector<LeftOutDrive>& left_out() const { return left_out_; }
  [[nodiscard]] std::vector<std::string> TakeNotes() { return std::move(notes_); }
  [[nodiscard]] std::vector<DiskDrive> TakeDrives() { return std::move(drives_); }

 private:
  explicit DiskSet(const DiskSetShape& shape) : shape_(shape) {}
  [[nodiscard]] Status ChooseSet();
  [[nodiscard]] Status CheckSlabs() const;
  void LeaveOutCopies();
  // Keeps the drive out of this start. Returns the error if no other is left, or if it concerns
  // all.
  [[nodiscard]] Status LeaveOut(size_t drive, Error why);
  // Calls `step` with the place of each drive, the last first, and leaves out those that it fails.
  [[nodiscard]] Status ForEachDrive(const std::function<Status(size_t drive)>& step);
  void ReadTable();
  [[nodiscard]] Status NumberDrives();
  [[nodiscard]] uint64_t SlabsOfEach() const;
  [[nodiscard]] Result<std::vector<uint64_t>> SlabsThatFit() const;
  [[nodiscard]] Status Preallocate();
  [[nodiscard]] Status Begin();
  void NoteSizes();

  DiskSetShape shape_;
  uint32_t configured_ = 0;  // directories
  std::vector<DiskDrive> drives_;
  std::vector<LeftOutDrive> left_out_;
  std::vector<StartedDrive> started_;  // one for each of `drives_`
  // The set's drives, also those that are away; see Superblock.
  std::array<uint32_t, kMaxDrives> seen_s_{};
  std::array<uint64_t, kMaxDrives> paths_{};
  uint32_t away_ = 0;
  DiskGeometry geometry_;
  Digest128 set_uuid_;
  uint64_t epoch_ = 0;
  std::vector<std::string> notes_;
};

}  // namespace kvtier
