// SPDX-License-Identifier: Apache-2.0
// A client's possible mistakes with block handles.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "tests/unit/daemon/server_under_test.h"
#include "tests/unit/daemon/verbs.h"
#include "tests/unit/daemon/wire_client.h"

namespace kvtier {
namespace {

class HandleErrors : public testing::Test {
 protected:
  HandleErrors() : client_(daemon_.socket()), other_(daemon_.socket()) {
    pool_ = client_.Attach().pool;
    (void)other_.Attach();
  }

  // The reason for which the commit of `block` fails, "" if it does not.
  std::string CommitError(WireClient* client, BlockHandle block, uint64_t hash,
                          uint16_t tokens = 16) {
    wire::Commit commit{.pool = pool_};
    commit.items.push_back({.block = block, .hash = TestHash(hash), .tokens = tokens});
    client->Send(commit, /*want_reply=*/true);
    const auto reply = client->Expect<wire::CommitReply>();
    if (reply.items.empty()) return "";
    EXPECT_EQ(reply.items[0].outcome, wire::CommitOutcome::kFailed);
    return reply.items[0].reason;
  }

  std::string ReleaseError(WireClient* client, BlockHandle block) {
    client->Send(wire::Release{.pool = pool_, .blocks = {block}}, /*want_reply=*/true);
    const auto reply = client->Expect<wire::ReleaseReply>();
    return reply.errors.empty() ? "" : reply.errors[0].reason;
  }

  BlockHandle NewBlock(WireClient* client) {
    return Acquire(client, pool_, {}, 1).new_blocks.at(0);
  }

