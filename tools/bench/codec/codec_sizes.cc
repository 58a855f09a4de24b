// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <fstream>
#include <iterator>
#include <numeric>

#include "base/units.h"
#include "tiers/storage/slot_header.h"
#include "tools/bench/codec/bf16_codec.h"
#include "tools/bench/codec/codec_bench.h"

namespace kvtier {

Result<KvBlocks> ReadKv(const std::string& path, size_t block_bytes, size_t bytes) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> text{std::istreambuf_iterator<char>(file), {}};
  if (!file) return MakeError(ErrorCode::kIoError, "unreadable", path);
  text.resize(text.size() / kBf16GroupBytes * kBf16GroupBytes);
  if (text.empty() || block_bytes == 0 || block_bytes % kBf16GroupBytes != 0) {
    return MakeError(ErrorCode::kInvalidArgument, "no_blocks", path);
  }
  if (bytes == 0) bytes = text.size();
  KvBlocks blocks{.bytes = {}, .block_bytes = block_bytes};
  blocks.bytes.resize(std::max(bytes / block_bytes, size_t{1}) * block_bytes);
  for (size_t at = 0; at < blocks.bytes.size(); at += text.size()) {
    std::memcpy(&blocks.bytes[at], text.data(), std::min(text.size(), blocks.bytes.size() - at));
  }
  return blocks;
}

CodecSizes MeasureSizes(const KvBlocks& blocks) {
  std::vector<double> ratios;
  std::vector<size_t> sizes;
  std::vector<std::byte> out(2 * blocks.block_bytes + kIoAlignment);
  for (size_t i = 0; i < blocks.blocks(); ++i) {
    sizes.push_back(EncodeBf16(blocks.block(i), out).value());
    ratios.push_back(static_cast<double>(sizes.back()) / static_cast<double>(blocks.block_bytes));
  }
  std::ranges::sort(ratios);
  CodecSizes result{.mean = std::accumulate(ratios.begin(), ratios.end(), 0.0) /
                            static_cast<double>(ratios.size()),
                    .median = ratios[ratios.size() / 2],
                    .worst = ratios.back(),
                    .slots = {}};
  const uint64_t raw_slot = SlotBytes(blocks.block_bytes);
  for (uint64_t slot = SlotBytes(MinEncodedBytes(blocks.block_bytes)); slot < raw_slot;
       slot += kIoAlignment) {
    const auto fit = std::ranges::count_if(sizes, [&](size_t n) { return SlotBytes(n) <= slot; });
    result.slots.push_back({slot, static_cast<double>(slot) / static_cast<double>(raw_slot),
                            static_cast<double>(fit) / static_cast<double>(sizes.size())});
    if (result.slots.back().fit >= 1 || result.slots.size() == 4) break;
  }
  return result;
}

}  // namespace kvtier
