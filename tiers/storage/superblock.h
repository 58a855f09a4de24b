// SPDX-License-Identifier: Apache-2.0
// A superblock says which set a drive's file belongs to, the drive's number in it, its size, and
// which other drives the set has. A file has
// two superblock pages, at offsets 0 and 4096; each daemon start writes the page that the last
// start did not, so that a torn write leaves the older one valid. docs/DISK_FORMAT.md gives the
// bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/digest.h"
#include "base/result.h"
#include "base/units.h"

namespace kvtier {

// Where a file's first slab starts, behind the superblocks.
inline constexpr uint64_t kFirstSlabOffset = 1 * kMiB;
inline constexpr size_t kSuperblockBytes = 4096;
inline constexpr uint32_t kSuperblockFormatVersion = 3;
// The version of a drive whose slots and hashes are encrypted; no field differs.
inline constexpr uint32_t kEncryptedSuperblockVersion = 4;
// The most drives that a set can have; their numbers are less.
inline constexpr uint32_t kMaxDrives = 32;

struct Superblock {
  Digest128 set_uuid;       // the same on all drives of a set, random at creation
  uint32_t drive = 0;       // this drive's number in the set, for good
  uint64_t slab_bytes = 0;  // a multiple of 4 KiB
  uint64_t file_bytes = 0;  // superblock area and whole slabs
  uint64_t epoch = 0;       // 0 at creation, then the number of the start that wrote it
  bool encrypted = false;
  // By drive: Unix time of the last start that had it, or just before the next; 0: there is none.
  std::array<uint32_t, kMaxDrives> seen_s{};
  // By drive: the first half of the xxh3-128 of the path at which that start found it, which tells
  // an empty directory in its place.
  std::array<uint64_t, kMaxDrives> paths{};
  friend bool operator==(const Superblock&, const Superblock&) = default;
};

// Fills all of `out`. REQUIRES: the bounds noted above.
void EncodeSuperblock(const Superblock& superblock, std::span<std::byte, kSuperblockBytes> out);

// The inverse, for bytes that may hold anything. Errors, all kCorrupt: "bad_magic" (not ours, or
// never written), "bad_version", "bad_header_checksum", "bad_field".
[[nodiscard]] Result<Superblock> DecodeSuperblock(std::span<const std::byte, kSuperblockBytes> in);

}  // namespace kvtier
