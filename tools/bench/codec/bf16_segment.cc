// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/codec/bf16_segment.h"

#include <immintrin.h>

#include <algorithm>
#include <bit>

// GCC 12 takes the undefined operands in its own AVX-512 headers for a fault (its bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

// Helpers of a level are functions of that level: only then are they inlined.
#define KVT_AVX2 __attribute__((target("avx2")))
#define KVT_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi")))

namespace kvtier {
namespace {

constexpr size_t kHalfGroup = kGroupElements / 2;

void EncodeScalar(std::span<const std::byte> segment, const CodeTable& table, std::byte* dense,
                  EscapeWriter& escapes) {
  const size_t elements = segment.size() / 2;
  std::byte* codes = dense + elements;
  for (size_t first = 0; first < elements; first += kGroupElements) {
    std::array<uint16_t, kGroupElements> group;
    std::memcpy(group.data(), &segment[2 * first], sizeof(group));
    std::array<uint8_t, kGroupElements> code;
    uint64_t mask = 0;
    for (size_t i = 0; i < kGroupElements; ++i) {
      dense[first + i] = static_cast<std::byte>(std::rotl(group[i], 1) & 0xff);
      code[i] = table.code[ExponentOf(group[i])];
      mask |= uint64_t{code[i] == kNoCode} << i;
    }
    for (size_t i = 0; i < kHalfGroup; ++i) {
      codes[first / 2 + i] = static_cast<std::byte>((code[i] & 15) | (code[i + kHalfGroup] << 4));
    }
    escapes.Add(mask, first, segment.data());
  }
}

void DecodeScalar(const std::byte* dense, const std::array<uint8_t, kCodes>& exponents,
                  std::span<std::byte> segment) {
  const size_t elements = segment.size() / 2;
  const std::byte* codes = dense + elements;
  for (size_t first = 0; first < elements; first += kGroupElements) {
    std::array<uint16_t, kGroupElements> group;
    for (size_t i = 0; i < kGroupElements; ++i) {
      const auto pair = static_cast<uint8_t>(codes[first / 2 + i % kHalfGroup]);
      const uint8_t exponent = exponents[i < kHalfGroup ? pair & 15 : pair >> 4];
      const auto turned =
          static_cast<uint16_t>(exponent << 8 | static_cast<uint8_t>(dense[first + i]));
      group[i] = std::rotr(turned, 1);
    }
    std::memcpy(&segment[2 * first], group.data(), sizeof(group));
  }
}

KVT_AVX2 __m256i Load256(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

// 32 elements: the signs and mantissas go to `dense`, the exponents are returned, both in order.
KVT_AVX2 __m256i SplitAvx2(const std::byte* elements, std::byte* dense) {
  const __m256i low = Load256(elements);
  const __m256i high = Load256(elements + 32);
  const __m256i low_byte = _mm256_set1_epi16(0xff);
  const __m256i a = _mm256_or_si256(_mm256_slli_epi16(low, 1), _mm256_srli_epi16(low, 15));
  const __m256i b = _mm256_or_si256(_mm256_slli_epi16(high, 1), _mm256_srli_epi16(high, 15));
  // Packing works in halves of 128 bits; 0xd8 puts their quarters back in order.
  const __m256i rest =
      _mm256_packus_epi16(_mm256_and_si256(a, low_byte), _mm256_and_si256(b, low_byte));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(dense), _mm256_permute4x64_epi64(rest, 0xd8));
  const __m256i exponents = _mm256_packus_epi16(_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8));
  return _mm256_permute4x64_epi64(exponents, 0xd8);
}

KVT_AVX2 __m256i CodesAvx2(__m256i exponents, const CodeTable& table) {
  const __m256i nibble = _mm256_set1_epi8(15);
  const __m256i row_of = _mm256_and_si256(_mm256_srli_epi16(exponents, 4), nibble);
  const __m256i column_of = _mm256_and_si256(exponents, nibble);
  __m256i codes = _mm256_set1_epi8(static_cast<char>(kNoCode));
  for (uint32_t rows = table.rows; rows != 0; rows &= rows - 1) {
    const int row = std::countr_zero(rows);
    const __m256i entries = _mm256_broadcastsi128_si256(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(&table.code[16 * row])));
    const __m256i here = _mm256_cmpeq_epi8(row_of, _mm256_set1_epi8(static_cast<char>(row)));
    codes = _mm256_blendv_epi8(codes, _mm256_shuffle_epi8(entries, column_of), here);
  }
  return codes;
}

