// SPDX-License-Identifier: Apache-2.0
#include "tiers/storage/superblock.h"

#include <array>
#include <cstring>
#include <string_view>

#include "base/digest.h"
#include "base/result.h"
#include "tiers/storage/block_file.h"
#include "tiers/storage/header_page.h"

namespace kvtier {
namespace {

constexpr std::string_view kMagic = "KVTFILE1";

struct SuperblockFields {
  HeaderPagePrefix prefix;
  Digest128 set_uuid;
  uint32_t drive;
  uint32_t zero;
  uint64_t slab_bytes;
  uint64_t file_bytes;
  uint64_t epoch;
  std::array<uint32_t, kMaxDrives> seen_s;
  std::array<uint64_t, kMaxDrives> paths;
};
static_assert(sizeof(SuperblockFields) == 72 + 12 * kMaxDrives,
              "no holes: docs/DISK_FORMAT.md lists every byte");
static_assert(kSuperblockBytes == kHeaderPageBytes && 2 * kSuperblockBytes <= kFirstSlabOffset);

// A checksum shows that the page is as it was written, not that the values make sense: these are
// divided by and added to addresses, so that their bounds are checked as well.
Status CheckFields(const SuperblockFields& f) {
  if (f.drive >= kMaxDrives) return BadField("drive", f.drive);
  if (f.zero != 0) return BadField("zero", f.zero);
  if (f.slab_bytes == 0 || f.slab_bytes % kIoAlignment != 0) {
    return BadField("slab_bytes", f.slab_bytes);
  }
  if (f.file_bytes < kFirstSlabOffset || (f.file_bytes - kFirstSlabOffset) % f.slab_bytes != 0) {
    return BadField("file_bytes", f.file_bytes);
  }
  return {};
}

}  // namespace

void EncodeSuperblock(const Superblock& superblock, std::span<std::byte, kSuperblockBytes> out) {
  SuperblockFields f{};
  std::memcpy(f.prefix.magic, kMagic.data(), kMagic.size());
  f.prefix.version = superblock.encrypted ? kEncryptedSuperblockVersion : kSuperblockFormatVersion;
  f.set_uuid = superblock.set_uuid;
  f.drive = superblock.drive;
  f.slab_bytes = superblock.slab_bytes;
  f.file_bytes = superblock.file_bytes;
  f.epoch = superblock.epoch;
  f.seen_s = superblock.seen_s;
  f.paths = superblock.paths;
  KVT_CHECK(CheckFields(f).has_value());
  SealHeaderPage(std::as_bytes(std::span(&f, 1)), out);
}

Result<Superblock> DecodeSuperblock(std::span<const std::byte, kSuperblockBytes> in) {
  SuperblockFields f;
  std::memcpy(&f, in.data(), sizeof(f));
  const bool encrypted = f.prefix.version == kEncryptedSuperblockVersion;
  const uint32_t version = encrypted ? kEncryptedSuperblockVersion : kSuperblockFormatVersion;
  KVT_RETURN_IF_ERROR(CheckHeaderPage(in, kMagic, version, sizeof(SuperblockFields)));
  KVT_RETURN_IF_ERROR(CheckFields(f));
  Superblock superblock;
  superblock.set_uuid = f.set_uuid;
  superblock.drive = f.drive;
  superblock.slab_bytes = f.slab_bytes;
  superblock.file_bytes = f.file_bytes;
  superblock.epoch = f.epoch;
  superblock.seen_s = f.seen_s;
  superblock.paths = f.paths;
  superblock.encrypted = encrypted;
  return superblock;
}

}  // namespace kvtier
