// SPDX-License-Identifier: Apache-2.0
// The 4 KiB header pages of the disk format: what all kinds have in common, a magic, a checksum of
// the whole page, a version, then fields of their own and zeros to the end. docs/DISK_FORMAT.md
// gives the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/digest.h"
#include "base/result.h"

namespace kvtier {

inline constexpr size_t kHeaderPageBytes = 4096;

// The first fields of every page.
struct HeaderPagePrefix {
  char magic[8];
  uint64_t checksum;  // xxh3-64 of the page with this field zero
  uint32_t version;
  uint32_t zero;
};
static_assert(sizeof(HeaderPagePrefix) == 24);

// Writes `fields` (which begin with the prefix, checksum zero), zeros after them, and the checksum.
void SealHeaderPage(std::span<const std::byte> fields, std::span<std::byte, kHeaderPageBytes> page);

// Checks magic, version, checksum and the zeros after `field_bytes`. Errors: kCorrupt "bad_magic",
// "bad_version", "bad_header_checksum", "bad_field".
[[nodiscard]] Status CheckHeaderPage(std::span<const std::byte, kHeaderPageBytes> page,
                                     std::string_view magic, uint32_t version, size_t field_bytes);

[[nodiscard]] bool IsAllZero(std::span<const std::byte> bytes);

// A field's value cannot be: kCorrupt "bad_field".
[[nodiscard]] tl::unexpected<Error> BadField(std::string_view field, uint64_t value);

}  // namespace kvtier
