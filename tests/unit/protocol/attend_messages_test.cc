// SPDX-License-Identifier: Apache-2.0
#include "protocol/attend_messages.h"

#include <gtest/gtest.h>

#include <limits>

#include "protocol/frame.h"
#include "tests/unit/protocol/payload.h"

namespace kvtier::wire {
namespace {

TEST(WorkspaceClose, NumberIsBounded) {
  EXPECT_EQ(ReasonFor(WorkspaceClose{kMaxWorkspaces - 1}), "");
  EXPECT_EQ(ReasonFor(WorkspaceClose{kMaxWorkspaces}), "bad_workspace");
}

TEST(Workspace, SizeAndNumberAreBounded) {
  EXPECT_EQ(ReasonFor(Workspace{PoolId{1}, kMaxWorkspaces - 1, kMaxWorkspaceBytes}), "");
  EXPECT_EQ(ReasonFor(Workspace{PoolId{1}, kMaxWorkspaces, 1}), "bad_workspace");
  EXPECT_EQ(ReasonFor(Workspace{PoolId{1}, 0, 0}), "bad_workspace");
  EXPECT_EQ(ReasonFor(Workspace{PoolId{1}, 0, kMaxWorkspaceBytes + 1}), "bad_workspace");
}

TEST(Attend, LargestCallFitsAFrame) {
  Attend attend;
  attend.sequences.resize(kMaxAttendSequences);
  attend.blocks.resize(kMaxBlocksPerCall);
  const std::vector<std::byte> payload = PayloadOf(attend);
  EXPECT_LE(payload.size() + kFrameHeaderBytes, kMaxFrameBytes);
  const auto decoded = Decode<Attend>(payload);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->blocks.size(), kMaxBlocksPerCall);
}

TEST(Attend, ScalesThatAreNoNumbersAreRefused) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float scale : {0.0F, -1.0F, kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    Attend attend;
    attend.softmax_scale = scale;
    EXPECT_EQ(ReasonFor(attend), "bad_scale") << scale;
  }
  for (const float cap : {-0.0F, -1.0F, kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    Attend attend;
    attend.soft_cap = cap;
    EXPECT_EQ(ReasonFor(attend), "bad_scale") << cap;
  }
}

TEST(Attend, ScalesOfACacheAreNumbersAboveZero) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  Attend attend;
  attend.key_scales = {0.5F};
  attend.value_scales = {1e-30F, 3.0F};
  EXPECT_EQ(ReasonFor(attend), "");
  for (const float scale : {0.0F, -1.0F, kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    Attend keys, values;
    keys.key_scales = {1.0F, scale};
    values.value_scales = {scale};
    EXPECT_EQ(ReasonFor(keys), "bad_scale") << scale;
    EXPECT_EQ(ReasonFor(values), "bad_scale") << scale;
  }
}

TEST(Attend, LargestCallWithScalesFitsAFrame) {
  Attend attend;
  attend.sequences.resize(kMaxAttendSequences);
  attend.blocks.resize(kMaxBlocksPerCall);
  attend.key_scales.assign(kMaxAttendScales, 1.0F);
  attend.value_scales.assign(kMaxAttendScales, 2.0F);
  const std::vector<std::byte> payload = PayloadOf(attend);
  EXPECT_LE(payload.size() + kFrameHeaderBytes, kMaxFrameBytes);
  const auto decoded = Decode<Attend>(payload);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->value_scales, attend.value_scales);
}

TEST(Attend, MoreScalesThanHeadsCanBeAreRefused) {
  std::vector<std::byte> payload = PayloadOf(Attend{});
  payload[payload.size() - 4 + 1] = std::byte{5};  // 1,280 scales of values
  EXPECT_EQ(Decode<Attend>(payload).error().reason, "too_many_scales");
  payload[payload.size() - 4 + 1] = std::byte{1};
  EXPECT_EQ(Decode<Attend>(payload).error().reason, "truncated_message");
}

TEST(Attend, QueriesOfAnUnsupportedTypeAreRefused) {
  Attend attend;
  attend.query_dtype = KvDtype::kFloat8E4m3;
  EXPECT_EQ(ReasonFor(attend), "bad_enum");
}

TEST(Attend, ClaimedItemsAreComparedWithWhatIsThere) {
  Attend attend;
  attend.sequences = {{1, 16}};
  std::vector<std::byte> payload = PayloadOf(attend);
  // The counts stand before a sequence of 8 bytes, and at the end those of blocks and scales.
  payload[payload.size() - 12] = std::byte{1};
  EXPECT_EQ(Decode<Attend>(payload).error().reason, "truncated_message");
  payload[payload.size() - 12] = std::byte{0};
  payload[payload.size() - 24 + 2] = std::byte{1};  // 65,537 sequences
  EXPECT_EQ(Decode<Attend>(payload).error().reason, "too_many_sequences");
}

}  // namespace
}  // namespace kvtier::wire
