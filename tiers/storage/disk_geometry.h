// SPDX-License-Identifier: Apache-2.0
// How the disk files are cut: the one address space over all drives, its slabs, and the header of
// each slab that has been cut into slots.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/result.h"
#include "base/units.h"
#include "tiers/storage/block_file.h"
#include "tiers/storage/superblock.h"
#include "tiers/types/block_key.h"

namespace kvtier {

// The slabs of each of so many directories under a cap of so many bytes: an equal share.
[[nodiscard]] constexpr uint64_t SlabsOfEachDirectory(uint64_t cap_bytes, uint64_t directories,
                                                      uint64_t slab_bytes) {
  const uint64_t superblocks = directories * kFirstSlabOffset;
  return (cap_bytes - std::min(cap_bytes, superblocks)) / slab_bytes / directories;
}

inline constexpr size_t kSlabHeaderBytes = 4096;
inline constexpr uint32_t kSlabFormatVersion = 1;
// One address space over all drives: slab `n` lies on drive `n` modulo kMaxDrives, as that drive's
// slab `n` / kMaxDrives. Addresses do not depend on how many drives there are, and some may be
// away: a drive comes or goes without moving what lies on others. The files of the drives that are
// there are numbered from 0, in the order of the drives.
struct DiskGeometry {
  uint64_t slab_bytes = 0;                       // a multiple of kIoAlignment
  std::array<uint64_t, kMaxDrives> drive_slabs;  // by drive; 0: it is not there

  constexpr DiskGeometry() : drive_slabs{} {}
  // So many slabs, shared out equally among the first drives. REQUIRES: each drive gets one.
  constexpr DiskGeometry(uint64_t bytes_per_slab, uint32_t drives, uint64_t slabs)
      : slab_bytes(bytes_per_slab), drive_slabs{} {
    KVT_CHECK(slabs >= drives);
    for (uint32_t i = 0; i < drives; ++i) {
      drive_slabs[i] = slabs / drives + (i < slabs % drives ? 1 : 0);
    }
  }

  [[nodiscard]] constexpr uint32_t drives_mask() const {
    uint32_t mask = 0;
    for (uint32_t i = 0; i < kMaxDrives; ++i) mask |= drive_slabs[i] > 0 ? uint32_t{1} << i : 0;
    return mask;
  }
  [[nodiscard]] constexpr uint32_t files() const {
    return static_cast<uint32_t>(std::popcount(drives_mask()));
  }
  // Over all drives.
  [[nodiscard]] constexpr uint64_t slabs() const {
    uint64_t sum = 0;
    for (const uint64_t slabs : drive_slabs) sum += slabs;
    return sum;
  }
  // The room in them; addresses may be higher.
  [[nodiscard]] constexpr uint64_t bytes() const { return slabs() * slab_bytes; }
  [[nodiscard]] constexpr bool Contains(DiskLocation location) const {
    const uint64_t slab = SlabOf(location);
    return slab / kMaxDrives < drive_slabs[slab % kMaxDrives];
  }

  [[nodiscard]] constexpr uint64_t SlabOf(DiskLocation location) const {
    return location.offset / slab_bytes;
  }
  [[nodiscard]] constexpr DiskLocation SlabStart(uint64_t slab) const {
    return DiskLocation{slab * slab_bytes};
  }
  [[nodiscard]] constexpr uint32_t DriveOf(DiskLocation location) const {
    return static_cast<uint32_t>(SlabOf(location) % kMaxDrives);
  }
  // REQUIRES: the drive is there.
  [[nodiscard]] constexpr uint32_t FileOfDrive(uint32_t drive) const {
    return static_cast<uint32_t>(std::popcount(drives_mask() & ((uint32_t{1} << drive) - 1)));
  }
  [[nodiscard]] constexpr uint32_t FileOf(DiskLocation location) const {
    return FileOfDrive(DriveOf(location));
  }
  [[nodiscard]] constexpr uint32_t DriveOfFile(uint32_t file) const {
    uint32_t mask = drives_mask();
    for (; file > 0; --file) mask &= mask - 1;
    return static_cast<uint32_t>(std::countr_zero(mask));
  }
  [[nodiscard]] constexpr uint64_t OffsetInFile(DiskLocation location) const {
    return kFirstSlabOffset + SlabOf(location) / kMaxDrives * slab_bytes +
           location.offset % slab_bytes;
  }

