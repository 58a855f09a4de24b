// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/daemon/verbs.h"

#include <gtest/gtest.h>

namespace kvtier {

std::vector<BlockHash> Hashes(uint64_t first, uint32_t count) {
  std::vector<BlockHash> hashes;
  for (uint32_t i = 0; i < count; ++i) hashes.push_back(TestHash(first + i));
  return hashes;
}

wire::AcquireReply::Part Acquire(WireClient* client, PoolId pool,
                                 const std::vector<BlockHash>& hashes, uint32_t new_blocks) {
  const auto reply = client->Call<wire::AcquireReply>(
      wire::Acquire{.parts = {{.pool = pool, .new_blocks = new_blocks, .hashes = hashes}}});
  return reply.parts.at(0);
}

wire::Commit CommitOf(PoolId pool, const std::vector<BlockHandle>& blocks,
                      const std::vector<BlockHash>& hashes) {
  wire::Commit commit{.pool = pool};
  for (uint32_t i = 0; i < blocks.size(); ++i) {
    commit.items.push_back({.block = blocks[i], .hash = hashes[i], .tokens = 16, .depth = i});
    if (i > 0) commit.items.back().parent = hashes[i - 1];
  }
  return commit;
}

std::vector<BlockHandle> Fill(WireClient* client, PoolId pool,
                              const std::vector<BlockHash>& hashes) {
  const auto acquired = Acquire(client, pool, {}, static_cast<uint32_t>(hashes.size()));
  EXPECT_EQ(acquired.new_blocks.size(), hashes.size());
  client->Send(CommitOf(pool, acquired.new_blocks, hashes), /*want_reply=*/true);
  EXPECT_TRUE(client->Expect<wire::CommitReply>().items.empty());
  return acquired.new_blocks;
}

}  // namespace kvtier
