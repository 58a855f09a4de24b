// SPDX-License-Identifier: Apache-2.0
#include "tiers/storage/header_page.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <string_view>

#include "base/digest.h"
#include "base/result.h"

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

}  // namespace kvtier
