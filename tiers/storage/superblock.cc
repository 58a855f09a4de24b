// SPDX-License-Identifier: Apache-2.0
#include "tiers/storage/superblock.h"

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
  uint32_t file_number;
  uint32_t file_count;
  uint64_t slab_bytes;
  uint64_t file_bytes;
  uint64_t epoch;
};
static_assert(sizeof(SuperblockFields) == 72, "no holes: docs/DISK_FORMAT.md lists every byte");
static_assert(kSuperblockBytes == kHeaderPageBytes && 2 * kSuperblockBytes <= kFirstSlabOffset);

// A checksum shows that the page is as it was written, not that the values make sense: these are
// divided by and added to addresses, so that their bounds are checked as well.
Status CheckFields(const SuperblockFields& f) {
  if (f.file_count == 0) return BadField("file_count", f.file_count);
  if (f.file_number >= f.file_count) return BadField("file_number", f.file_number);
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
  f.file_number = superblock.file_number;
  f.file_count = superblock.file_count;
  f.slab_bytes = superblock.slab_bytes;
  f.file_bytes = superblock.file_bytes;
  f.epoch = superblock.epoch;
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
  superblock.file_number = f.file_number;
  superblock.file_count = f.file_count;
  superblock.slab_bytes = f.slab_bytes;
  superblock.file_bytes = f.file_bytes;
  superblock.epoch = f.epoch;
  superblock.encrypted = encrypted;
  return superblock;
}

}  // namespace kvtier
