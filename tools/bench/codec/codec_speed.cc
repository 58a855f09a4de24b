// SPDX-License-Identifier: Apache-2.0
#define XXH_STATIC_LINKING_ONLY  // for a state on the stack
#include <xxhash.h>
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>
#endif
#include <time.h>

#include <cstring>
#include <functional>

#include "base/digest.h"
#include "tools/bench/bench.h"
#include "tools/bench/codec/bf16_codec.h"
#include "tools/bench/codec/checked_decode.h"
#include "tools/bench/codec/codec_bench.h"

namespace kvtier {
namespace {

double ThreadSeconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

// The median over repetitions, 10^9 bytes for each second that the thread had a core.
double Rate(const KvBlocks& blocks, uint32_t repetitions, const std::function<void(size_t)>& work) {
  std::vector<double> rates;
  for (uint32_t i = 0; i <= repetitions; ++i) {
    const double start = ThreadSeconds();
    for (size_t block = 0; block < blocks.blocks(); ++block) work(block);
    const double took = ThreadSeconds() - start;
    // The first touches memory.
    if (i > 0) rates.push_back(static_cast<double>(blocks.bytes.size()) / took / 1e9);
  }
  return Median(rates);
}

}  // namespace

std::optional<PayloadChecksum> DecodeChecked(std::span<const std::byte> encoded,
                                             std::span<std::byte> raw, VectorLevel level) {
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  const bool whole = DecodeBf16(
      encoded, raw,
      [&state](std::span<const std::byte> segment) {
        XXH3_128bits_update(&state, segment.data(), segment.size());
      },
      level);
  if (!whole) return std::nullopt;
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state));
  PayloadChecksum checksum;
  std::memcpy(checksum.bytes.data(), canonical.digest, sizeof(canonical.digest));
  return checksum;
}

std::vector<CodecSpeed> MeasureSpeed(const KvBlocks& blocks, uint32_t repetitions) {
  const size_t block_bytes = blocks.block_bytes;
  std::vector<std::byte> encoded(blocks.blocks() * block_bytes);
  std::vector<std::byte> decoded(blocks.bytes.size());
  const auto encoded_block = [&](size_t i) {
    return std::span(encoded).subspan(i * block_bytes, block_bytes);
  };
  const auto decoded_block = [&](size_t i) {
    return std::span(decoded).subspan(i * block_bytes, block_bytes);
  };
  const double checksum = Rate(blocks, repetitions, [&](size_t i) {
    KVT_CHECK(ChecksumPayload(blocks.block(i)) != PayloadChecksum{});
  });
  const double copy = Rate(blocks, repetitions, [&](size_t i) {
    std::memcpy(decoded_block(i).data(), blocks.block(i).data(), block_bytes);
  });
  std::vector<CodecSpeed> rows;
  for (const VectorLevel level : {VectorLevel::kScalar, VectorLevel::kAvx2, VectorLevel::kAvx512}) {
    if (level > WidestVectorLevel()) break;
    CodecSpeed row{.checksum = checksum, .copy = copy};
    row.encode = Rate(blocks, repetitions, [&](size_t i) {
      KVT_CHECK(EncodeBf16(blocks.block(i), encoded_block(i), level).has_value());
    });
    row.decode = Rate(blocks, repetitions, [&](size_t i) {
      KVT_CHECK(DecodeBf16(encoded_block(i), decoded_block(i), {}, level));
    });
    KVT_CHECK(decoded == blocks.bytes);
    row.decode_checksum = Rate(blocks, repetitions, [&](size_t i) {
      KVT_CHECK(DecodeChecked(encoded_block(i), decoded_block(i), level).has_value());
    });
    rows.push_back(row);
  }
  return rows;
}

}  // namespace kvtier