  ServerUnderTest daemon_;
  WireClient client_;
  WireClient other_;
  PoolId pool_;
};

TEST_F(HandleErrors, HandleOutsideThePool) {
  const BlockHandle nowhere{BlockIndex(1'000'000), 1};
  EXPECT_EQ(CommitError(&client_, nowhere, 1), "stale_generation");
  EXPECT_EQ(ReleaseError(&client_, nowhere), "stale_generation");
  EXPECT_EQ(ReleaseError(&client_, {kNoBlock, 0}), "stale_generation");
}

TEST_F(HandleErrors, StaleGeneration) {
  const BlockHandle block = NewBlock(&client_);
  EXPECT_EQ(ReleaseError(&client_, block), "");
  EXPECT_EQ(CommitError(&client_, block, 1), "stale_generation");
  const BlockHandle older{block.index, block.generation - 1};
  EXPECT_EQ(ReleaseError(&client_, older), "stale_generation");
}

TEST_F(HandleErrors, DoubleRelease) {
  const BlockHandle allocated = NewBlock(&client_);
  EXPECT_EQ(ReleaseError(&client_, allocated), "");
  EXPECT_EQ(ReleaseError(&client_, allocated), "stale_generation");

  const BlockHandle committed = Fill(&client_, pool_, Hashes(1, 1))[0];
  EXPECT_EQ(ReleaseError(&client_, committed), "");
  EXPECT_EQ(ReleaseError(&client_, committed), "not_held");
}

TEST_F(HandleErrors, DoubleReleaseInOneCallNamesThePosition) {
  const BlockHandle block = Fill(&client_, pool_, Hashes(1, 1))[0];
  client_.Send(wire::Release{.pool = pool_, .blocks = {block, block}}, /*want_reply=*/false);
  const auto reply = client_.Expect<wire::ReleaseReply>();
  ASSERT_EQ(reply.errors.size(), 1u);
  EXPECT_EQ(reply.errors[0].position, 1u);
}

TEST_F(HandleErrors, DoubleCommit) {
  const BlockHandle block = NewBlock(&client_);
  EXPECT_EQ(CommitError(&client_, block, 1), "");
  EXPECT_EQ(CommitError(&client_, block, 2), "not_private");
}

TEST_F(HandleErrors, CommitOfABlockOneDoesNotOwn) {
  const BlockHandle block = NewBlock(&other_);
  EXPECT_EQ(CommitError(&client_, block, 1), "foreign_block");
  // Its owner still can.
  EXPECT_EQ(CommitError(&other_, block, 1), "");
}

TEST_F(HandleErrors, ReleaseOfABlockOneDoesNotHold) {
  const BlockHandle allocated = NewBlock(&other_);
  EXPECT_EQ(ReleaseError(&client_, allocated), "not_held");
  const BlockHandle committed = Fill(&other_, pool_, Hashes(1, 1))[0];
  EXPECT_EQ(ReleaseError(&client_, committed), "not_held");
  EXPECT_EQ(ReleaseError(&other_, committed), "");
}

TEST_F(HandleErrors, MoreTokensThanABlockHasOrNone) {
  const BlockHandle block = NewBlock(&client_);
  EXPECT_EQ(CommitError(&client_, block, 1, 0), "bad_token_count");
  EXPECT_EQ(CommitError(&client_, block, 1, 17), "bad_token_count");
  EXPECT_EQ(CommitError(&client_, block, 1, 16), "");
}

TEST_F(HandleErrors, OneBadItemDoesNotHarmTheOthers) {
  const auto allocated = Acquire(&client_, pool_, {}, 3).new_blocks;
  wire::Commit commit = CommitOf(pool_, allocated, Hashes(1, 3));
  commit.items[1].block.generation += 1;
  client_.Send(commit, /*want_reply=*/false);
  const auto reply = client_.Expect<wire::CommitReply>();
  ASSERT_EQ(reply.items.size(), 1u);
  EXPECT_EQ(reply.items[0].position, 1u);
  EXPECT_EQ(Acquire(&other_, pool_, Hashes(1, 3), 0).hits.size(), 1u);
  EXPECT_EQ(daemon_.Refusals("stale_generation"), 1u);
}

TEST_F(HandleErrors, ReferencesOfOneSessionAreLimited) {
  ServerUnderTest daemon([](Config* config) { config->cache.max_references_per_session = 8; });
  WireClient client(daemon.socket());
  const PoolId pool = client.Attach().pool;
  WireClient second(daemon.socket());
  EXPECT_EQ(second.Attach().pool, pool);
  const auto hashes = Hashes(0, 9);
  (void)Fill(&client, pool, Hashes(100, 4));
  (void)Fill(&second, pool, Hashes(0, 5));
  EXPECT_EQ(client.ErrorOf(wire::Acquire{.parts = {{.pool = pool, .hashes = hashes}}}),
            "session_references");
  // Only that session's acquires fail; and it gets the blocks that it may still hold.
  EXPECT_EQ(Acquire(&second, pool, Hashes(100, 3), 0).hits.size(), 3u);
  EXPECT_EQ(Acquire(&client, pool, Hashes(0, 4), 0).hits.size(), 4u);
}

// The most by which `count` rises in one event of the loop while `run` has it handle requests.
uint64_t MostInAnEvent(ServerUnderTest* daemon, std::function<uint64_t()> count,
                       const std::function<void()>& run) {
  struct Watch {
    std::optional<uint64_t> seen;
    uint64_t most = 0;
    bool ended = false;
  };
  const auto watch = std::make_shared<Watch>();
  const auto look = std::make_shared<std::function<void()>>();
  *look = [daemon, count = std::move(count), watch, look] {
    const uint64_t now = count();
    watch->most = std::max(watch->most, now - watch->seen.value_or(now));
    watch->seen = now;
    if (!watch->ended) daemon->Post(*look);
  };
  daemon->OnLoop([&] { (*look)(); });
  run();
  uint64_t most = 0;
  daemon->OnLoop([&] {
    most = watch->most;
    watch->ended = true;
    *look = nullptr;
  });
  return most;
}

// A long request is worked on in turns, so that one client cannot hold the loop with it.
TEST_F(HandleErrors, AnEventOfTheLoopWorksOnABoundedNumberOfItems) {
  constexpr size_t kBlocks = 16'384;
  const auto refused = [this] {
    return daemon_.counters().refusals_by_code.at(static_cast<size_t>(ErrorCode::kStaleHandle) - 1);
  };
  const uint64_t most = MostInAnEvent(&daemon_, refused, [&] {
    wire::Release release{.pool = pool_};
    release.blocks.resize(kBlocks, {BlockIndex(1'000'000), 1});
    client_.Send(release, /*want_reply=*/true);
    EXPECT_EQ(client_.Expect<wire::ReleaseReply>().errors.size(), kBlocks);
    wire::Commit commit{.pool = pool_};
    commit.items.resize(8192, {.block = {BlockIndex(1'000'000), 1}, .tokens = 16});
    client_.Send(commit, /*want_reply=*/true);
    EXPECT_EQ(client_.Expect<wire::CommitReply>().items.size(), 8192u);
  });
  EXPECT_LE(most, 2u * kTurnPrice);
  daemon_.OnLoop([&] { EXPECT_EQ(refused(), kBlocks + 8192); });
}

// Sixty-four would be one by their bytes.
TEST_F(HandleErrors, AnEventOfTheLoopAnswersAFewAttaches) {
  constexpr uint32_t kAttaches = 64;
  const auto requests = [this] { return daemon_.counters().requests; };
  const uint64_t most = MostInAnEvent(&daemon_, requests, [&] {
    // On the loop, so that all have come when it turns to the first.
    daemon_.OnLoop([&] {
      for (uint32_t i = 0; i < kAttaches; ++i)
        client_.Send(wire::Attach{.model = wire::ModelId(1)});
    });
    for (uint32_t i = 0; i < kAttaches; ++i) (void)client_.Receive();
  });
  EXPECT_GT(most, 1u);
  EXPECT_LE(most, kAttaches / 2);
}

TEST_F(HandleErrors, APositionInALongRequestIsCountedFromItsBeginning) {
  wire::Release release{.pool = pool_};
  release.blocks.resize(2000, {BlockIndex(1'000'000), 1});
  client_.Send(release, /*want_reply=*/true);
  const auto reply = client_.Expect<wire::ReleaseReply>();
  ASSERT_EQ(reply.errors.size(), 2000u);
  for (uint32_t i = 0; i < 2000; ++i) EXPECT_EQ(reply.errors[i].position, i);
}

}  // namespace
}  // namespace kvtier
