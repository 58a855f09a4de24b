// SPDX-License-Identifier: Apache-2.0
// The main verbs over a real socket, on a real cache.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstring>
#include <memory>

#include "tests/unit/daemon/server_under_test.h"
#include "tests/unit/daemon/verbs.h"
#include "tests/unit/daemon/wire_client.h"

namespace kvtier {
namespace {

TEST(Session, HelloTellsLimitsAndTenant) {
  ServerUnderTest daemon([](Config* config) {
    config->server.max_hashes_per_call = 100;
    config->cache.max_references_per_session = 1000;
  });
  WireClient client(daemon.socket());
  const wire::HelloReply hello = client.Hello();
  EXPECT_EQ(hello.major, 1);
  EXPECT_EQ(hello.minor, 0);
  EXPECT_EQ(hello.tenant, "default");
  EXPECT_EQ(hello.max_hashes, 100u);
  EXPECT_EQ(hello.max_blocks, 100u);
  EXPECT_EQ(hello.max_references, 1000u);
  EXPECT_EQ(hello.max_frame_bytes, 1u << 20);
  EXPECT_EQ(hello.daemon_generation, 42u);
}

TEST(Session, HelloBringsTheCounterPage) {
  ServerUnderTest daemon;
  WireClient client(daemon.socket());
  client.Send(wire::Hello{.client_name = "test"});
  const auto received = client.Receive();
  ASSERT_TRUE(received && received->Is(wire::MessageType::kHelloReply));
  struct stat status {};
  ASSERT_EQ(::fstat(received->descriptor.get(), &status), 0);
  EXPECT_EQ(status.st_size, kCounterPageBytes);
}

TEST(Session, AClientOfALaterMinorVersionIsSpokenToInOurs) {
  ServerUnderTest daemon;
  WireClient client(daemon.socket());
  const auto hello = client.Call<wire::HelloReply>(wire::Hello{.minor = 9});
  EXPECT_EQ(hello.major, wire::kProtocolMajor);
  EXPECT_EQ(hello.minor, wire::kProtocolMinor);
}

TEST(Session, PingIsAnswered) {
  ServerUnderTest daemon;
  WireClient client(daemon.socket());
  (void)client.Hello();
  (void)client.Call<wire::Pong>(wire::Ping{});
}

TEST(Session, AttachHandsOverThePool) {
  ServerUnderTest daemon;
  WireClient client(daemon.socket());
  const wire::AttachReply pool = client.Attach();
  EXPECT_EQ(pool.block_bytes, 4096u);
  EXPECT_EQ(pool.blocks, 64u);
  EXPECT_EQ(pool.device_kind, wire::DeviceKind::kHost);
  ASSERT_TRUE(client.pool_fd().valid());
  struct stat status;
  ASSERT_EQ(::fstat(client.pool_fd().get(), &status), 0);
  EXPECT_GE(static_cast<uint64_t>(status.st_size), pool.pool_bytes);
}

TEST(Session, ClientsOfOneTenantShareOnePool) {
  ServerUnderTest daemon;
  WireClient first(daemon.socket());
  WireClient second(daemon.socket());
  const wire::AttachReply one = first.Attach();
  const wire::AttachReply two = second.Attach();
  EXPECT_EQ(one.pool, two.pool);
  EXPECT_EQ(one.generation, two.generation);
}

TEST(Session, CommittedBlocksAreFoundByOthers) {
  ServerUnderTest daemon;
  WireClient writer(daemon.socket());
  WireClient reader(daemon.socket());
  const PoolId pool = writer.Attach().pool;
  (void)reader.Attach();
  const auto hashes = Hashes(0, 8);
  const auto blocks = Fill(&writer, pool, hashes);

  const auto asked = Hashes(0, 10);
  const auto found = Acquire(&reader, pool, asked, 2);
  ASSERT_EQ(found.hits.size(), 8u);
  for (uint32_t i = 0; i < 8; ++i) {
    EXPECT_EQ(found.hits[i].handle, blocks[i]);
    EXPECT_EQ(found.hits[i].tier, Tier::kPool);
    EXPECT_EQ(found.hits[i].tokens, 16);
  }
  EXPECT_EQ(found.new_blocks.size(), 2u);
  EXPECT_EQ(found.load, LoadId{});
  EXPECT_EQ(found.miss, MissReason::kUnknown);
}

TEST(Session, ThousandsOfHashesTravelInOneCall) {
  ServerUnderTest daemon;
  WireClient client(daemon.socket());
  const PoolId pool = client.Attach().pool;
  (void)Fill(&client, pool, Hashes(0, 32));
  EXPECT_EQ(Acquire(&client, pool, Hashes(0, 16384), 0).hits.size(), 32u);
}

TEST(Session, AnyNumberOfBlocksIsPrefetchedInOneCall) {
  constexpr uint32_t kBlocks = 2 * kTurnPrice + 100;
  ServerUnderTest daemon([](Config* config) { config->cache.pool_bytes = kBlocks * 4 * kKiB; });
  WireClient client(daemon.socket());
  const PoolId pool = client.Attach().pool;
  (void)Fill(&client, pool, Hashes(0, kBlocks));
  std::vector<BlockHash> hashes = Hashes(0, kBlocks);
  EXPECT_EQ(client.Call<wire::PrefetchReply>(wire::Prefetch{pool, hashes}).count, kBlocks);
  // The replies keep their order, and the found blocks end with the first miss.
  hashes.insert(hashes.begin() + kTurnPrice + 1, TestHash(kBlocks));
  const uint64_t request = client.Send(wire::Prefetch{pool, hashes});
  client.Send(wire::Ping{});
  const auto reply = client.Receive();
  ASSERT_TRUE(reply && reply->request_id == request);
  EXPECT_EQ(wire::Decode<wire::PrefetchReply>(reply->payload)->count, kTurnPrice + 1);
  (void)client.Expect<wire::Pong>();
}

TEST(Session, DuplicateCommitIsTold) {
  ServerUnderTest daemon;
  WireClient client(daemon.socket());
  const PoolId pool = client.Attach().pool;
  const auto hashes = Hashes(0, 1);
  (void)Fill(&client, pool, hashes);
  const auto again = Acquire(&client, pool, {}, 1);
  client.Send(CommitOf(pool, again.new_blocks, hashes), /*want_reply=*/false);
  const auto reply = client.Expect<wire::CommitReply>();
  ASSERT_EQ(reply.items.size(), 1u);
  EXPECT_EQ(reply.items[0].outcome, wire::CommitOutcome::kDuplicate);
}

TEST(Session, SuccessOfFireAndForgetIsSilent) {
  ServerUnderTest daemon;
  WireClient client(daemon.socket());
  const PoolId pool = client.Attach().pool;
  const auto acquired = Acquire(&client, pool, {}, 2);
  client.Send(CommitOf(pool, acquired.new_blocks, Hashes(0, 2)), /*want_reply=*/false);
  client.Send(wire::Release{.pool = pool, .blocks = acquired.new_blocks}, /*want_reply=*/false);
  // The next thing that comes is the answer to the next thing asked.
  (void)client.Call<wire::Pong>(wire::Ping{});
}

TEST(Session, LookupTellsTiers) {
  ServerUnderTest daemon;
  WireClient client(daemon.socket());
  const PoolId pool = client.Attach().pool;
  (void)Fill(&client, pool, Hashes(0, 2));
  const auto hashes = Hashes(0, 3);
  const auto reply = client.Call<wire::LookupReply>(wire::Lookup{.pool = pool, .hashes = hashes});
  ASSERT_EQ(reply.presence.size(), 3u);
  EXPECT_TRUE(reply.presence[0] & wire::kPresentInPool);
  EXPECT_TRUE(reply.presence[1] & wire::kPresentInPool);
  EXPECT_EQ(reply.presence[2], 0);
}

TEST(Session, AWishIsAnsweredWithAForecast) {
  ServerUnderTest daemon;
  WireClient client(daemon.socket());
  const PoolId pool = client.Attach().pool;
  (void)Fill(&client, pool, Hashes(0, 2));
  const auto hashes = Hashes(0, 2);
  wire::Acquire acquire{.parts = {{.pool = pool, .hashes = hashes}}};
  EXPECT_FALSE(client.Call<wire::AcquireReply>(acquire).parts[0].forecast);
  acquire.wish = LoadWish{.plan = HitPlan::kCut, .tokens = 48, .cost = {.per_token_us = 100}};
  const auto reply = client.Call<wire::AcquireReply>(acquire).parts[0];
  EXPECT_EQ(reply.hits.size(), 2u);
  ASSERT_TRUE(reply.forecast);
  EXPECT_EQ(*reply.forecast, (LoadForecast{.load_us = 0, .ready_us = 1600}));
}

TEST(Session, AClientEndsNoPinsOfAnother) {
  ServerUnderTest daemon;
  WireClient client(daemon.socket()), other(daemon.socket());
  const PoolId pool = client.Attach().pool;
  const PoolId of_other = other.Attach().pool;
  const std::vector<BlockHash> hashes = Hashes(0, 3);
  (void)Fill(&client, pool, hashes);
  (void)client.Call<wire::PinReply>(wire::Pin{.pool = pool, .ttl_ms = 60'000, .hashes = hashes});
  (void)other.Call<wire::PinReply>(wire::Pin{.pool = of_other, .ttl_ms = 0, .hashes = hashes});
  daemon.OnLoop([&] { EXPECT_EQ(daemon.cache().Gauges().pinned_blocks, 3u); });
  (void)client.Call<wire::PinReply>(wire::Pin{.pool = pool, .ttl_ms = 0, .hashes = hashes});
  daemon.OnLoop([&] { EXPECT_EQ(daemon.cache().Gauges().pinned_blocks, 0u); });
}

TEST(Session, PinCountsWhatIsCached) {
  ServerUnderTest daemon;
  WireClient client(daemon.socket());
  const PoolId pool = client.Attach().pool;
  (void)Fill(&client, pool, Hashes(0, 2));
  const auto hashes = Hashes(0, 3);
  EXPECT_EQ(client.Call<wire::PinReply>(wire::Pin{.pool = pool, .ttl_ms = 60'000, .hashes = hashes})
                .count,
            2u);
}

TEST(Session, HintCountsTheBlocksOfWhichItWasTaken) {
  ServerUnderTest daemon;
  WireClient client(daemon.socket());
  const PoolId pool = client.Attach().pool;
  (void)Fill(&client, pool, Hashes(0, 2));
  const auto hashes = Hashes(0, 3);
  const auto taken = [&](SequenceHint hint, int64_t returns_in_ms) {
    return client
        .Call<wire::HintReply>(wire::Hint{
            .pool = pool, .hint = hint, .returns_in_ms = returns_in_ms, .hashes = hashes})
        .count;
  };
  EXPECT_EQ(taken(SequenceHint::kReturns, 60'000), 2u);
  EXPECT_EQ(taken(SequenceHint::kClosed, 0), 2u);
  EXPECT_EQ(taken(SequenceHint::kOnce, 0), 2u);
}

// The deepest part of a sequence has to be first: blocks that others follow take no such hint.
TEST(Session, AHintForMoreBlocksThanATurnIsTakenByAll) {
  constexpr uint32_t kBlocks = 2 * kTurnPrice + 100;
  ServerUnderTest daemon([](Config* config) { config->cache.pool_bytes = kBlocks * 4 * kKiB; });
  WireClient client(daemon.socket());
  const PoolId pool = client.Attach().pool;
  const std::vector<BlockHash> hashes = Hashes(0, kBlocks);
  (void)Fill(&client, pool, hashes);
  EXPECT_EQ(Acquire(&client, pool, hashes, 0).hits.size(), kBlocks);
  wire::Hint hint{
      .pool = pool, .hint = SequenceHint::kClosed, .returns_in_ms = 0, .hashes = hashes};
  EXPECT_EQ(client.Call<wire::HintReply>(hint).count, kBlocks);
  hint.hint = SequenceHint::kReturns;
  hint.returns_in_ms = 60'000;
  EXPECT_EQ(client.Call<wire::HintReply>(hint).count, kBlocks);
}

wire::Tokens TokensOf(PoolId pool, const std::vector<BlockHash>& hashes, uint16_t tokens) {
  wire::Tokens message{.pool = pool, .blocks = {}, .ids = {}};
  for (const BlockHash& hash : hashes) message.blocks.push_back({hash, tokens});
  message.ids.resize(hashes.size() * tokens, 7);
  return message;
}

TEST(Session, TokenIdsAreTakenWhereTheConfigurationNamesTheTenant) {
  ServerUnderTest daemon([](Config* config) { config->cache.token_tenants = {"default"}; });
  WireClient client(daemon.socket());
  const PoolId pool = client.Attach().pool;
  const auto tell = [&](const wire::Tokens& tokens) {
    client.Send(tokens, /*want_reply=*/true);
    return client.Expect<wire::TokensReply>();
  };
  EXPECT_TRUE(tell(TokensOf(pool, {}, 0)).wanted);
  (void)Fill(&client, pool, Hashes(0, 2));
  EXPECT_EQ(tell(TokensOf(pool, Hashes(0, 3), 16)).taken, 3u);
  // More tokens than a block of the model has.
  EXPECT_EQ(tell(TokensOf(pool, Hashes(5, 1), 17)).taken, 0u);
  daemon.OnLoop([&] { EXPECT_EQ(daemon.cache().Gauges().token_blocks, 2u); });
  // Without the flag nothing is answered.
  client.Send(TokensOf(pool, Hashes(7, 1), 16));
  (void)client.Call<wire::Pong>(wire::Ping{});
}

TEST(Session, TokenIdsOfWindowsAreNotTaken) {
  ServerUnderTest daemon([](Config* config) { config->cache.token_tenants = {"default"}; });
  WireClient client(daemon.socket());
  ModelRecord record = TestModel();
  record.groups[0].hit_rule = HitRule::kTrailing;
  record.groups[0].window_tokens = 32;
  const PoolId pool = client.Attach(record, 0).pool;
  client.Send(TokensOf(pool, Hashes(0, 1), 16), /*want_reply=*/true);
  EXPECT_FALSE(client.Expect<wire::TokensReply>().wanted);
}

TEST(Session, TokenIdsThatNoConfigurationAsksForAreNotLookedAt) {
  ServerUnderTest daemon;
  WireClient client(daemon.socket());
  const PoolId pool = client.Attach().pool;
  (void)Fill(&client, pool, Hashes(0, 2));
  client.Send(TokensOf(pool, Hashes(0, 2), 16), /*want_reply=*/true);
  const auto reply = client.Expect<wire::TokensReply>();
  EXPECT_FALSE(reply.wanted);
  EXPECT_EQ(reply.taken, 0u);
  daemon.OnLoop([&] { EXPECT_EQ(daemon.cache().Gauges().token_bytes, 0u); });
}

TEST(Session, StatsCountWhatWasAsked) {
  ServerUnderTest daemon;
  WireClient client(daemon.socket());
  const PoolId pool = client.Attach().pool;
  (void)Fill(&client, pool, Hashes(0, 4));
  (void)Acquire(&client, pool, Hashes(0, 6), 1);
  const auto stats = client.Call<wire::StatsReply>(wire::Stats{});
  EXPECT_EQ(stats.blocks_asked, 6u);
  EXPECT_EQ(stats.blocks_pool, 4u);
  EXPECT_EQ(stats.blocks_miss, 2u);
  EXPECT_EQ(stats.pool_blocks_total, 64u);
  EXPECT_EQ(stats.pool_blocks_private, 1u);
  EXPECT_EQ(stats.session_references, 4u + 4u + 1u);
}

// Fills the pool several times over, so that the first blocks are in host memory only.
TEST(Session, BlocksComeBackFromHostMemoryWithTheirBytes) {
  ServerUnderTest daemon;
  WireClient client(daemon.socket());
  const wire::AttachReply attached = client.Attach();
  const PoolId pool = attached.pool;
  auto* const memory = static_cast<std::byte*>(::mmap(
      nullptr, attached.pool_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, client.pool_fd().get(), 0));
  ASSERT_NE(memory, MAP_FAILED);
  const auto block_at = [&](BlockHandle block) { return memory + block.index.value * 4096; };
  for (int round = 0; round < 5; ++round) {
    const auto hashes = Hashes(round * 32, 32);
    const auto acquired = Acquire(&client, pool, {}, 32);
    ASSERT_EQ(acquired.new_blocks.size(), 32u);
    for (uint32_t i = 0; i < 32; ++i) {
      std::memset(block_at(acquired.new_blocks[i]), round * 32 + i, 4096);
    }
    client.Send(CommitOf(pool, acquired.new_blocks, hashes), false);
    client.Send(wire::Release{.pool = pool, .blocks = acquired.new_blocks}, false);
  }

  const auto acquired = Acquire(&client, pool, Hashes(0, 32), 0);
  ASSERT_EQ(acquired.hits.size(), 32u);
  ASSERT_NE(acquired.load, LoadId{});
  uint32_t ready = 0;
  bool finished = false;
  while (!finished) {
    const auto received = client.Receive();
    ASSERT_TRUE(received && received->Is(wire::MessageType::kLoadProgress));
    EXPECT_EQ(received->request_id, 0u);
    const auto progress = wire::Decode<wire::LoadProgress>(received->payload).value().progress;
    EXPECT_EQ(progress.load, acquired.load);
    EXPECT_GE(progress.ready, ready);
    ready = progress.ready;
    finished = progress.finished;
  }
  EXPECT_EQ(ready, 32u);
  for (uint32_t i = 0; i < 32; ++i) {
    EXPECT_EQ(static_cast<uint32_t>(*block_at(acquired.hits[i].handle)), i);
    EXPECT_EQ(static_cast<uint32_t>(*(block_at(acquired.hits[i].handle) + 4095)), i);
  }
  ::munmap(memory, attached.pool_bytes);
}

TEST(Session, ItsReferencesGoWithIt) {
  ServerUnderTest daemon;
  auto client = std::make_unique<WireClient>(daemon.socket());
  const PoolId pool = client->Attach().pool;
  (void)Fill(client.get(), pool, Hashes(0, 64));
  client.reset();
  daemon.WaitUntil([&] { return daemon.server().session_count() == 0; });
  daemon.OnLoop([&] { EXPECT_EQ(daemon.cache().Gauges().references, 0u); });
  // All of the pool can be had again.
  WireClient next(daemon.socket());
  (void)next.Attach();
  EXPECT_EQ(Acquire(&next, pool, {}, 64).new_blocks.size(), 64u);
}

}  // namespace
}  // namespace kvtier
