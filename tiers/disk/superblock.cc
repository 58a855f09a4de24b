#include "tiers/disk/superblock.h"

#include <cstring>
#include <string_view>

#include "base/check.h"
#include "tiers/disk/disk_geometry.h"
#include "tiers/disk/header_page.h"

namespace kvtier {
namespace {

constexpr std::string_view kMagic = "KVTFILE1";

struct SuperblockFields {
  HeaderPagePrefix prefix;
  Digest128 set_uuid;
  uint32_t file_number;
  uint32_t file_count;
  uint64_t chunk_bytes;
  uint64_t file_bytes;
  uint64_t epoch;
};
static_assert(sizeof(SuperblockFields) == 72, "no holes: docs/DISK_FORMAT.md lists every byte");
static_assert(kSuperblockBytes == kHeaderPageBytes && 2 * kSuperblockBytes <= kFirstChunkOffset);

Status CheckFields(const SuperblockFields& f) {
  if (f.file_count == 0) return BadField("file_count", f.file_count);
  if (f.file_number >= f.file_count) return BadField("file_number", f.file_number);
  if (f.chunk_bytes == 0 || f.chunk_bytes % kIoAlignment != 0) {
    return BadField("chunk_bytes", f.chunk_bytes);
  }
  if (f.file_bytes < kFirstChunkOffset || (f.file_bytes - kFirstChunkOffset) % f.chunk_bytes != 0) {
    return BadField("file_bytes", f.file_bytes);
  }
  return {};
}

}  // namespace

void EncodeSuperblock(const Superblock& superblock, std::span<std::byte, kSuperblockBytes> out) {
  SuperblockFields f{};
  std::memcpy(f.prefix.magic, kMagic.data(), kMagic.size());
  f.prefix.version = kSuperblockFormatVersion;
  f.set_uuid = superblock.set_uuid;
  f.file_number = superblock.file_number;
  f.file_count = superblock.file_count;
  f.chunk_bytes = superblock.chunk_bytes;
  f.file_bytes = superblock.file_bytes;
  f.epoch = superblock.epoch;
  KVT_CHECK(CheckFields(f).has_value());
  SealHeaderPage(std::as_bytes(std::span(&f, 1)), out);
}

Result<Superblock> DecodeSuperblock(std::span<const std::byte, kSuperblockBytes> in) {
  KVT_RETURN_IF_ERROR(
      CheckHeaderPage(in, kMagic, kSuperblockFormatVersion, sizeof(SuperblockFields)));
  SuperblockFields f;
  std::memcpy(&f, in.data(), sizeof(f));
  KVT_RETURN_IF_ERROR(CheckFields(f));
  Superblock superblock;
  superblock.set_uuid = f.set_uuid;
  superblock.file_number = f.file_number;
  superblock.file_count = f.file_count;
  superblock.chunk_bytes = f.chunk_bytes;
  superblock.file_bytes = f.file_bytes;
  superblock.epoch = f.epoch;
  return superblock;
}

}  // namespace kvtier
