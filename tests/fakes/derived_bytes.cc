// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/derived_bytes.h"

#include <cstring>

#include "base/result.h"
#include "tests/fakes/seeded_random.h"

namespace kvtier {
namespace {

uint64_t WordAt(uint64_t seed, uint64_t position) {
  return (seed ^ position) * 0x9e3779b97f4a7c15ull + position;
}

uint64_t SeedOf(const BlockHash& hash) {
  uint64_t words[4];
  std::memcpy(words, hash.bytes.data(), sizeof(words));
  return words[0] + 3 * words[1] + 5 * words[2] + 7 * words[3];
}

}  // namespace

void FillFromHash(const BlockHash& hash, std::span<std::byte> payload) {
  KVT_CHECK(payload.size() % sizeof(uint64_t) == 0);
  const uint64_t seed = SeedOf(hash);
  for (uint64_t i = 0; i < payload.size() / sizeof(uint64_t); ++i) {
    const uint64_t word = WordAt(seed, i);
    std::memcpy(payload.data() + i * sizeof(word), &word, sizeof(word));
  }
}

bool MatchesHash(const BlockHash& hash, std::span<const std::byte> payload) {
  const uint64_t seed = SeedOf(hash);
  uint64_t differences = 0;
  for (uint64_t i = 0; i < payload.size() / sizeof(uint64_t); ++i) {
    uint64_t word;
    std::memcpy(&word, payload.data() + i * sizeof(word), sizeof(word));
    differences |= word ^ WordAt(seed, i);
  }
  return differences == 0;
}

BlockHash TestHash(uint64_t stream, uint64_t position) {
  SeededRandom random(stream * 0x632be59bd9b4e019ull + position);
  BlockHash hash;
  for (size_t i = 0; i < hash.bytes.size(); i += sizeof(uint64_t)) {
    const uint64_t word = random.Next();
    std::memcpy(hash.bytes.data() + i, &word, sizeof(word));
  }
  return hash;
}

}  // namespace kvtier
