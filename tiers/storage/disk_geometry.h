// SPDX-License-Identifier: Apache-2.0
// How the disk files are cut: the one address space over all files, its slabs, and the header of
// each slab that has been cut into slots.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/digest.h"
#include "base/result.h"
#include "base/units.h"
#include "tiers/storage/block_file.h"
#include "tiers/storage/superblock.h"
#include "tiers/types/block_key.h"

namespace kvtier {

inline constexpr size_t kSlabHeaderBytes = 4096;
inline constexpr uint32_t kSlabFormatVersion = 1;
// More files than disks bring nothing, and their names have two digits.
inline constexpr uint32_t kMaxDiskFiles = 64;

// One address space over all files: slabs go round the files in turn, so that consecutive slabs lie
// on different disks where the files do.
struct DiskGeometry {
  uint64_t slab_bytes = 0;  // a multiple of kIoAlignment
  uint32_t files = 0;
  uint64_t slabs = 0;  // over all files

  // The size of the address space; every valid location is less.
  [[nodiscard]] uint64_t bytes() const { return slabs * slab_bytes; }
  [[nodiscard]] bool Contains(DiskLocation location) const { return location.offset < bytes(); }

  [[nodiscard]] uint64_t SlabOf(DiskLocation location) const {
    return location.offset / slab_bytes;
  }
  [[nodiscard]] DiskLocation SlabStart(uint64_t slab) const {
    return DiskLocation{slab * slab_bytes};
  }
  [[nodiscard]] uint32_t FileOf(DiskLocation location) const {
    return static_cast<uint32_t>(SlabOf(location) % files);
  }
  [[nodiscard]] uint64_t OffsetInFile(DiskLocation location) const {
    return kFirstSlabOffset + SlabOf(location) / files * slab_bytes + location.offset % slab_bytes;
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

  [[nodiscard]] uint64_t SlabsInFile(uint32_t file) const {
    return slabs / files + (file < slabs % files ? 1 : 0);
  }
  [[nodiscard]] uint64_t FileBytes(uint32_t file) const {
    return kFirstSlabOffset + SlabsInFile(file) * slab_bytes;
  }

  friend bool operator==(const DiskGeometry&, const DiskGeometry&) = default;
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
