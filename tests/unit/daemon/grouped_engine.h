// SPDX-License-Identifier: Apache-2.0
// A model of three groups, and an engine that has attached their pools.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tests/unit/daemon/verbs.h"
#include "tests/unit/daemon/wire_client.h"

namespace kvtier {

inline constexpr uint32_t kBlockTokens = 16;
inline constexpr uint64_t kPoolBytes = 16 * 4096;

// Full attention, a window of two blocks and a state that can be kept every two blocks, all in
// blocks of 4 KiB.
[[nodiscard]] inline ModelRecord GroupedModel() {
  ModelRecord record = TestModel();
  KvGroup window = record.groups[0];
  window.hit_rule = HitRule::kTrailing;
  window.window_tokens = 2 * kBlockTokens;
  const KvGroup state{.hit_rule = HitRule::kState,
                      .layers = 1,
                      .block_tokens = 2 * kBlockTokens,
                      .layer_bytes = 4096};
  record.groups.push_back(window);
  record.groups.push_back(state);
  return record;
}

// The pools of the three groups, as one session has attached them.
struct GroupedEngine {
  explicit GroupedEngine(const std::string& socket, const ModelRecord& record = GroupedModel())
      : client(socket) {
    (void)client.Hello();
    model = client.Call<wire::RegisterModelReply>(wire::RegisterModel{record}).model;
    for (uint32_t group = 0; group < record.groups.size(); ++group) {
      client.Send(wire::Attach{.model = model, .group = group, .pool_bytes = kPoolBytes});
      pools.push_back(
          wire::Decode<wire::AttachReply>(client.Receive().value().payload).value().pool);
    }
  }

  // Commits blocks [first, first + count) of sequence 1 and releases them.
  void Cache(uint32_t group, uint32_t first, uint32_t count) {
    std::vector<BlockHash> hashes = Hashes(1 + first, count);
    const auto blocks = Acquire(&client, pools[group], {}, count).new_blocks;
    ASSERT_EQ(blocks.size(), count);
    wire::Commit commit = CommitOf(pools[group], blocks, hashes);
    for (auto& item : commit.items) item.tokens = GroupedModel().groups[group].block_tokens;
    client.Send(commit, /*want_reply=*/true);
    EXPECT_TRUE(client.Expect<wire::CommitReply>().items.empty());
    client.Send(wire::Release{pools[group], blocks}, /*want_reply=*/true);
    EXPECT_TRUE(client.Expect<wire::ReleaseReply>().errors.empty());
  }
  wire::Acquire AcquireOf(std::span<const BlockHash> hashes) const {
    return {.parts = {{.pool = pools[0], .new_blocks = 1, .hashes = hashes},
                      {.pool = pools[1], .new_blocks = 2, .hashes = hashes},
                      {.pool = pools[2], .hashes = hashes.first(hashes.size() / 2)}}};
  }
  // The tiers that hold the blocks of a group.
  std::vector<uint8_t> LookUp(uint32_t group, std::span<const BlockHash> hashes) {
    return client.Call<wire::LookupReply>(wire::Lookup{pools[group], hashes}).presence;
  }

  WireClient client;
  wire::ModelId model;
  std::vector<PoolId> pools;
};

}  // namespace kvtier
