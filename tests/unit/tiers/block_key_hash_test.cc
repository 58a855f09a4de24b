// SPDX-License-Identifier: Apache-2.0
#include "tiers/types/block_key_hash.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

namespace kvtier {
namespace {

// Hashes that differ in one of their four words alone.
BlockKey KeyOf(size_t word, uint64_t number) {
  BlockKey key;
  std::memcpy(key.hash.bytes.data() + word * sizeof(number), &number, sizeof(number));
  return key;
}

TEST(BlockKeyHashTest, NoPartOfAHashLeadsToOneBucket) {
  const BlockKeyHash hash;
  for (size_t word = 0; word < 4; ++word) {
    std::set<size_t> buckets;
    for (uint64_t number = 0; number < 1000; ++number) {
      buckets.insert(hash(KeyOf(word, number)) % 100'003);
    }
    EXPECT_GT(buckets.size(), 950u) << "word " << word;
  }
}

TEST(BlockKeyHashTest, BlocksOfDifferentNamespacesAreSpread) {
  const BlockKeyHash hash;
  std::set<size_t> hashes;
  for (uint32_t space = 0; space < 1000; ++space) hashes.insert(hash({NamespaceId(space), {}}));
  EXPECT_EQ(hashes.size(), 1000u);
}

TEST(BlockKeyHashTest, WhatClientsLearnOfOneTableIsOfNoUseForAnother) {
  EXPECT_NE(BlockKeyHash()(KeyOf(0, 1)), BlockKeyHash()(KeyOf(0, 1)));
}

}  // namespace
}  // namespace kvtier
