// SPDX-License-Identifier: Apache-2.0
#include "protocol/attend_messages.h"

#include <gtest/gtest.h>

#include <limits>

#include "protocol/frame.h"

namespace kvtier::wire {
namespace {

template <typename Message>
std::vector<std::byte> PayloadOf(const Message& message) {
  std::vector<std::byte> frame;
  message.Encode(1, &frame);
  return {frame.begin() + kFrameHeaderBytes, frame.end()};
}

template <typename Message>
std::string ReasonFor(const Message& message) {
  const auto decoded = Message::Decode(PayloadOf(message));
  return decoded ? "" : decoded.error().reason;
}

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
  const auto decoded = Attend::Decode(payload);
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

TEST(AttendScaled, ScalesOfACacheAreNumbersAboveZero) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(ReasonFor(AttendScaled{{}, {0.5F}, {1e-30F, 3.0F}}), "");
  for (const float scale : {0.0F, -1.0F, kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_EQ(ReasonFor(AttendScaled{{}, {1.0F, scale}, {}}), "bad_scale") << scale;
    EXPECT_EQ(ReasonFor(AttendScaled{{}, {}, {scale}}), "bad_scale") << scale;
  }
}

TEST(AttendScaled, LargestCallFitsAFrame) {
  AttendScaled scaled;
  scaled.attend.sequences.resize(kMaxAttendSequences);
  scaled.attend.blocks.resize(kMaxBlocksPerCall);
  scaled.key_scales.assign(kMaxAttendScales, 1.0F);
  scaled.value_scales.assign(kMaxAttendScales, 2.0F);
  const std::vector<std::byte> payload = PayloadOf(scaled);
  EXPECT_LE(payload.size() + kFrameHeaderBytes, kMaxFrameBytes);
  const auto decoded = AttendScaled::Decode(payload);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->value_scales, scaled.value_scales);
}

TEST(AttendScaled, MoreScalesThanHeadsCanBeAreRefused) {
  std::vector<std::byte> payload = PayloadOf(AttendScaled{{}, {}, {}});
  payload[payload.size() - 4 + 1] = std::byte{5};  // 1,280 scales of values
  EXPECT_EQ(AttendScaled::Decode(payload).error().reason, "too_many_scales");
  payload[payload.size() - 4 + 1] = std::byte{1};
  EXPECT_EQ(AttendScaled::Decode(payload).error().reason, "truncated_message");
}

TEST(Attend, QueriesOfATypeThatNobodyComputesWithAreRefused) {
  Attend attend;
  attend.query_dtype = KvDtype::kFloat8E4m3;
  EXPECT_EQ(ReasonFor(attend), "bad_enum");
}

TEST(Attend, ClaimedItemsAreComparedWithWhatIsThere) {
  Attend attend;
  attend.sequences = {{1, 16}};
  std::vector<std::byte> payload = PayloadOf(attend);
  // The counts stand before a sequence of 8 bytes and at the end.
  payload[payload.size() - 4] = std::byte{1};
  EXPECT_EQ(Attend::Decode(payload).error().reason, "truncated_message");
  payload[payload.size() - 4] = std::byte{0};
  payload[payload.size() - 16 + 2] = std::byte{1};  // 65,537 sequences
  EXPECT_EQ(Attend::Decode(payload).error().reason, "too_many_sequences");
}

}  // namespace
}  // namespace kvtier::wire
