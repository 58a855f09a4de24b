// SPDX-License-Identifier: Apache-2.0
// Requests as they are traced: each begins and ends once, under the name that people know.

#include <gtest/gtest.h>

#include "tests/unit/daemon/server_under_test.h"
#include "tests/unit/daemon/verbs.h"
#include "tests/unit/daemon/wire_client.h"

namespace kvtier {
namespace {

using enum wire::MessageType;

constexpr uint64_t kWorkspaceBytes = 64 * kKiB;

TEST(SessionTrace, ACountedAcquireIsAnAcquireAndEndsOnce) {
  ServerUnderTest daemon;
  WireClient client(daemon.socket());
  client.Send(wire::Hello{.features = wire::kFeatureLoadCounters, .client_name = "test"});
  ASSERT_TRUE(client.Receive());
  const auto model = client.Call<wire::RegisterModelReply>(wire::RegisterModel{TestModel()});
  client.Send(wire::Attach{.model = model.model});
  const auto attached = client.Receive();
  ASSERT_TRUE(attached && attached->Is(kAttachReply));
  const PoolId pool = wire::AttachReply::Decode(attached->payload).value().pool;
  const std::vector<BlockHash> hashes = Hashes(0, 3);
  (void)client.Call<wire::AcquireCountedReply>(
      wire::AcquireCounted{.acquire = {.pool = pool, .new_blocks = 2, .hashes = hashes}});
  const auto begun = daemon.Traced(kAcquire, TracePhase::kBegin);
  ASSERT_EQ(begun.size(), 1u);
  EXPECT_EQ(begun[0].blocks[0], 3u);
  EXPECT_EQ(begun[0].blocks[1], 2u);
  EXPECT_EQ(daemon.Traced(kAcquire, TracePhase::kEnd).size(), 1u);
  EXPECT_TRUE(daemon.Traced(kAcquireCounted, TracePhase::kBegin).empty());
  EXPECT_TRUE(daemon.Traced(kAcquireCounted, TracePhase::kEnd).empty());
}

TEST(SessionTrace, AnAttendWithScalesIsAnAttendAndEndsOnce) {
  ServerUnderTest daemon;
  WireClient client(daemon.socket());
  const PoolId pool = client.Attach().pool;
  client.Send(wire::Workspace{pool, 0, kWorkspaceBytes});
  ASSERT_TRUE(client.Receive());
  wire::Attend attend;
  attend.pool = pool;
  attend.q_heads = 4;
  attend.softmax_scale = 0.125F;
  attend.output_offset = 16 * kKiB;
  attend.sequences = {{.query_tokens = 1, .kv_tokens = 32}};
  attend.blocks = Fill(&client, pool, Hashes(0, 2));
  (void)client.Call<wire::AttendReply>(wire::AttendScaled{attend, {}, {}});
  // Refused: no cache but fp8 has scales.
  EXPECT_EQ(client.ErrorOf(wire::AttendScaled{attend, {0.5F}, {}}), "bad_scale_count");
  const auto begun = daemon.Traced(kAttend, TracePhase::kBegin);
  ASSERT_EQ(begun.size(), 2u);
  EXPECT_EQ(begun[0].blocks[0], 2u);
  const auto ended = daemon.Traced(kAttend, TracePhase::kEnd);
  ASSERT_EQ(ended.size(), 2u);
  EXPECT_FALSE(ended[0].failed);
  EXPECT_TRUE(ended[1].failed);
  EXPECT_TRUE(daemon.Traced(kAttendScaled, TracePhase::kBegin).empty());
}

}  // namespace
}  // namespace kvtier