KVT_AVX2 void EncodeAvx2(std::span<const std::byte> segment, const CodeTable& table,
                         std::byte* dense, EscapeWriter& escapes) {
  const size_t elements = segment.size() / 2;
  std::byte* codes = dense + elements;
  const __m256i nibble = _mm256_set1_epi8(15);
  for (size_t first = 0; first < elements; first += kGroupElements) {
    const std::byte* from = &segment[2 * first];
    const __m256i low = CodesAvx2(SplitAvx2(from, dense + first), table);
    const __m256i high = CodesAvx2(SplitAvx2(from + 64, dense + first + kHalfGroup), table);
    const __m256i packed = _mm256_or_si256(_mm256_and_si256(low, nibble),
                                           _mm256_slli_epi16(_mm256_and_si256(high, nibble), 4));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + first / 2), packed);
    const uint64_t mask = static_cast<uint32_t>(_mm256_movemask_epi8(low)) |
                          uint64_t{static_cast<uint32_t>(_mm256_movemask_epi8(high))} << 32;
    if (mask != 0) escapes.Add(mask, first, segment.data());
  }
}

// 16 elements.
KVT_AVX2 void StoreTurnedBack(__m256i turned, std::byte* to) {
  const __m256i x = _mm256_or_si256(_mm256_srli_epi16(turned, 1), _mm256_slli_epi16(turned, 15));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x);
}

// 32 elements of their signs and mantissas, and exponents.
KVT_AVX2 void JoinAvx2(__m256i rest, __m256i exponents, std::byte* out) {
  const __m256i even = _mm256_unpacklo_epi8(rest, exponents);  // elements 0 to 7, 16 to 23
  const __m256i odd = _mm256_unpackhi_epi8(rest, exponents);   // 8 to 15, 24 to 31
  StoreTurnedBack(_mm256_permute2x128_si256(even, odd, 0x20), out);
  StoreTurnedBack(_mm256_permute2x128_si256(even, odd, 0x31), out + 32);
}

KVT_AVX2 void DecodeAvx2(const std::byte* dense, const std::array<uint8_t, kCodes>& exponents,
                         std::span<std::byte> segment) {
  const size_t elements = segment.size() / 2;
  const std::byte* codes = dense + elements;
  const __m256i nibble = _mm256_set1_epi8(15);
  const __m256i table = _mm256_broadcastsi128_si256(
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(exponents.data())));
  for (size_t first = 0; first < elements; first += kGroupElements) {
    const __m256i pairs = Load256(codes + first / 2);
    const __m256i low = _mm256_shuffle_epi8(table, _mm256_and_si256(pairs, nibble));
    const __m256i high =
        _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(pairs, 4), nibble));
    JoinAvx2(Load256(dense + first), low, &segment[2 * first]);
    JoinAvx2(Load256(dense + first + kHalfGroup), high, &segment[2 * first + 64]);
  }
}

// 32 elements, as SplitAvx2.
KVT_AVX512 __m256i SplitAvx512(const std::byte* elements, std::byte* dense) {
  const __m512i x = _mm512_loadu_si512(elements);
  const __m512i turned = _mm512_or_si512(_mm512_slli_epi16(x, 1), _mm512_srli_epi16(x, 15));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(dense), _mm512_cvtepi16_epi8(turned));
  return _mm512_cvtepi16_epi8(_mm512_srli_epi16(turned, 8));
}

