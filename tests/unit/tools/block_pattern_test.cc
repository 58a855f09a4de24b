// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/block_pattern.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/digest.h"

namespace kvtier {
namespace {

BlockHash HashOf(uint32_t id) { return Sha256(std::as_bytes(std::span(&id, 1))); }

std::vector<std::byte> Filled(const BlockHash& hash, size_t bytes = 4096) {
  std::vector<std::byte> block(bytes);
  FillBlock(hash, block);
  return block;
}

TEST(BlockPatternTest, FilledBlockMatchesItsHashOnly) {
  const auto block = Filled(HashOf(1));
  EXPECT_TRUE(BlockMatches(HashOf(1), block));
  EXPECT_FALSE(BlockMatches(HashOf(2), block));
}

TEST(BlockPatternTest, OneFlippedBitAnywhereIsSeen) {
  auto block = Filled(HashOf(3), 256);
  for (size_t bit = 0; bit < 8 * block.size(); ++bit) {
    block[bit / 8] ^= std::byte(1u << bit % 8);
    EXPECT_FALSE(BlockMatches(HashOf(3), block)) << "bit " << bit;
    block[bit / 8] ^= std::byte(1u << bit % 8);
  }
  EXPECT_TRUE(BlockMatches(HashOf(3), block));
}

TEST(BlockPatternTest, ShiftedContentIsSeen) {
  auto block = Filled(HashOf(4));
  std::ranges::rotate(block, block.begin() + 512);
  EXPECT_FALSE(BlockMatches(HashOf(4), block));
}

TEST(BlockPatternTest, ZeroedTailIsSeen) {
  auto block = Filled(HashOf(5));
  std::fill(block.end() - 512, block.end(), std::byte{0});
  EXPECT_FALSE(BlockMatches(HashOf(5), block));
}

}  // namespace
}  // namespace kvtier
