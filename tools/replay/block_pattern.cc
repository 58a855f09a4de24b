// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/block_pattern.h"

#include <cstdint>
#include <cstring>

#include "base/result.h"

namespace kvtier {
namespace {

// Word `i` is a function of the hash and `i` alone, so that the words are independent of one
// another and a shifted, swapped or mixed block cannot pass.
uint64_t Word(uint64_t seed, uint64_t i) {
  uint64_t x = seed + i * 0x9e3779b97f4a7c15u;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93u;
  return x ^ x >> 32;
}

}  // namespace

void FillBlock(const BlockHash& hash, std::span<std::byte> block) {
  KVT_CHECK(block.size() % sizeof(uint64_t) == 0);
  const uint64_t seed = hash.Prefix64();
  for (size_t i = 0; i < block.size() / sizeof(uint64_t); ++i) {
    const uint64_t word = Word(seed, i);
    std::memcpy(block.data() + i * sizeof(word), &word, sizeof(word));
  }
}

bool BlockMatches(const BlockHash& hash, std::span<const std::byte> block) {
  KVT_CHECK(block.size() % sizeof(uint64_t) == 0);
  const uint64_t seed = hash.Prefix64();
  uint64_t difference = 0;
  for (size_t i = 0; i < block.size() / sizeof(uint64_t); ++i) {
    uint64_t word;
    std::memcpy(&word, block.data() + i * sizeof(word), sizeof(word));
    difference |= word ^ Word(seed, i);
  }
  return difference == 0;
}

}  // namespace kvtier
