// SPDX-License-Identifier: Apache-2.0
// ATTACH of pools that take their time: the client waits, and no other. DETACH: what a client that
// goes on gives back of one pool, and in which states it may say so.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <deque>

#include "base/clock.h"
#include "tests/fakes/fake_cold_store.h"
#include "tests/unit/daemon/grouped_engine.h"
#include "tests/unit/daemon/server_under_test.h"
#include "tests/unit/daemon/verbs.h"
#include "tests/unit/daemon/wire_client.h"

namespace kvtier {
namespace {

class SessionAttach : public testing::Test {
 protected:
  SessionAttach() {
    daemon_.OnLoop([this] { daemon_.device().HoldPools(); });
  }
  void LetPoolsBeReady() {
    daemon_.OnLoop([this] { daemon_.device().LetPoolsBeReady(); });
  }
  // Asks for the pool of a model and does not wait.
  static void BeginAttach(WireClient* client, const ModelRecord& record = TestModel()) {
    (void)client->Hello();
    const auto model = client->Call<wire::RegisterModelReply>(wire::RegisterModel{record});
    client->Send(wire::Attach{.model = model.model});
  }
  // The next message must be an attach's reply.
  static PoolId ExpectAttached(WireClient* client) {
    const auto received = client->Receive();
    if (!received || !received->Is(wire::MessageType::kAttachReply)) {
      ADD_FAILURE() << "no pool is handed over";
      return {};
    }
    EXPECT_TRUE(received->descriptor.valid());
    return wire::Decode<wire::AttachReply>(received->payload).value().pool;
  }

  ServerUnderTest daemon_;
};

TEST_F(SessionAttach, IsAnsweredWhenThePoolIsReadyAndOthersBefore) {
  WireClient client(daemon_.socket());
  BeginAttach(&client);
  // Nor can it be used, by a client that guesses its number.
  constexpr PoolId kFirst(0);
  EXPECT_EQ(client.ErrorOf(wire::Acquire{.parts = {{.pool = kFirst, .new_blocks = 1}}}),
            "pool_not_attached");
  WireClient other(daemon_.socket());
  BeginAttach(&other);
  (void)other.Call<wire::Pong>(wire::Ping{});
  LetPoolsBeReady();
  const PoolId pool = ExpectAttached(&client);
  EXPECT_EQ(pool, kFirst);
  EXPECT_EQ(ExpectAttached(&other), pool);
  EXPECT_EQ(Fill(&client, pool, Hashes(0, 2)).size(), 2u);
  EXPECT_EQ(Acquire(&other, pool, Hashes(0, 2), 0).hits.size(), 2u);
}

TEST_F(SessionAttach, WhoGoesMeanwhileLeavesThePoolToOthers) {
  {
    WireClient client(daemon_.socket());
    BeginAttach(&client);
    (void)client.Call<wire::Pong>(wire::Ping{});
  }
  daemon_.WaitUntil([this] { return daemon_.server().session_count() == 0; });
  WireClient next(daemon_.socket());
  BeginAttach(&next);
  (void)next.Call<wire::Pong>(wire::Ping{});
  LetPoolsBeReady();
  EXPECT_EQ(Fill(&next, ExpectAttached(&next), Hashes(0, 2)).size(), 2u);
}

// The reply waits behind others that the client does not read; by then the pool has gone, and its
// number may be that of another client's memory.
TEST(SessionAttachReply, BringsTheDescriptorOfThePoolThoughThatHasGone) {
  constexpr uint64_t kPoolBytes = 16 * kMiB;
  ServerUnderTest daemon([](Config* config) { config->cache.pool_bytes = kPoolBytes; });
  ModelRecord of_other = TestModel();
  of_other.name = "other";
  WireClient client(daemon.socket()), other(daemon.socket());
  (void)client.Hello();
  const auto model = client.Call<wire::RegisterModelReply>(wire::RegisterModel{TestModel()});
  constexpr int kUnread = 60'000;
  for (int i = 0; i < kUnread; ++i) client.Send(wire::Ping{});
  client.Send(wire::Attach{.model = model.model, .pool_bytes = kPoolBytes});
  client.Send(wire::Detach{PoolId(0)});
  daemon.WaitUntil([&] { return daemon.cache().Gauges().pools.size() == 1; });
  (void)other.Attach(of_other, 0, kPoolBytes);
  struct stat of_others {};
  ASSERT_EQ(::fstat(other.pool_fd().get(), &of_others), 0);
  // It comes with the bytes of the reply, of which the last pong may be the first.
  UniqueFd descriptor;
  for (bool is_attached = false; !is_attached;) {
    auto received = client.Receive();
    ASSERT_TRUE(received);
    is_attached = received->Is(wire::MessageType::kAttachReply);
    if (received->descriptor.valid()) descriptor = std::move(received->descriptor);
  }
  struct stat got {};
  ASSERT_EQ(::fstat(descriptor.get(), &got), 0);
  EXPECT_NE(got.st_ino, of_others.st_ino);
  EXPECT_EQ(static_cast<uint64_t>(got.st_size), kPoolBytes);
}

// A GPU is opened for the first client that wants it, which takes a tenth of a second and more.
class SessionOpening : public testing::Test {
 protected:
  SessionOpening() {
    daemon_.OnLoop([this] { daemon_.device().HoldOpening(); });
  }
  void AwaitOpening(size_t clients) {
    daemon_.WaitUntil([this, clients] { return daemon_.device().openings_awaited() == clients; });
  }
  void EndOpening(const Status& outcome) {
    daemon_.OnLoop([this, &outcome] { daemon_.device().EndOpening(outcome); });
  }
  static wire::Attach AttachOf(WireClient* client) {
    (void)client->Hello();
    const auto model = client->Call<wire::RegisterModelReply>(wire::RegisterModel{TestModel()});
    return {.model = model.model};
  }

