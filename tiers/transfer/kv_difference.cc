// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/kv_difference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace kvtier {
namespace {

using Bytes = std::span<const std::byte>;

// A number of `kExponent` and `kMantissa` bits below its sign. `kFinite`: it has no infinities, and
// its only NaN has all bits set.
template <int kExponent, int kMantissa, bool kFinite = false>
float SmallFloat(uint32_t bits) {
  constexpr int kBias = (1 << (kExponent - 1)) - 1;
  constexpr uint32_t kMost = (1u << kExponent) - 1;
  const uint32_t mantissa = bits & ((1u << kMantissa) - 1);
  const uint32_t exponent = bits >> kMantissa & kMost;
  const float sign = (bits >> (kExponent + kMantissa) & 1) != 0 ? -1.0f : 1.0f;
  const bool is_nan = kFinite ? exponent == kMost && mantissa == (1u << kMantissa) - 1
                              : exponent == kMost && mantissa != 0;
  if (is_nan) return std::numeric_limits<float>::quiet_NaN();
  if (!kFinite && exponent == kMost) return sign * std::numeric_limits<float>::infinity();
  const auto fraction = static_cast<float>(mantissa);
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - kBias - kMantissa);
  return sign * std::ldexp(fraction + static_cast<float>(1u << kMantissa),
                           static_cast<int>(exponent) - kBias - kMantissa);
}

// Compares elements of one type, each read by `to_float`.
template <typename Element, typename ToFloat>
double ErrorOf(Bytes stored, Bytes computed, const ToFloat& to_float) {
  double squares = 0, other_squares = 0, differences = 0;
  for (size_t at = 0; at + sizeof(Element) <= stored.size(); at += sizeof(Element)) {
    Element first, second;
    std::memcpy(&first, &stored[at], sizeof(Element));
    std::memcpy(&second, &computed[at], sizeof(Element));
    const double a = to_float(first), b = first == second ? a : to_float(second);
    // Bytes that no kernel has written may be no numbers, in both blocks.
    if (!std::isfinite(a) || !std::isfinite(b)) {
      if (first == second || (std::isnan(a) && std::isnan(b))) continue;
      return std::numeric_limits<double>::infinity();
    }
    squares += a * a;
    other_squares += b * b;
    differences += (a - b) * (a - b);
  }
  // The larger of the two, so that the order of the blocks does not matter.
  const double most = std::max(squares, other_squares);
  return most > 0 ? std::sqrt(differences / most) : 0;
}

double LayerError(Bytes stored, Bytes computed, NumberFormat format) {
  switch (format) {
    case NumberFormat::kFloat32:
      return ErrorOf<float>(stored, computed, [](float value) { return value; });
    case NumberFormat::kFloat16:
      return ErrorOf<uint16_t>(stored, computed, SmallFloat<5, 10>);
    case NumberFormat::kBfloat16:
      return ErrorOf<uint16_t>(stored, computed, [](uint16_t bits) {
        return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
      });
    case NumberFormat::kFloat8E4m3:
      return ErrorOf<uint8_t>(stored, computed, SmallFloat<4, 3, true>);
    case NumberFormat::kFloat8E5m2:
      return ErrorOf<uint8_t>(stored, computed, SmallFloat<5, 2>);
    case NumberFormat::kInt8:
      return ErrorOf<int8_t>(stored, computed,
                             [](int8_t value) { return static_cast<float>(value); });
    case NumberFormat::kNone:
      break;
  }
  return 0;
}

}  // namespace

double NoiseBound(NumberFormat format) {
  switch (format) {
    case NumberFormat::kFloat8E4m3:
    case NumberFormat::kFloat8E5m2:
    case NumberFormat::kInt8:
      return 0.25;
    default:
      return 0.2;
  }
}

KvDifference CompareKv(Bytes stored, Bytes computed, KvNumbers numbers) {
  KvDifference difference;
  difference.bits_equal = std::memcmp(stored.data(), computed.data(), stored.size()) == 0;
  if (difference.bits_equal) return difference;
  const size_t layer_bytes = stored.size() / numbers.layers;
  for (uint32_t layer = 0; layer < numbers.layers; ++layer) {
    const size_t begin = layer * layer_bytes;
    const double error = LayerError(stored.subspan(begin, layer_bytes),
                                    computed.subspan(begin, layer_bytes), numbers.format);
    if (error <= difference.error) continue;
    difference.error = error;
    difference.layer = layer;
  }
  return difference;
}

}  // namespace kvtier
