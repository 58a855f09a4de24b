// SPDX-License-Identifier: Apache-2.0
// The first 4 KiB of every slab on disk that has been cut into slots: tells how large they are, so
// that the index can be rebuilt from the files alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/digest.h"
#include "base/result.h"

namespace kvtier {

inline constexpr size_t kSlabHeaderBytes = 4096;
inline constexpr uint32_t kSlabFormatVersion = 1;

struct SlabHeader {
  uint64_t slab = 0;        // its own number in the tier's address space
  uint64_t slot_bytes = 0;  // header and payload; a multiple of 4 KiB, at least 8 KiB
  uint32_t generation = 0;  // counts how often the slab was cut anew
  // Whose blocks the slab was cut for; each slot's header has the last word.
  std::string tenant;  // at most kMaxTenantBytes
  ModelFingerprint model;
  friend bool operator==(const SlabHeader&, const SlabHeader&) = default;
};

// Fills all of `out`. REQUIRES: the bounds noted above.
void EncodeSlabHeader(const SlabHeader& header, std::span<std::byte, kSlabHeaderBytes> out);

// The inverse, for bytes that may hold anything. Errors, all kCorrupt: "bad_magic" (a slab never
// cut), "bad_version", "bad_header_checksum", "bad_field".
[[nodiscard]] Result<SlabHeader> DecodeSlabHeader(std::span<const std::byte, kSlabHeaderBytes> in);

}  // namespace kvtier
