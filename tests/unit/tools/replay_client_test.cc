// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/replay_client.h"

#include <gtest/gtest.h>

#include "base/units.h"

namespace kvtier {
namespace {

uint64_t BlockBytesOf(const kvt_model_record& record) {
  constexpr uint64_t kBfloat16Bytes = 2;
  return uint64_t{record.groups[0].layers} * record.groups[0].kv_heads *
         (record.groups[0].k_head_dim + record.groups[0].v_head_dim) * kBfloat16Bytes *
         record.groups[0].block_tokens;
}

TEST(ModelOfBlockBytesTest, GeometryTakesExactlyTheBytes) {
  for (const uint32_t block_tokens : {16u, 64u, 512u}) {
    for (const uint64_t block_bytes : {4 * kKiB, 64 * kKiB, 96 * kKiB, 1 * kMiB, 2 * kMiB}) {
      const auto record = ModelOfBlockBytes(block_bytes, block_tokens);
      ASSERT_TRUE(record) << block_bytes << " " << block_tokens;
      EXPECT_EQ(record->groups[0].block_tokens, block_tokens);
      EXPECT_EQ(BlockBytesOf(*record), block_bytes);
    }
  }
}

TEST(ModelOfBlockBytesTest, SizesThatNoGeometryHasAreRefused) {
  const struct {
    uint64_t block_bytes;
    uint32_t block_tokens;
  } bad[] = {{0, 16}, {100, 16}, {64 * kKiB + 1, 512}, {1 * kKiB, 512}, {kGiB, 16}, {64, 0}};
  for (const auto& [block_bytes, block_tokens] : bad) {
    const auto record = ModelOfBlockBytes(block_bytes, block_tokens);
    ASSERT_FALSE(record) << block_bytes << " " << block_tokens;
    EXPECT_EQ(record.error().reason, "bad_block_bytes");
  }
}

}  // namespace
}  // namespace kvtier