KVT_AVX512 void EncodeAvx512(std::span<const std::byte> segment, const CodeTable& table,
                             std::byte* dense, EscapeWriter& escapes) {
  const size_t elements = segment.size() / 2;
  std::byte* codes = dense + elements;
  const __m512i quarter0 = _mm512_load_si512(&table.code[0]);
  const __m512i quarter1 = _mm512_load_si512(&table.code[64]);
  const __m512i quarter2 = _mm512_load_si512(&table.code[128]);
  const __m512i quarter3 = _mm512_load_si512(&table.code[192]);
  for (size_t first = 0; first < elements; first += kGroupElements) {
    const std::byte* from = &segment[2 * first];
    const __m256i low = SplitAvx512(from, dense + first);
    const __m256i high = SplitAvx512(from + 64, dense + first + kHalfGroup);
    const __m512i exponents = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    const __m512i code = _mm512_mask_blend_epi8(
        _mm512_movepi8_mask(exponents), _mm512_permutex2var_epi8(quarter0, exponents, quarter1),
        _mm512_permutex2var_epi8(quarter2, exponents, quarter3));
    const __m512i nibbles = _mm512_and_si512(code, _mm512_set1_epi8(15));
    const __m256i packed =
        _mm256_or_si256(_mm512_castsi512_si256(nibbles),
                        _mm256_slli_epi16(_mm512_extracti64x4_epi64(nibbles, 1), 4));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + first / 2), packed);
    const uint64_t mask = _mm512_movepi8_mask(code);
    if (mask != 0) escapes.Add(mask, first, segment.data());
  }
}

KVT_AVX512 void JoinAvx512(__m256i rest, __m256i exponents, std::byte* out) {
  const __m512i turned = _mm512_or_si512(_mm512_cvtepu8_epi16(rest),
                                         _mm512_slli_epi16(_mm512_cvtepu8_epi16(exponents), 8));
  _mm512_storeu_si512(out,
                      _mm512_or_si512(_mm512_srli_epi16(turned, 1), _mm512_slli_epi16(turned, 15)));
}

KVT_AVX512 void DecodeAvx512(const std::byte* dense, const std::array<uint8_t, kCodes>& exponents,
                             std::span<std::byte> segment) {
  const size_t elements = segment.size() / 2;
  const std::byte* codes = dense + elements;
  const __m256i nibble = _mm256_set1_epi8(15);
  const __m256i table = _mm256_broadcastsi128_si256(
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(exponents.data())));
  for (size_t first = 0; first < elements; first += kGroupElements) {
    const __m256i pairs = Load256(codes + first / 2);
    const __m256i low = _mm256_shuffle_epi8(table, _mm256_and_si256(pairs, nibble));
    const __m256i high =
        _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(pairs, 4), nibble));
    JoinAvx512(Load256(dense + first), low, &segment[2 * first]);
    JoinAvx512(Load256(dense + first + kHalfGroup), high, &segment[2 * first + 64]);
  }
}

}  // namespace

VectorLevel WidestVectorLevel() {
  static const VectorLevel widest = [] {
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vbmi")) {
      return VectorLevel::kAvx512;
    }
    return __builtin_cpu_supports("avx2") ? VectorLevel::kAvx2 : VectorLevel::kScalar;
  }();
  return widest;
}

SegmentCoder CoderFor(VectorLevel level) {
  switch (std::min(level, WidestVectorLevel())) {
    case VectorLevel::kAvx512:
      return {EncodeAvx512, DecodeAvx512};
    case VectorLevel::kAvx2:
      return {EncodeAvx2, DecodeAvx2};
    case VectorLevel::kScalar:
      break;
  }
  return {EncodeScalar, DecodeScalar};
}

bool PatchEscapes(std::span<const std::byte> escapes, std::span<std::byte> segment) {
  for (size_t at = 0; at < escapes.size(); at += kEscapeBytes) {
    uint16_t element;
    std::memcpy(&element, &escapes[at], sizeof(element));
    if (element >= segment.size() / 2) return false;
    const auto exponent = static_cast<uint16_t>(escapes[at + 2]);
    std::byte* place = &segment[size_t{2} * element];
    uint16_t value;
    std::memcpy(&value, place, sizeof(value));
    value = static_cast<uint16_t>((value & 0x807f) | exponent << 7);
    std::memcpy(place, &value, sizeof(value));
  }
  return true;
}

}  // namespace kvtier
