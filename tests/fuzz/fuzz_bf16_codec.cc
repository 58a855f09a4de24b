// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: the lossless code for bf16 blocks.
//
// The first input byte says what the rest is: a block, which must come back from its code; or a
// block's code as a disk may have it. Checked besides memory safety: all levels of vectors do the
// same, byte by byte.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/result.h"
#include "tools/bench/codec/bf16_codec.h"

namespace kvtier {
namespace {

using Bytes = std::vector<std::byte>;

constexpr VectorLevel kLevels[] = {VectorLevel::kScalar, VectorLevel::kAvx2, VectorLevel::kAvx512};

// Memory of exactly so many bytes, so that the sanitizer sees what goes beyond.
void CheckHostileCode(std::span<const std::byte> code, size_t raw_bytes) {
  const Bytes encoded(code.begin(), code.end());
  Bytes expected(raw_bytes);
  const bool whole = DecodeBf16(encoded, expected, {}, VectorLevel::kScalar);
  for (const VectorLevel level : kLevels) {
    Bytes decoded(raw_bytes);
    KVT_CHECK(DecodeBf16(encoded, decoded, {}, level) == whole);
    KVT_CHECK(!whole || decoded == expected);
  }
}

void CheckBlock(std::span<const std::byte> block, size_t out_bytes) {
  const Bytes raw(block.begin(), block.end());
  Bytes expected(out_bytes);
  const auto fits = EncodeBf16(raw, expected, VectorLevel::kScalar);
  for (const VectorLevel level : kLevels) {
    Bytes encoded(out_bytes);
    const auto bytes = EncodeBf16(raw, encoded, level);
    KVT_CHECK(bytes == fits);
    if (!bytes) continue;
    KVT_CHECK(std::equal(encoded.begin(), encoded.begin() + static_cast<ptrdiff_t>(*bytes),
                         expected.begin()));
    encoded.resize(*bytes);
    Bytes decoded(raw.size());
    KVT_CHECK(DecodeBf16(encoded, decoded, {}, level));
    KVT_CHECK(decoded == raw);
  }
}

}  // namespace
}  // namespace kvtier

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvtier;
  if (size < 2) return 0;
  const auto rest = std::as_bytes(std::span(data, size)).subspan(2);
  // As much memory as is needed, and sometimes less.
  const size_t spare = data[1] < 32 ? data[1] : 4 * rest.size();
  if (data[0] % 2 == 0) {
    const size_t raw_bytes = rest.size() / kBf16GroupBytes * kBf16GroupBytes;
    CheckBlock(rest.first(raw_bytes), MinEncodedBytes(raw_bytes) + spare);
    return 0;
  }
  // The largest block whose code could be this one, or a group more.
  size_t raw_bytes = 0;
  while (MinEncodedBytes(raw_bytes + kBf16GroupBytes) + spare % 128 <= rest.size()) {
    raw_bytes += kBf16GroupBytes;
  }
  CheckHostileCode(rest, raw_bytes + (data[1] == 255 ? kBf16GroupBytes : 0));
  return 0;
}