  ServerUnderTest daemon_;
};

TEST_F(SessionOpening, AnAttachWaitsForItsDeviceAndWhatFollowsWaitsForTheAttach) {
  WireClient client(daemon_.socket());
  client.Send(AttachOf(&client));
  AwaitOpening(1);
  WireClient other(daemon_.socket());
  (void)other.Hello();
  (void)other.Call<wire::Pong>(wire::Ping{});
  client.Send(wire::Ping{});
  EndOpening({});
  const auto first = client.Receive();
  ASSERT_TRUE(first);
  EXPECT_TRUE(first->Is(wire::MessageType::kAttachReply)) << "and not the pong";
  const auto second = client.Receive();
  EXPECT_TRUE(second && second->Is(wire::MessageType::kPong));
  EXPECT_EQ(
      Fill(&client, wire::Decode<wire::AttachReply>(first->payload).value().pool, Hashes(0, 2))
          .size(),
      2u);
}

TEST_F(SessionOpening, ADeviceThatCannotBeOpenedIsTheAttachsErrorAndTriedAgain) {
  WireClient client(daemon_.socket());
  const wire::Attach attach = AttachOf(&client);
  client.Send(attach);
  AwaitOpening(1);
  EndOpening(MakeError(ErrorCode::kResourceExhausted, "cudaErrorMemoryAllocation"));
  const auto refused = client.Receive();
  ASSERT_TRUE(refused);
  EXPECT_EQ(wire::Decode<wire::ErrorReply>(refused->payload).value().error.reason,
            "cudaErrorMemoryAllocation");
  client.Send(attach);
  AwaitOpening(1);
  EndOpening({});
  const auto attached = client.Receive();
  ASSERT_TRUE(attached);
  EXPECT_TRUE(attached->Is(wire::MessageType::kAttachReply));
}

TEST(SessionAttachError, APoolThatIsTooLargeForAnEmptyDeviceIsNotBlamedOnOtherModels) {
  ServerUnderTest daemon;
  WireClient client(daemon.socket());
  (void)client.Hello();
  const auto model = client.Call<wire::RegisterModelReply>(wire::RegisterModel{TestModel()});
  client.Send(wire::Attach{.model = model.model, .pool_bytes = uint64_t{1} << 50});
  const auto refused = client.Receive();
  ASSERT_TRUE(refused);
  const Error error = wire::Decode<wire::ErrorReply>(refused->payload).value().error;
  EXPECT_EQ(error.reason, "pool_bytes_exhausted");
  EXPECT_NE(error.context.find("raise pool.bytes"), std::string::npos) << error.context;
  EXPECT_EQ(error.context.find("other models"), std::string::npos) << error.context;
}

TEST_F(SessionOpening, AClientThatGoesMeanwhileLeavesNothing) {
  {
    WireClient client(daemon_.socket());
    client.Send(AttachOf(&client));
    AwaitOpening(1);
  }
  daemon_.WaitUntil([this] { return daemon_.server().session_count() == 0; });
  EndOpening({});
  WireClient next(daemon_.socket());
  const auto attached = next.Call<wire::AttachReply>(AttachOf(&next));
  EXPECT_EQ(Fill(&next, attached.pool, Hashes(0, 2)).size(), 2u);
}

// The sanitizers' leak checker would find its remains.
TEST_F(SessionAttach, ThatWaitsForMemoryEndsWithTheDaemon) {
  LetPoolsBeReady();
  const Bystander lives;
  daemon_.peers.pid = lives.pid();
  {
    WireClient client(daemon_.socket());
    BeginAttach(&client);
    EXPECT_EQ(Acquire(&client, ExpectAttached(&client), {}, 1).new_blocks.size(), 1u);
  }
  daemon_.WaitUntil([this] { return daemon_.server().session_count() == 0; });
  daemon_.peers.pid = DisguisedPeers::kTrue;
  // The pool of a process that may still write to it is not closed.
  WireClient other(daemon_.socket());
  ModelRecord record = TestModel();
  record.name = "another";
  BeginAttach(&other, record);
  (void)other.Call<wire::Pong>(wire::Ping{});
}

TEST_F(SessionAttach, ItsSpanLastsUntilItIsAnswered) {
  WireClient client(daemon_.socket());
  BeginAttach(&client);
  (void)client.Call<wire::Pong>(wire::Ping{});
  EXPECT_EQ(daemon_.Traced(wire::MessageType::kAttach, TracePhase::kBegin).size(), 1u);
  EXPECT_EQ(daemon_.Traced(wire::MessageType::kAttach, TracePhase::kEnd).size(), 0u);
  LetPoolsBeReady();
  (void)ExpectAttached(&client);
  EXPECT_EQ(daemon_.Traced(wire::MessageType::kAttach, TracePhase::kEnd).size(), 1u);
}

class SessionAttachOther : public testing::Test {
 protected:
  static ModelRecord OtherModel() {
    ModelRecord record = TestModel();
    record.revision = "other";
    return record;
  }
  // Asks for the other model's pool; empty if it was attached, else why it was not.
  std::string AttachOther(WireClient* client) {
    (void)client->Hello();
    const auto model = client->Call<wire::RegisterModelReply>(wire::RegisterModel{OtherModel()});
    client->Send(wire::Attach{.model = model.model});
    const auto received = client->Receive();
    if (received && received->Is(wire::MessageType::kAttachReply)) return "";
    return received ? wire::Decode<wire::ErrorReply>(received->payload).value().error.reason
                    : "end of stream";
  }

