// SPDX-License-Identifier: Apache-2.0
// One segment of the code (bf16_codec.h) to and from its dense part, by the vectors of the machine.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "tools/bench/codec/bf16_codec.h"

namespace kvtier {

inline constexpr size_t kCodes = 16;
inline constexpr size_t kEscapeBytes = 3;
inline constexpr size_t kGroupElements = kBf16GroupBytes / 2;
inline constexpr uint8_t kNoCode = 0xff;

constexpr uint8_t ExponentOf(uint16_t element) { return static_cast<uint8_t>(element >> 7); }

// The code of each exponent, or kNoCode.
struct CodeTable {
  explicit CodeTable(const std::array<uint8_t, kCodes>& exponents) {
    code.fill(kNoCode);
    // The first of equal ones wins; which one does not matter to the decoder.
    for (size_t i = kCodes; i-- > 0;) {
      code[exponents[i]] = static_cast<uint8_t>(i);
      rows |= 1U << (exponents[i] >> 4);
    }
  }
  alignas(64) std::array<uint8_t, 256> code;
  uint32_t rows = 0;  // bit r: some of code[16 r] to code[16 r + 15] are codes
};

// Appends escapes to the bytes given; once one did not fit it is full, and counts no more.
class EscapeWriter {
 public:
  explicit EscapeWriter(std::span<std::byte> area) : area_(area) {}

  // For each bit i of `mask`, element first + i.
  void Add(uint64_t mask, size_t first, const std::byte* elements) {
    for (; mask != 0; mask &= mask - 1) {
      const size_t element = first + static_cast<size_t>(__builtin_ctzll(mask));
      if (area_.size() - used_ < kEscapeBytes) {
        full_ = true;
        return;
      }
      const auto position = static_cast<uint16_t>(element);
      uint16_t value;
      std::memcpy(&value, elements + 2 * element, sizeof(value));
      const uint8_t exponent = ExponentOf(value);
      std::memcpy(&area_[used_], &position, sizeof(position));
      std::memcpy(&area_[used_ + 2], &exponent, sizeof(exponent));
      used_ += kEscapeBytes;
    }
  }
  [[nodiscard]] size_t count() const { return used_ / kEscapeBytes; }
  [[nodiscard]] bool full() const { return full_; }

 private:
  std::span<std::byte> area_;
  size_t used_ = 0;
  bool full_ = false;
};

// Sets the exponents of the elements listed; false if one is beyond the segment.
[[nodiscard]] bool PatchEscapes(std::span<const std::byte> escapes, std::span<std::byte> segment);

// `dense` has 3 bytes for each 4 of the segment.
struct SegmentCoder {
  void (*encode)(std::span<const std::byte> segment, const CodeTable& table, std::byte* dense,
                 EscapeWriter& escapes);
  void (*decode)(const std::byte* dense, const std::array<uint8_t, kCodes>& exponents,
                 std::span<std::byte> segment);
};
// Of that level, or of the widest below it that the machine has.
[[nodiscard]] SegmentCoder CoderFor(VectorLevel level);

}  // namespace kvtier
