// The first 4 KiB of every chunk on disk that has been cut into slots: tells how large they are, so
// that the index can be rebuilt from the files alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/digest.h"
#include "base/result.h"

namespace kvtier {

inline constexpr size_t kChunkHeaderBytes = 4096;
inline constexpr uint32_t kChunkFormatVersion = 1;

struct ChunkHeader {
  uint64_t chunk = 0;       // its own number in the tier's address space
  uint64_t slot_bytes = 0;  // header and payload; a multiple of 4 KiB, at least 8 KiB
  uint32_t generation = 0;  // counts how often the chunk was cut anew
  // Whose blocks the chunk was cut for; each slot's header has the last word.
  std::string tenant;  // at most kMaxTenantBytes
  ModelFingerprint model;
  friend bool operator==(const ChunkHeader&, const ChunkHeader&) = default;
};

// Fills all of `out`. REQUIRES: the bounds noted above.
void EncodeChunkHeader(const ChunkHeader& header, std::span<std::byte, kChunkHeaderBytes> out);

// The inverse, for bytes that may hold anything. Errors, all kCorrupt: "bad_magic" (a chunk never
// cut), "bad_version", "bad_header_checksum", "bad_field".
[[nodiscard]] Result<ChunkHeader> DecodeChunkHeader(
    std::span<const std::byte, kChunkHeaderBytes> in);

}  // namespace kvtier
