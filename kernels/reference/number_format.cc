// SPDX-License-Identifier: Apache-2.0
#include "kernels/reference/number_format.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace kvtier::kernels {
namespace {

// The format e4m3.
constexpr int kMantissaBits = 3;
constexpr int kExponentBias = 7;

// The bits of |value| rounded to nearest even, without regard to the format's largest exponent.
uint32_t RoundMagnitude(float value) {
  const float magnitude = std::fabs(value);
  if (magnitude == 0) return 0;
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  const int lowest = 1 - kExponentBias;  // exponent of the subnormals' unit, 1.x * 2^lowest
  const int scale = std::max(exponent - 1, lowest);
  // In units of the last place; nearbyint rounds to even in the default mode.
  const auto units =
      static_cast<uint32_t>(std::nearbyint(std::ldexp(magnitude, kMantissaBits - scale)));
  // The implicit bit of normal numbers adds one to the exponent field, carries included.
  return (static_cast<uint32_t>(scale - lowest) << kMantissaBits) + units;
}

float Magnitude(uint32_t bits) {
  const uint32_t exponent = bits >> kMantissaBits;
  const uint32_t mantissa = bits & ((1U << kMantissaBits) - 1);
  const int lowest = 1 - kExponentBias - kMantissaBits;
  if (exponent == 0) return std::ldexp(static_cast<float>(mantissa), lowest);
  return std::ldexp(static_cast<float>(mantissa | (1U << kMantissaBits)),
                    lowest + static_cast<int>(exponent) - 1);
}

}  // namespace

float FloatFromE4m3(uint8_t bits) {
  const float sign = (bits & 0x80) != 0 ? -1.0F : 1.0F;
  const uint32_t magnitude = bits & 0x7F;
  if (magnitude == 0x7F) return std::numeric_limits<float>::quiet_NaN();
  return sign * Magnitude(magnitude);
}

uint16_t Bf16FromFloat(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return 0x7FFF;
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

uint8_t E4m3FromFloat(float value) {
  const uint32_t sign = std::signbit(value) ? 0x80 : 0;
  if (std::isnan(value)) return static_cast<uint8_t>(sign | 0x7F);
  if (std::fabs(value) >= 448.0F) return static_cast<uint8_t>(sign | 0x7E);
  return static_cast<uint8_t>(sign | RoundMagnitude(value));
}

size_t ElementBytes(kvt_dtype dtype) {
  switch (dtype) {
    case KVT_FP8_E4M3:
      return 1;
    case KVT_FP32:
      return 4;
    default:
      return 2;
  }
}

float LoadElement(const void* array, kvt_dtype dtype, int64_t index) {
  const auto* bytes =
      static_cast<const std::byte*>(array) + index * static_cast<int64_t>(ElementBytes(dtype));
  if (dtype == KVT_FP8_E4M3) return FloatFromE4m3(std::to_integer<uint8_t>(*bytes));
  if (dtype == KVT_FP32) {
    float value = 0;
    std::memcpy(&value, bytes, sizeof(value));
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, bytes, sizeof(bits));
  return dtype == KVT_BF16 ? FloatFromBf16(bits) : FloatFromFp16(bits);
}

void StoreElement(void* array, kvt_dtype dtype, int64_t index, float value) {
  auto* bytes = static_cast<std::byte*>(array) + index * static_cast<int64_t>(ElementBytes(dtype));
  if (dtype == KVT_FP8_E4M3) {
    *bytes = std::byte{E4m3FromFloat(value)};
  } else if (dtype == KVT_FP32) {
    std::memcpy(bytes, &value, sizeof(value));
  } else {
    const uint16_t bits = dtype == KVT_BF16 ? Bf16FromFloat(value) : Fp16FromFloat(value);
    std::memcpy(bytes, &bits, sizeof(bits));
  }
}

float RoundTo(kvt_dtype dtype, float value) {
  switch (dtype) {
    case KVT_BF16:
      return FloatFromBf16(Bf16FromFloat(value));
    case KVT_FP16:
      return FloatFromFp16(Fp16FromFloat(value));
    case KVT_FP8_E4M3:
      return FloatFromE4m3(E4m3FromFloat(value));
    default:
      return value;
  }
}

}  // namespace kvtier::kernels