  ServerUnderTest daemon_;
};

TEST_F(SessionAttachOther, FindsThePoolTakenWhileItsClientLives) {
  WireClient first(daemon_.socket());
  (void)first.Attach(TestModel(), 0);
  WireClient second(daemon_.socket());
  EXPECT_EQ(AttachOther(&second), "pool_bytes_exhausted");
}

TEST_F(SessionAttachOther, ATenantsAttachesThatWaitAreTriedOneAtATime) {
  constexpr uint32_t kSessions = 4, kEach = 16, kTries = kSessions * kEach + 40;
  uint32_t tries = 0;
  bool read = true;
  daemon_.OnLoop([&] {
    daemon_.owner.pool_read = [&](PoolId) {
      ++tries;
      return read;
    };
  });
  {
    WireClient first(daemon_.socket());
    (void)first.Attach(TestModel(), 0);
  }
  daemon_.WaitUntil([this] { return daemon_.server().session_count() == 0; });
  const int64_t begun_us = MonotonicUs();
  std::deque<WireClient> clients;
  for (uint32_t i = 0; i < kSessions; ++i) {
    WireClient& client = clients.emplace_back(daemon_.socket());
    (void)client.Hello();
    const auto model = client.Call<wire::RegisterModelReply>(wire::RegisterModel{OtherModel()});
    for (uint32_t sent = 0; sent < kEach; ++sent) client.Send(wire::Attach{.model = model.model});
  }
  daemon_.WaitUntil([&] {
    if (tries < kTries) return false;
    // Each was tried once when it came.
    EXPECT_GE(MonotonicUs() - begun_us, (tries - kSessions * kEach - 1) * Retries::kAgainMs * 1000);
    read = false;
    return true;
  });
  for (WireClient& client : clients) {
    for (uint32_t sent = 0; sent < kEach; ++sent) {
      const auto received = client.Receive();
      EXPECT_TRUE(received && received->Is(wire::MessageType::kAttachReply));
    }
  }
  daemon_.OnLoop([this] { daemon_.owner.pool_read = nullptr; });
}

TEST_F(SessionAttachOther, GetsThePoolOfAClientThatHasGone) {
  {
    WireClient first(daemon_.socket());
    const PoolId pool = first.Attach(TestModel(), 0).pool;
    (void)Fill(&first, pool, Hashes(0, 64));
  }
  WireClient second(daemon_.socket());
  EXPECT_EQ(AttachOther(&second), "");
  EXPECT_EQ(daemon_.Traced(wire::MessageType::kAttach, TracePhase::kEnd).size(), 2u);
}

constexpr uint32_t kPoolBlocks = 64;

wire::StatsReply StatsOf(WireClient* client) {
  return client->Call<wire::StatsReply>(wire::Stats{});
}

TEST(SessionDetach, GivesBackWhatIsHeldAndTheSessionGoesOn) {
  ServerUnderTest daemon;
  WireClient client(daemon.socket());
  const PoolId pool = client.Attach().pool;
  (void)Fill(&client, pool, Hashes(0, 8));
  (void)Acquire(&client, pool, Hashes(0, 4), 5);
  ASSERT_EQ(StatsOf(&client).session_references, 8u + 4u + 5u);
  client.Send(wire::Detach{pool});
  EXPECT_EQ(StatsOf(&client).session_references, 0u);
  WireClient other(daemon.socket());
  (void)other.Attach();
  const auto stats = StatsOf(&other);
  EXPECT_EQ(stats.pool_blocks_free, kPoolBlocks - 8);
  EXPECT_EQ(stats.pool_blocks_private, 0u);
  EXPECT_EQ(stats.pool_blocks_cached, 8u);
  EXPECT_EQ(Acquire(&other, pool, Hashes(0, 8), 56).hits.size(), 8u);
}

TEST(SessionDetach, ThePoolIsThenOneThatWasNeverAttached) {
  ServerUnderTest daemon;
  WireClient client(daemon.socket());
  const PoolId pool = client.Attach().pool;
  const auto blocks = Fill(&client, pool, Hashes(0, 2));
  const auto hashes = Hashes(0, 2);
  client.Send(wire::Detach{pool});
  const auto refused = [&](const auto& message) {
    EXPECT_EQ(client.ErrorOf(message), "pool_not_attached");
  };
  refused(wire::Acquire{.parts = {{.pool = pool, .new_blocks = 1}}});
  refused(CommitOf(pool, blocks, hashes));
  refused(wire::Release{.pool = pool, .blocks = blocks});
  refused(wire::Prefetch{pool, hashes});
  refused(wire::Lookup{.pool = pool, .hashes = hashes});
  refused(wire::Pin{.pool = pool, .ttl_ms = 1, .hashes = hashes});
  refused(wire::Resume{.pool = pool, .session = SessionId{1}, .claims = {{blocks[0], 1}}});
  refused(wire::Detach{pool});
  (void)client.Call<wire::Pong>(wire::Ping{});
}

TEST(SessionDetach, EachAttachIsTakenBackOnce) {
  ServerUnderTest daemon;
  WireClient client(daemon.socket());
  const PoolId pool = client.Attach().pool;
  ASSERT_EQ(client.AttachPool(0).pool, pool);
  (void)Fill(&client, pool, Hashes(0, 2));
  client.Send(wire::Detach{pool});
  EXPECT_EQ(StatsOf(&client).session_references, 2u);
  EXPECT_EQ(Acquire(&client, pool, Hashes(0, 2), 0).hits.size(), 2u);
  client.Send(wire::Detach{pool});
  EXPECT_EQ(StatsOf(&client).session_references, 0u);
  EXPECT_EQ(client.ErrorOf(wire::Detach{pool}), "pool_not_attached");
}

TEST(SessionDetach, OfWhatIsNotAttachedIsRefused) {
  ServerUnderTest daemon;
  WireClient owner(daemon.socket());
  const PoolId pool = owner.Attach().pool;
  (void)Fill(&owner, pool, Hashes(0, 2));
  WireClient client(daemon.socket());
  (void)client.Hello();
  // Another session's pool, and one that there is not.
  EXPECT_EQ(client.ErrorOf(wire::Detach{pool}), "pool_not_attached");
  EXPECT_EQ(client.ErrorOf(wire::Detach{PoolId(77)}), "pool_not_attached");
  EXPECT_EQ(StatsOf(&owner).session_references, 2u);
}

TEST(SessionDetach, BeforeThePoolIsReadyIsRefused) {
  ServerUnderTest daemon;
  daemon.OnLoop([&] { daemon.device().HoldPools(); });
  WireClient client(daemon.socket());
  (void)client.Hello();
  const auto model = client.Call<wire::RegisterModelReply>(wire::RegisterModel{TestModel()}).model;
  client.Send(wire::Attach{.model = model});
  client.Send(wire::Attach{.model = model});
  EXPECT_EQ(client.ErrorOf(wire::Detach{PoolId(0)}), "pool_not_attached");
  daemon.OnLoop([&] { daemon.device().LetPoolsBeReady(); });
  PoolId pool;
  for (int i = 0; i < 2; ++i) {
    const auto received = client.Receive();
    ASSERT_TRUE(received && received->Is(wire::MessageType::kAttachReply));
    pool = wire::Decode<wire::AttachReply>(received->payload)->pool;
  }
  client.Send(wire::Detach{pool});
  EXPECT_EQ(Acquire(&client, pool, {}, 1).new_blocks.size(), 1u);
}

TEST(SessionDetach, AnAcquireThatWaitsEndsAndTakesNoBlocksLater) {
  ServerUnderTest daemon;
  WireClient client(daemon.socket());
  const PoolId pool = client.Attach().pool;
  daemon.OnLoop([&] { daemon.device().HoldCopies(); });
  const auto blocks = Fill(&client, pool, Hashes(0, kPoolBlocks));
  client.Send(wire::Release{.pool = pool, .blocks = blocks});
  const uint64_t waits = client.Send(
      wire::Acquire{.parts = {{.pool = pool, .new_blocks = kPoolBlocks, .hashes = {}}}});
  client.Send(wire::Detach{pool});
  EXPECT_EQ(client.ExpectError(waits), "pool_detached");
  daemon.OnLoop([&] { daemon.device().LetCopiesGo(); });
  daemon.WaitUntil([&] { return daemon.cache().Idle(); });
  ASSERT_EQ(client.AttachPool(0).pool, pool);
  const auto stats = StatsOf(&client);
  EXPECT_EQ(stats.pool_blocks_private, 0u);
  EXPECT_EQ(stats.session_references, 0u);
}

// So many blocks are given back in several events.
TEST(SessionDetach, WhatIsAcquiredAfterANewAttachIsKept) {
  constexpr uint32_t kBlocks = 40'000;
  constexpr uint32_t kPerCall = 16'000;
  ServerUnderTest daemon([](Config* config) { config->cache.pool_bytes = kBlocks * 4 * kKiB; });
  WireClient client(daemon.socket());
  const PoolId pool = client.Attach().pool;
  const auto blocks = Fill(&client, pool, Hashes(0, 100));
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(Acquire(&client, pool, {}, kPerCall).new_blocks.size(), kPerCall);
  }
  const auto hashes = Hashes(0, 100);
  client.Send(wire::Detach{pool});
  ASSERT_EQ(client.AttachPool(0).pool, pool);
  const auto again = Acquire(&client, pool, hashes, 50);
  ASSERT_EQ(again.hits.size(), 100u);
  daemon.WaitUntil([&] { return daemon.cache().Gauges().sessions_closing == 0; });
  const auto stats = StatsOf(&client);
  EXPECT_EQ(stats.session_references, 150u);
  EXPECT_EQ(stats.pool_blocks_private, 50u);
  EXPECT_EQ(stats.pool_blocks_free, kBlocks - 150);
  client.Send(CommitOf(pool, again.new_blocks, Hashes(1000, 50)), /*want_reply=*/true);
  EXPECT_TRUE(client.Expect<wire::CommitReply>().items.empty());
}

TEST(SessionDetach, OtherPoolsOfTheSessionGoOn) {
  ServerUnderTest daemon;
  GroupedEngine engine(daemon.socket());
  WireClient& client = engine.client;
  const auto kept = Acquire(&client, engine.pools[1], {}, 3).new_blocks;
  (void)Acquire(&client, engine.pools[0], {}, 2);
  client.Send(wire::Detach{engine.pools[0]});
  EXPECT_EQ(StatsOf(&client).session_references, 3u);
  client.Send(CommitOf(engine.pools[1], kept, Hashes(0, 3)), /*want_reply=*/true);
  EXPECT_TRUE(client.Expect<wire::CommitReply>().items.empty());
}

// --- acquires over several groups ---

// One group has its blocks and another waits for room when the first one's pool is detached, and
// attached anew: blocks acquired there then must not be taken for the earlier acquire's.
TEST(SessionDetach, AnAcquireOfGroupsEndsAndLeavesWhatIsAcquiredAnew) {
  ServerUnderTest daemon;
  GroupedEngine engine(daemon.socket());
  WireClient& client = engine.client;
  for (uint32_t group = 0; group < 3; ++group) engine.Cache(group, 0, 4);
  daemon.OnLoop([&] { daemon.device().HoldCopies(); });
  engine.Cache(1, 100, 12);
  const std::vector<BlockHash> hashes = Hashes(1, 4);
  wire::Acquire acquire = engine.AcquireOf(hashes);
  acquire.parts[1].new_blocks = 14;
  const uint64_t waits = client.Send(acquire);
  (void)client.Call<wire::Pong>(wire::Ping{});
  client.Send(wire::Detach{engine.pools[0]});
  client.Send(wire::Attach{.model = engine.model, .group = 0, .pool_bytes = kPoolBytes});
  const auto attached = client.Receive();
  ASSERT_TRUE(attached && attached->Is(wire::MessageType::kAttachReply));
  // The same blocks, for which nothing has to make room.
  wire::Acquire again = engine.AcquireOf(hashes);
  for (auto& part : again.parts) part.new_blocks = 0;
  const auto held = client.Call<wire::AcquireReply>(again);
  ASSERT_EQ(held.parts.at(0).hits.size(), 4u);
  daemon.OnLoop([&] { daemon.device().LetCopiesGo(); });
  EXPECT_EQ(client.ExpectError(waits), "pool_detached");
  for (size_t group = 0; group < 3; ++group) {
    wire::Release release{.pool = engine.pools[group], .blocks = {}};
    for (const AcquiredBlock& hit : held.parts.at(group).hits) release.blocks.push_back(hit.handle);
    client.Send(release, /*want_reply=*/true);
    EXPECT_TRUE(client.Expect<wire::ReleaseReply>().errors.empty()) << group;
  }
  EXPECT_EQ(StatsOf(&client).session_references, 0u);
  daemon.OnLoop([&] { EXPECT_EQ(daemon.cache().Gauges().references, 0u); });
}

TEST(SessionDetach, AnAcquireOfGroupsThatAsksTheColdStoreEnds) {
  FakeColdStore store;
  ServerUnderTest daemon({}, &store);
  GroupedEngine engine(daemon.socket());
  WireClient& client = engine.client;
  daemon.OnLoop([&] { store.holds = true; });
  const std::vector<BlockHash> hashes = Hashes(1, 4);
  const uint64_t waits = client.Send(engine.AcquireOf(hashes));
  (void)client.Call<wire::Pong>(wire::Ping{});
  client.Send(wire::Detach{engine.pools[2]});
  (void)client.Call<wire::Pong>(wire::Ping{});
  daemon.OnLoop([&] {
    store.holds = false;
    store.Answer();
  });
  EXPECT_EQ(client.ExpectError(waits), "pool_detached");
  EXPECT_EQ(StatsOf(&client).session_references, 0u);
}

}  // namespace
}  // namespace kvtier
