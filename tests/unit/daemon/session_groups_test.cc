// SPDX-License-Identifier: Apache-2.0
// Models whose layers form groups, over a real socket, on a real cache.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/unit/daemon/grouped_engine.h"
#include "tests/unit/daemon/server_under_test.h"
#include "tests/unit/daemon/verbs.h"
#include "tests/unit/daemon/wire_client.h"

namespace kvtier {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;

class SessionGroups : public testing::Test {
 protected:
  using Engine = GroupedEngine;

  ServerUnderTest daemon_;
};

TEST_F(SessionGroups, EveryGroupHasAPoolOfItsOwn) {
  Engine engine(daemon_.socket());
  EXPECT_NE(engine.pools[0], engine.pools[1]);
  EXPECT_NE(engine.pools[1], engine.pools[2]);
  EXPECT_EQ(engine.client.ErrorOf(wire::Attach{.model = engine.model, .group = 3}),
            "unknown_group");
}

TEST_F(SessionGroups, PoolsLeftToTheDaemonShareWhatIsLeft) {
  WireClient client(daemon_.socket());
  (void)client.Hello();
  const auto model =
      client.Call<wire::RegisterModelReply>(wire::RegisterModel{GroupedModel()}).model;
  std::vector<uint64_t> blocks;
  for (uint32_t group = 0; group < 3; ++group) {
    client.Send(wire::Attach{.model = model, .group = group});
    const auto received = client.Receive();
    ASSERT_TRUE(received && received->Is(wire::MessageType::kAttachReply)) << group;
    blocks.push_back(wire::Decode<wire::AttachReply>(received->payload)->blocks);
  }
  EXPECT_THAT(blocks, ElementsAre(21, 21, 22));
}

TEST_F(SessionGroups, AnAcquireTakesWhatThePrefixNeedsOfEachGroup) {
  Engine engine(daemon_.socket());
  engine.Cache(0, 0, 6);
  engine.Cache(1, 2, 4);
  engine.Cache(2, 1, 1);  // the state after four blocks
  const std::vector<BlockHash> hashes = Hashes(1, 6);
  const auto reply = engine.client.Call<wire::AcquireReply>(engine.AcquireOf(hashes));
  ASSERT_EQ(reply.parts.size(), 3u);
  EXPECT_EQ(reply.parts[0].first_hit, 0u);
  EXPECT_EQ(reply.parts[0].hits.size(), 4u);
  EXPECT_EQ(reply.parts[1].first_hit, 2u);
  EXPECT_EQ(reply.parts[1].hits.size(), 2u);
  EXPECT_EQ(reply.parts[2].first_hit, 1u);
  EXPECT_EQ(reply.parts[2].hits.size(), 1u);
  EXPECT_EQ(reply.parts[0].miss, MissReason::kUnknown);
  EXPECT_EQ(reply.parts[0].new_blocks.size(), 1u);
  EXPECT_EQ(reply.parts[1].new_blocks.size(), 2u);
}

TEST_F(SessionGroups, WithoutACommonPrefixNoGroupGivesAnything) {
  Engine engine(daemon_.socket());
  engine.Cache(0, 0, 6);
  engine.Cache(1, 0, 6);  // no state was kept
  const std::vector<BlockHash> hashes = Hashes(1, 6);
  const auto reply = engine.client.Call<wire::AcquireReply>(engine.AcquireOf(hashes));
  for (const auto& part : reply.parts) EXPECT_THAT(part.hits, IsEmpty());
  const auto stats = engine.client.Call<wire::StatsReply>(wire::Stats{});
  EXPECT_EQ(stats.session_references, 3u);  // the new blocks
}

TEST_F(SessionGroups, ARefusedGroupGivesBackWhatTheOthersGot) {
  Engine engine(daemon_.socket());
  const std::vector<BlockHash> hashes = Hashes(1, 4);
  engine.Cache(0, 0, 4);
  engine.Cache(1, 0, 4);
  engine.Cache(2, 0, 2);
  wire::Acquire acquire = engine.AcquireOf(hashes);
  acquire.parts[2].new_blocks = 17;  // its pool has 16 blocks
  EXPECT_EQ(engine.client.ErrorOf(acquire), "pool_full");
  EXPECT_EQ(engine.client.Call<wire::StatsReply>(wire::Stats{}).session_references, 0u);
  // Nothing is held: all of the first pool can be had.
  EXPECT_EQ(Acquire(&engine.client, engine.pools[0], {}, 16).new_blocks.size(), 16u);
}

TEST_F(SessionGroups, HashesAreAskedOfAllGroupsOrOfNone) {
  Engine engine(daemon_.socket());
  const std::vector<BlockHash> hashes = Hashes(1, 4);
  wire::Acquire acquire = engine.AcquireOf(hashes);
  acquire.parts.pop_back();
  EXPECT_EQ(engine.client.ErrorOf(acquire), "group_missing");
  acquire = engine.AcquireOf(hashes);
  acquire.parts[1].pool = acquire.parts[0].pool;
  EXPECT_EQ(engine.client.ErrorOf(acquire), "group_twice");
  // Partial blocks belong to models of one group.
  acquire = engine.AcquireOf(hashes);
  acquire.parts[0].partial_blocks = hashes;
  EXPECT_EQ(engine.client.ErrorOf(acquire), "partial_blocks");
  // New blocks alone may be those of one group.
  EXPECT_EQ(Acquire(&engine.client, engine.pools[1], {}, 2).new_blocks.size(), 2u);
}

TEST_F(SessionGroups, ALookupTellsTheTiersOfOneGroup) {
  Engine engine(daemon_.socket());
  engine.Cache(1, 2, 2);
  EXPECT_THAT(engine.LookUp(1, Hashes(1, 5)),
              ElementsAre(0, 0, wire::kPresentInPool, wire::kPresentInPool, 0));
  EXPECT_THAT(engine.LookUp(0, Hashes(1, 5)), Each(0));
}

TEST_F(SessionGroups, WhatLiesBehindAWindowIsEvictedFirst) {
  {
    Engine engine(daemon_.socket());
    Fill(&engine.client, engine.pools[1], Hashes(1, 4));
    // The session ends with its references: they leave in the order of eviction.
  }
  Engine other(daemon_.socket());
  // Its pool has 16 blocks, so that two of the four have to go.
  ASSERT_EQ(Acquire(&other.client, other.pools[1], {}, 14).new_blocks.size(), 14u);
  const std::vector<uint8_t> presence = other.LookUp(1, Hashes(1, 4));
  EXPECT_FALSE(presence[0] & wire::kPresentInPool);
  EXPECT_FALSE(presence[1] & wire::kPresentInPool);
  EXPECT_TRUE(presence[2] & wire::kPresentInPool);
  EXPECT_TRUE(presence[3] & wire::kPresentInPool);
}

TEST_F(SessionGroups, BlocksBeyondTheCommonPrefixCountAsMisses) {
  Engine engine(daemon_.socket());
  engine.Cache(0, 0, 4);
  engine.Cache(1, 0, 4);
  engine.Cache(2, 0, 1);
  const std::vector<BlockHash> hashes = Hashes(1, 4);
  (void)engine.client.Call<wire::AcquireReply>(engine.AcquireOf(hashes));
  const auto stats = engine.client.Call<wire::StatsReply>(wire::Stats{});
  // Two blocks, two blocks and one state are served; of four, full attention lacks two.
  EXPECT_EQ(stats.blocks_pool, 5u);
  EXPECT_EQ(stats.blocks_miss, 2u);
  EXPECT_EQ(stats.blocks_asked, 7u);
}

TEST_F(SessionGroups, APositionBeyondAllSequencesIsRefused) {
  Engine engine(daemon_.socket());
  const auto blocks = Acquire(&engine.client, engine.pools[1], {}, 1).new_blocks;
  wire::Commit commit = CommitOf(engine.pools[1], blocks, Hashes(1, 1));
  commit.items[0].depth = 1u << 31;
  engine.client.Send(commit, /*want_reply=*/true);
  const auto reply = engine.client.Expect<wire::CommitReply>();
  ASSERT_EQ(reply.items.size(), 1u);
  EXPECT_EQ(reply.items[0].reason, "bad_depth");
}

// --- ranks ---

ModelRecord RankOf(uint32_t rank) {
  ModelRecord record = TestModel();
  record.tensor_parallel_size = 2;
  record.tensor_parallel_rank = rank;
  return record;
}

TEST_F(SessionGroups, ARankThatEndsTakesNoOthersBlocksAlong) {
  Engine first(daemon_.socket(), RankOf(0));
  first.Cache(0, 0, 4);
  {
    Engine second(daemon_.socket(), RankOf(1));
    second.Cache(0, 0, 3);
    EXPECT_THAT(second.LookUp(0, Hashes(1, 4)),
                ElementsAre(wire::kPresentInPool, wire::kPresentInPool, wire::kPresentInPool, 0));
  }
  EXPECT_THAT(first.LookUp(0, Hashes(1, 4)), Each(wire::kPresentInPool));
}

TEST_F(SessionGroups, AReplicatedGroupIsStoredOnceForAllRanks) {
  ModelRecord first_record = RankOf(0), second_record = RankOf(1);
  first_record.groups[0].replicated = second_record.groups[0].replicated = true;
  Engine first(daemon_.socket(), first_record);
  Engine second(daemon_.socket(), second_record);
  EXPECT_EQ(first.pools[0], second.pools[0]);
  first.Cache(0, 0, 4);
  EXPECT_EQ(Acquire(&second.client, second.pools[0], Hashes(1, 4), 0).hits.size(), 4u);
}

}  // namespace
}  // namespace kvtier
