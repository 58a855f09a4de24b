// SPDX-License-Identifier: Apache-2.0
// A superblock says which set a block file belongs to, its place in it, and its shape. A file has
// two superblock pages, at offsets 0 and 4096; each daemon start writes the page that the last
// start did not, so that a torn write leaves the older one valid. docs/DISK_FORMAT.md gives the
// bytes.
#pragma once

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
inline constexpr uint32_t kSuperblockFormatVersion = 1;
// The version of a set whose slots and hashes are encrypted; no field differs.
inline constexpr uint32_t kEncryptedSuperblockVersion = 2;

struct Superblock {
  Digest128 set_uuid;        // the same in all files of a set, random at creation
  uint32_t file_number = 0;  // this file's place in the set
  uint32_t file_count = 0;   // at least 1
  uint64_t slab_bytes = 0;   // a multiple of 4 KiB
  uint64_t file_bytes = 0;   // superblock area and whole slabs
  uint64_t epoch = 0;        // 0 at creation, then one more at each start
  bool encrypted = false;
  friend bool operator==(const Superblock&, const Superblock&) = default;
};

// Fills all of `out`. REQUIRES: the bounds noted above.
void EncodeSuperblock(const Superblock& superblock, std::span<std::byte, kSuperblockBytes> out);

// The inverse, for bytes that may hold anything. Errors, all kCorrupt: "bad_magic" (not ours, or
// never written), "bad_version", "bad_header_checksum", "bad_field".
[[nodiscard]] Result<Superblock> DecodeSuperblock(std::span<const std::byte, kSuperblockBytes> in);

}  // namespace kvtier
