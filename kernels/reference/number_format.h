// SPDX-License-Identifier: Apache-2.0
// Conversions between the kernels' element types and float on the CPU, to the bit as the GPU does
// them: round to nearest even; e4m3 (no infinities) saturates at 448 and keeps NaN.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kvtier/kernels.h"

namespace kvtier::kernels {

// Conversions of 16-bit types, inline and nearly without branches: they stand in the loops of
// attention on the CPU.
[[nodiscard]] inline float FloatFromBf16(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}
[[nodiscard]] inline float FloatFromFp16(uint16_t bits) {
  const uint32_t shifted = (bits & 0x7FFFU) << 13;
  const bool finite = (bits & 0x7C00) != 0x7C00;
  // Scaling makes subnormals normal.
  const float magnitude = finite ? std::bit_cast<float>(shifted) * 0x1p112F
                                 : std::bit_cast<float>(shifted | 0x7F800000);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}
[[nodiscard]] float FloatFromE4m3(uint8_t bits);

[[nodiscard]] uint16_t Bf16FromFloat(float value);
[[nodiscard]] inline uint16_t Fp16FromFloat(float value) {
  constexpr uint32_t kInfinity = 0x7F800000;
  constexpr uint32_t kLowestNormal = 0x38800000;  // 2^-14
  constexpr uint32_t kTooLarge = 0x47800000;      // 2^16
  constexpr uint32_t kRebias = (127 - 15) << 23;
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > kInfinity) return 0x7FFF;
  if (magnitude >= kTooLarge) return sign | 0x7C00;
  if (magnitude < kLowestNormal) {
    // Adding 1/2 leaves units of 2^-24, those of the subnormals, in the lowest bits.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) & 0x7FF));
  }
  const uint32_t rounded = magnitude + 0xFFF + (magnitude >> 13 & 1);
  return static_cast<uint16_t>(sign | (rounded - kRebias) >> 13);
}
[[nodiscard]] uint8_t E4m3FromFloat(float value);

// Bytes of one element.
[[nodiscard]] size_t ElementBytes(kvt_dtype dtype);

// Element `index` of an array of that type.
[[nodiscard]] float LoadElement(const void* array, kvt_dtype dtype, int64_t index);
void StoreElement(void* array, kvt_dtype dtype, int64_t index, float value);

// `value` rounded to that type and back.
[[nodiscard]] float RoundTo(kvt_dtype dtype, float value);

}  // namespace kvtier::kernels
