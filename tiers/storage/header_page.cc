// SPDX-License-Identifier: Apache-2.0
#include "tiers/storage/header_page.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <string_view>

#include "base/digest.h"
#include "base/result.h"
#include "tiers/storage/disk_geometry.h"

namespace kvtier {
namespace {

constexpr size_t kChecksumOffset = offsetof(HeaderPagePrefix, checksum);

// Bytes from disk may be anything and end up in messages to a terminal or a log.
std::string Printable(std::span<const char> text) {
  std::string printable;
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    printable += code >= 0x20 && code < 0x7f ? std::string(1, c) : fmt::format("\\x{:02x}", code);
  }
  return printable;
}

}  // namespace

// The checksum covers the whole page with its own field zero, which is how the caller passes it.
// The rest of the page is zero too, so that every bit of it is known to the reader.
void SealHeaderPage(std::span<const std::byte> fields,
                    std::span<std::byte, kHeaderPageBytes> page) {
  KVT_CHECK(fields.size() >= sizeof(HeaderPagePrefix) && fields.size() <= page.size());
  std::memcpy(page.data(), fields.data(), fields.size());
  std::memset(page.data() + fields.size(), 0, page.size() - fields.size());
  const uint64_t checksum = ChecksumHeader(page);
  std::memcpy(page.data() + kChecksumOffset, &checksum, sizeof(checksum));
}

Status CheckHeaderPage(std::span<const std::byte, kHeaderPageBytes> page, std::string_view magic,
                       uint32_t version, size_t field_bytes) {
  HeaderPagePrefix prefix;
  std::memcpy(&prefix, page.data(), sizeof(prefix));
  if (std::string_view(prefix.magic, sizeof(prefix.magic)) != magic) {
    return MakeError(ErrorCode::kCorrupt, "bad_magic",
                     fmt::format("expected {}, found {}", magic, Printable(prefix.magic)));
  }
  // The version comes before the checksum, so that a page of another format is reported as such and
  // not as damage.
  if (prefix.version != version) {
    return MakeError(ErrorCode::kCorrupt, "bad_version",
                     fmt::format("expected {}, found {}", version, prefix.version));
  }
  // The page is const, and other threads may read it at the same time: the checksum is made over a
  // copy whose checksum field is zero.
  std::array<std::byte, kHeaderPageBytes> copy;
  std::memcpy(copy.data(), page.data(), page.size());
  std::memset(copy.data() + kChecksumOffset, 0, sizeof(prefix.checksum));
  const uint64_t checksum = ChecksumHeader(copy);
  if (checksum != prefix.checksum) {
    return MakeError(ErrorCode::kCorrupt, "bad_header_checksum",
                     fmt::format("stored {:016x}, computed {:016x}", prefix.checksum, checksum));
  }
  if (prefix.zero != 0) return BadField("zero", prefix.zero);
  if (!IsAllZero(page.subspan(field_bytes))) return BadField("padding", 1);
  return {};
}

bool IsAllZero(std::span<const std::byte> bytes) {
  // A range equal to itself shifted by one holds one value only; memcmp does it in wide vectors.
  return bytes.empty() || (bytes[0] == std::byte{0} &&
                           std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

tl::unexpected<Error> BadField(std::string_view field, uint64_t value) {
  return MakeError(ErrorCode::kCorrupt, "bad_field", fmt::format("{} = {}", field, value));
}

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
