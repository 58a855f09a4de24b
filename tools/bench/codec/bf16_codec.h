// SPDX-License-Identifier: Apache-2.0
// A lossless code of fixed length for bf16 elements: four bits instead of eight for an exponent
// that is one of the 16 most frequent of its segment, sign and mantissa as they are. Elements with
// other exponents are listed behind, with what they are. Blocks of KV take 0.752 of their bytes so
// (docs/benchmarks/codec.md).
//
//     encoded := head* zero* dense* escape*
//     head    := exponent of each of the 16 codes (16 bytes), escapes of the segment (4)
//     dense   := mantissa << 1 | sign (a byte an element), codes (4 bits an element)
//     escape  := element of the segment (2), exponent (1)
//
// A segment is 8,192 elements, the last one what is left. Dense parts begin at a multiple of 64
// bytes. A byte of codes has element i of a group of 64 in its lower half, and element i + 32 in
// its upper.
//
// Pure functions, any thread. All levels give the same bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

namespace kvtier {

enum class VectorLevel { kScalar, kAvx2, kAvx512 };
// The widest that this machine has. (AVX-512 with VBMI: Ice Lake, Zen 4 and later.)
[[nodiscard]] VectorLevel WidestVectorLevel();

inline constexpr size_t kBf16GroupBytes = 128;          // of 64 elements; blocks hold whole groups
inline constexpr size_t kBf16SegmentBytes = 16 * 1024;  // what one table of exponents is for

// What the code of so many bytes takes without any escapes.
[[nodiscard]] size_t MinEncodedBytes(size_t raw_bytes);

// Returns the bytes written to `out`, or nothing if they do not fit: the block is then stored as it
// is. What `out` holds then is undefined. REQUIRES: whole groups.
[[nodiscard]] std::optional<size_t> EncodeBf16(std::span<const std::byte> raw,
                                               std::span<std::byte> out,
                                               VectorLevel level = WidestVectorLevel());

// The inverse, for bytes that may hold anything: fills `raw`, or returns false where no block of
// that size was encoded to `encoded` (more bytes may follow the code). What is decoded of damaged
// bytes is arbitrary: compare its checksum. `segment_done` hears of each segment of `raw` in their
// order while it is in the cache. REQUIRES: whole groups.
using SegmentDone = std::function<void(std::span<const std::byte>)>;
[[nodiscard]] bool DecodeBf16(std::span<const std::byte> encoded, std::span<std::byte> raw,
                              const SegmentDone& segment_done = {},
                              VectorLevel level = WidestVectorLevel());

}  // namespace kvtier
