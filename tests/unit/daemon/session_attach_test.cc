// SPDX-License-Identifier: Apache-2.0
// ATTACH of pools that take their time: the client waits, and no other.

#include <gtest/gtest.h>

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
  // What the next message must be.
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

// What would be left of it is found by the sanitizers' leak checker.
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

}  // namespace
}  // namespace kvtier
