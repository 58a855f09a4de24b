// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/codec/bf16_codec.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/result.h"
#include "tools/bench/codec/bf16_segment.h"

namespace kvtier {
namespace {

constexpr size_t kDenseAlignment = 64;
// The most frequent exponents are found in one group of so many: all of them would take as long as
// encoding. No power of two, or the groups could all be of the same heads.
constexpr size_t kSampledGroups = 5;

struct SegmentHead {
  std::array<uint8_t, kCodes> exponents;
  uint32_t escapes;
};
static_assert(sizeof(SegmentHead) == 20);

constexpr size_t Segments(size_t raw_bytes) {
  return (raw_bytes + kBf16SegmentBytes - 1) / kBf16SegmentBytes;
}

constexpr size_t HeadsBytes(size_t raw_bytes) {
  const size_t bytes = Segments(raw_bytes) * sizeof(SegmentHead);
  return (bytes + kDenseAlignment - 1) / kDenseAlignment * kDenseAlignment;
}

constexpr size_t DenseBytes(size_t raw_bytes) { return raw_bytes / 4 * 3; }

std::array<uint8_t, kCodes> FrequentExponents(std::span<const std::byte> segment) {
  std::array<std::array<uint16_t, 256>, 4> counts{};  // four, as one would wait for itself
  for (size_t at = 0; at < segment.size(); at += kSampledGroups * kBf16GroupBytes) {
    std::array<uint16_t, kBf16GroupBytes / 2> group;
    std::memcpy(group.data(), &segment[at], sizeof(group));
    for (size_t i = 0; i < group.size(); ++i) ++counts[i % 4][ExponentOf(group[i])];
  }
  // The count above the exponent; so the greatest are the most frequent.
  std::array<uint32_t, 256> candidates;
  size_t found = 0;
  for (uint32_t i = 0; i < 256; ++i) {
    const uint32_t count = counts[0][i] + counts[1][i] + counts[2][i] + counts[3][i];
    candidates[found] = count << 8 | i;
    found += count != 0 ? 1 : 0;
  }
  const size_t kept = std::min(found, kCodes);
  const auto end = candidates.begin() + static_cast<ptrdiff_t>(found);
  std::partial_sort(candidates.begin(), candidates.begin() + static_cast<ptrdiff_t>(kept), end,
                    std::greater<>());
  std::array<uint8_t, kCodes> exponents;
  for (size_t i = 0; i < kCodes; ++i) {
    exponents[i] = static_cast<uint8_t>(candidates[i < kept ? i : 0] & 0xff);
  }
  return exponents;
}

}  // namespace

size_t MinEncodedBytes(size_t raw_bytes) { return HeadsBytes(raw_bytes) + DenseBytes(raw_bytes); }

std::optional<size_t> EncodeBf16(std::span<const std::byte> raw, std::span<std::byte> out,
                                 VectorLevel level) {
  KVT_CHECK(raw.size() % kBf16GroupBytes == 0);
  if (raw.empty()) return 0;
  const size_t fixed_bytes = MinEncodedBytes(raw.size());
  if (out.size() < fixed_bytes) return std::nullopt;
  const SegmentCoder coder = CoderFor(level);
  std::memset(out.data(), 0, HeadsBytes(raw.size()));
  std::byte* head_at = out.data();
  std::byte* dense = out.data() + HeadsBytes(raw.size());
  EscapeWriter escapes(out.subspan(fixed_bytes));
  for (size_t at = 0; at < raw.size(); at += kBf16SegmentBytes) {
    const auto segment = raw.subspan(at, std::min(kBf16SegmentBytes, raw.size() - at));
    SegmentHead head{FrequentExponents(segment), 0};
    const size_t before = escapes.count();
    coder.encode(segment, CodeTable(head.exponents), dense, escapes);
    if (escapes.full()) return std::nullopt;
    head.escapes = static_cast<uint32_t>(escapes.count() - before);
    std::memcpy(head_at, &head, sizeof(head));
    head_at += sizeof(head);
    dense += DenseBytes(segment.size());
  }
  return fixed_bytes + escapes.count() * kEscapeBytes;
}

bool DecodeBf16(std::span<const std::byte> encoded, std::span<std::byte> raw,
                const SegmentDone& segment_done, VectorLevel level) {
  KVT_CHECK(raw.size() % kBf16GroupBytes == 0);
  const size_t fixed_bytes = MinEncodedBytes(raw.size());
  if (encoded.size() < fixed_bytes) return false;
  const SegmentCoder coder = CoderFor(level);
  const std::byte* head_at = encoded.data();
  const std::byte* dense = encoded.data() + HeadsBytes(raw.size());
  auto escapes = encoded.subspan(fixed_bytes);
  for (size_t at = 0; at < raw.size(); at += kBf16SegmentBytes) {
    const auto segment = raw.subspan(at, std::min(kBf16SegmentBytes, raw.size() - at));
    SegmentHead head;
    std::memcpy(&head, head_at, sizeof(head));
    head_at += sizeof(head);
    if (head.escapes > escapes.size() / kEscapeBytes) return false;
    coder.decode(dense, head.exponents, segment);
    if (!PatchEscapes(escapes.first(head.escapes * kEscapeBytes), segment)) return false;
    escapes = escapes.subspan(head.escapes * kEscapeBytes);
    dense += DenseBytes(segment.size());
    if (segment_done) segment_done(segment);
  }
  return true;
}

}  // namespace kvtier
