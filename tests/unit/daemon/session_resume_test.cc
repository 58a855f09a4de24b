// SPDX-License-Identifier: Apache-2.0
// RESUME by clients that have nothing to take back.
#include <gtest/gtest.h>

#include "tests/unit/daemon/server_under_test.h"
#include "tests/unit/daemon/verbs.h"
#include "tests/unit/daemon/wire_client.h"

namespace kvtier {
namespace {

TEST(SessionResume, ADaemonWhosePoolsEndWithItGivesNoSecret) {
  ServerUnderTest daemon;
  WireClient client(daemon.socket());
  EXPECT_EQ(client.Hello().secret, Digest128{});
}

TEST(SessionResume, ASessionThatWasNotThereIsNotResumed) {
  ServerUnderTest daemon;
  WireClient client(daemon.socket());
  const PoolId pool = client.Attach().pool;
  const std::vector<BlockHandle> held = Fill(&client, pool, Hashes(0, 2));
  WireClient other(daemon.socket());
  const PoolId its_pool = other.Attach().pool;
  wire::Resume resume{
      .pool = its_pool, .session = SessionId(1), .secret = {}, .claims = {{held[0], 1}}};
  EXPECT_EQ(other.ErrorOf(resume), "unknown_session");
  resume.pool = PoolId(77);
  EXPECT_EQ(other.ErrorOf(resume), "pool_not_attached");
  EXPECT_EQ(daemon.Refusals("unknown_session"), 1u);
}

}  // namespace
}  // namespace kvtier
