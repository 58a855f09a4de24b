// How the disk tier's address space is laid over its files. Pure arithmetic.
//
// Chunk c of the space lies in file c % files, as that file's chunk c / files; a file's chunks
// begin after its superblock area. A chunk begins with its header; equal slots follow.
#pragma once

#include <cstdint>

#include "base/byte_size.h"
#include "base/check.h"
#include "tiers/disk/block_file.h"
#include "tiers/disk/chunk_header.h"
#include "tiers/disk/disk_location.h"

namespace kvtier {

// Where a file's first chunk starts.
inline constexpr uint64_t kFirstChunkOffset = 1 * kMiB;
// More files than disks bring nothing, and their names have two digits.
inline constexpr uint32_t kMaxDiskFiles = 64;

struct DiskGeometry {
  uint64_t chunk_bytes = 0;  // a multiple of kIoAlignment
  uint32_t files = 0;
  uint64_t chunks = 0;  // over all files

  // The size of the address space; every valid location is less.
  [[nodiscard]] uint64_t bytes() const { return chunks * chunk_bytes; }
  [[nodiscard]] bool Contains(DiskLocation location) const { return location.offset < bytes(); }

  [[nodiscard]] uint64_t ChunkOf(DiskLocation location) const {
    return location.offset / chunk_bytes;
  }
  [[nodiscard]] DiskLocation ChunkStart(uint64_t chunk) const {
    return DiskLocation{chunk * chunk_bytes};
  }
  [[nodiscard]] uint32_t FileOf(DiskLocation location) const {
    return static_cast<uint32_t>(ChunkOf(location) % files);
  }
  [[nodiscard]] uint64_t OffsetInFile(DiskLocation location) const {
    return kFirstChunkOffset + ChunkOf(location) / files * chunk_bytes +
           location.offset % chunk_bytes;
  }

  [[nodiscard]] uint64_t SlotsPerChunk(uint64_t slot_bytes) const {
    return (chunk_bytes - kChunkHeaderBytes) / slot_bytes;
  }
  [[nodiscard]] DiskLocation SlotStart(uint64_t chunk, uint64_t slot, uint64_t slot_bytes) const {
    KVT_CHECK(slot < SlotsPerChunk(slot_bytes));
    return DiskLocation{chunk * chunk_bytes + kChunkHeaderBytes + slot * slot_bytes};
  }
  // Whether a slot of this size can begin at `location`: in bounds and on the grid of its chunk.
  [[nodiscard]] bool IsSlotStart(DiskLocation location, uint64_t slot_bytes) const {
    if (!Contains(location)) return false;
    const uint64_t offset = location.offset % chunk_bytes;
    if (offset < kChunkHeaderBytes) return false;
    return (offset - kChunkHeaderBytes) % slot_bytes == 0 &&
           (offset - kChunkHeaderBytes) / slot_bytes < SlotsPerChunk(slot_bytes);
  }

  [[nodiscard]] uint64_t ChunksInFile(uint32_t file) const {
    return chunks / files + (file < chunks % files ? 1 : 0);
  }
  [[nodiscard]] uint64_t FileBytes(uint32_t file) const {
    return kFirstChunkOffset + ChunksInFile(file) * chunk_bytes;
  }

  friend bool operator==(const DiskGeometry&, const DiskGeometry&) = default;
};

}  // namespace kvtier
