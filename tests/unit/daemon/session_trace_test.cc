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

TEST(SessionTrace, AnAcquireEndsOnce) {
  ServerUnderTest daemon;
  WireClient client(daemon.socket());
  const PoolId pool = client.Attach().pool;
  const std::vector<BlockHash> hashes = Hashes(0, 3);
  (void)Acquire(&client, pool, hashes, 2);
  const auto begun = daemon.Traced(kAcquire, TracePhase::kBegin);
  ASSERT_EQ(begun.size(), 1u);
  EXPECT_EQ(begun[0].blocks[0], 3u);
  EXPECT_EQ(begun[0].blocks[1], 2u);
  EXPECT_EQ(daemon.Traced(kAcquire, TracePhase::kEnd).size(), 1u);
}

TEST(SessionTrace, AnAttendEndsOnceWhetherItIsRefusedOrNot) {
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
  (void)client.Call<wire::AttendReply>(attend);
  // Refused: no cache but fp8 has scales.
  attend.key_scales = {0.5F};
  EXPECT_EQ(client.ErrorOf(attend), "bad_scale_count");
  const auto begun = daemon.Traced(kAttend, TracePhase::kBegin);
  ASSERT_EQ(begun.size(), 2u);
  EXPECT_EQ(begun[0].blocks[0], 2u);
  const auto ended = daemon.Traced(kAttend, TracePhase::kEnd);
  ASSERT_EQ(ended.size(), 2u);
  EXPECT_FALSE(ended[0].failed);
  EXPECT_TRUE(ended[1].failed);
}

}  // namespace
}  // namespace kvtier
