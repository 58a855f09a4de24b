// SPDX-License-Identifier: Apache-2.0
#include "protocol/kv_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace kvtier {
namespace {

// K and V of different sizes, so that nothing can be confused.
ModelRecord SmallModel() {
  ModelRecord record;
  record.name = "m";
  record.groups[0].layers = 3;
  record.groups[0].kv_heads = 2;
  record.groups[0].k_head_dim = 4;
  record.groups[0].v_head_dim = 6;
  record.groups[0].block_tokens = 5;
  record.groups[0].dtype = KvDtype::kFloat16;
  return record;
}

class KvLayoutKinds : public ::testing::TestWithParam<KvLayoutKind> {};

INSTANTIATE_TEST_SUITE_P(All, KvLayoutKinds,
                         ::testing::Values(KvLayoutKind::kBlockFirst, KvLayoutKind::kInterleaved));

TEST_P(KvLayoutKinds, ElementsFillTheBlockWithoutGapOrOverlap) {
  ModelRecord record = SmallModel();
  record.groups[0].layout = GetParam();
  const KvGroup& group = record.groups[0];
  const KvLayout layout = KvLayout::Of(group);
  ASSERT_EQ(layout.block_stride, group.BlockBytes());
  std::vector<int> touched(2 * group.BlockBytes());
  const auto touch = [&](uint64_t offset, uint64_t elements) {
    for (uint64_t i = 0; i < elements * layout.element_bytes; ++i) ++touched.at(offset + i);
  };
  for (uint32_t block = 0; block < 2; ++block) {
    for (uint32_t layer = 0; layer < group.layers; ++layer) {
      for (uint32_t token = 0; token < group.block_tokens; ++token) {
        for (uint32_t head = 0; head < group.kv_heads; ++head) {
          touch(layout.KeyOffset(BlockIndex{block}, layer, token, head), group.k_head_dim);
          touch(layout.ValueOffset(BlockIndex{block}, layer, token, head), group.v_head_dim);
        }
      }
    }
  }
  EXPECT_THAT(touched, ::testing::Each(1));
}

TEST(KvLayout, InterleavedAHeadsValueFollowsItsKey) {
  ModelRecord record = SmallModel();
  record.groups[0].layout = KvLayoutKind::kInterleaved;
  const KvLayout layout = KvLayout::Of(record.groups[0]);
  EXPECT_EQ(layout.v_offset, 4u * 2);
  EXPECT_EQ(layout.KeyOffset(BlockIndex{0}, 0, 1, 1), (1 * 2 + 1) * (4 + 6) * 2u);
  EXPECT_EQ(layout.ValueOffset(BlockIndex{0}, 0, 1, 1), (1 * 2 + 1) * (4 + 6) * 2u + 4 * 2);
}

TEST(KvLayout, WithoutValuesTheRowsOfALayerFollowEachOther) {
  ModelRecord record = SmallModel();
  record.groups[0].kv_heads = 1;
  record.groups[0].v_head_dim = 0;
  const KvLayout layout = KvLayout::Of(record.groups[0]);
  EXPECT_EQ(layout.layer_stride, record.groups[0].block_tokens * layout.k_token_stride);
  EXPECT_EQ(layout.block_stride, record.groups[0].layers * layout.layer_stride);
  EXPECT_EQ(layout.v_head_stride, 0u);
}

TEST(KvLayout, OfAnOpaqueGroupOnlyTheSizesAreKnown) {
  const KvLayout layout = KvLayout::Of({.layers = 3, .block_tokens = 32, .layer_bytes = 1000});
  EXPECT_EQ(layout.layer_stride, 1000u);
  EXPECT_EQ(layout.block_stride, 3000u);
  EXPECT_EQ(layout.block_tokens, 32u);
  EXPECT_EQ(layout.k_token_stride, 0u);
  EXPECT_EQ(layout.element_bytes, 0u);
}

TEST(KvLayout, OneLayersSliceIsContiguousAndKComesFirst) {
  const KvLayout layout = KvLayout::Of(SmallModel().groups[0]);
  EXPECT_EQ(layout.KeyOffset(BlockIndex{1}, 2, 0, 0),
            layout.block_stride + 2 * layout.layer_stride);
  EXPECT_EQ(layout.ValueOffset(BlockIndex{0}, 0, 0, 0), 5u * 2 * 4 * 2);
  EXPECT_EQ(layout.KeyOffset(BlockIndex{0}, 0, 1, 1), (1 * 2 + 1) * 4 * 2u);
}

TEST(KvLayout, OffsetsBeyondFourGigabytesAreExact) {
  const KvLayout layout = KvLayout::Of(SmallModel().groups[0]);
  EXPECT_EQ(layout.KeyOffset(BlockIndex{4000000000}, 0, 0, 0), 4000000000 * layout.block_stride);
}

}  // namespace
}  // namespace kvtier
