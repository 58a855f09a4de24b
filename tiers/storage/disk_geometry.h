// SPDX-License-Identifier: Apache-2.0
// How the disk tier's address space is laid over its files. Pure arithmetic.
//
// Slab c of the space lies in file c % files, as that file's slab c / files; a file's slabs
// begin after its superblock area. A slab begins with its header; equal slots follow.
#pragma once

#include <cstdint>

#include "base/byte_size.h"
#include "base/check.h"
#include "tiers/storage/block_file.h"
#include "tiers/storage/slab_header.h"
#include "tiers/types/disk_location.h"

namespace kvtier {

// Where a file's first slab starts.
inline constexpr uint64_t kFirstSlabOffset = 1 * kMiB;
// More files than disks bring nothing, and their names have two digits.
inline constexpr uint32_t kMaxDiskFiles = 64;

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

}  // namespace kvtier