  // Slabs in turn round the drives, for those who go through all of them: `turn` counts up to
  // turns(), and a drive that is smaller than others has no slab in some.
  [[nodiscard]] constexpr uint64_t turns() const {
    return *std::ranges::max_element(drive_slabs) * files();
  }
  [[nodiscard]] constexpr std::optional<uint64_t> SlabInTurn(uint64_t turn) const {
    const uint32_t drive = DriveOfFile(static_cast<uint32_t>(turn % files()));
    const uint64_t number = turn / files();
    if (number >= drive_slabs[drive]) return std::nullopt;
    return number * kMaxDrives + drive;
  }

  [[nodiscard]] uint64_t SlotsPerSlab(uint64_t slot_bytes) const {
    return (slab_bytes - kSlabHeaderBytes) / slot_bytes;
  }
  [[nodiscard]] DiskLocation SlotStart(uint64_t slab, uint64_t slot, uint64_t slot_bytes) const {
    KVT_CHECK(slot < SlotsPerSlab(slot_bytes));
    return DiskLocation{slab * slab_bytes + kSlabHeaderBytes + slot * slot_bytes};
  }
  // Whether a slot of this size can begin at `location`: in bounds and on the grid of its slab.
  [[nodiscard]] bool IsSlotStart(DiskLocation location, uint64_t slot_bytes) const {
    if (!Contains(location)) return false;
    const uint64_t offset = location.offset % slab_bytes;
    if (offset < kSlabHeaderBytes) return false;
    return (offset - kSlabHeaderBytes) % slot_bytes == 0 &&
           (offset - kSlabHeaderBytes) / slot_bytes < SlotsPerSlab(slot_bytes);
  }

  [[nodiscard]] constexpr uint64_t FileBytes(uint32_t file) const {
    return kFirstSlabOffset + drive_slabs[DriveOfFile(file)] * slab_bytes;
  }

  friend bool operator==(const DiskGeometry&, const DiskGeometry&) = default;
};

// A value for each slab of the drives that are there.
template <typename Value>
class BySlab {
 public:
  explicit BySlab(const DiskGeometry& geometry) {
    for (uint32_t drive = 0; drive < kMaxDrives; ++drive) {
      values_[drive].resize(geometry.drive_slabs[drive]);
    }
  }
  // The drive has so many slabs from now on.
  void Resize(uint32_t drive, uint64_t slabs) { values_[drive].resize(slabs); }
  // REQUIRES: the slab is there.
  [[nodiscard]] Value& operator[](uint64_t slab) {
    return values_[slab % kMaxDrives][slab / kMaxDrives];
  }
  [[nodiscard]] const Value& operator[](uint64_t slab) const {
    return values_[slab % kMaxDrives][slab / kMaxDrives];
  }

 private:
  std::array<std::vector<Value>, kMaxDrives> values_;
};

// The first 4 KiB of every slab that has been cut into slots. It tells how large these are, so that
// the index can be rebuilt from the files alone.
struct SlabHeader {
  uint64_t slab = 0;        // its own number in the tier's address space
  uint64_t slot_bytes = 0;  // header and payload; a multiple of 4 KiB, at least 8 KiB
  uint32_t generation = 0;  // counts how often the slab was cut anew
  // Whose blocks the slab was cut for; each slot's header has the last word.
  std::string tenant;  // at most kMaxTenantBytes
  ModelFingerprint model;
  friend bool operator==(const SlabHeader&, const SlabHeader&) = default;
};

// Fills all of `out`. REQUIRES: the bounds noted above.
void EncodeSlabHeader(const SlabHeader& header, std::span<std::byte, kSlabHeaderBytes> out);

// The inverse, for bytes that may hold anything. Errors, all kCorrupt: "bad_magic" (a slab never
// cut), "bad_version", "bad_header_checksum", "bad_field".
[[nodiscard]] Result<SlabHeader> DecodeSlabHeader(std::span<const std::byte, kSlabHeaderBytes> in);

}  // namespace kvtier
