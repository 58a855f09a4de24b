// SPDX-License-Identifier: Apache-2.0
// A client's possible mistakes with messages, one by one: each costs that call, or that session,
// and no other client notices.

#include <gtest/gtest.h>

#include <memory>

#include "base/bytes.h"
#include "daemon/session/block_handler.h"
#include "tests/unit/daemon/server_under_test.h"
#include "tests/unit/daemon/verbs.h"
#include "tests/unit/daemon/wire_client.h"

namespace kvtier {
namespace {

using wire::MessageType;

class SessionErrors : public testing::Test {
 protected:
  SessionErrors() : bystander_(daemon_.socket()) {
    pool_ = bystander_.Attach().pool;
    kept_ = Fill(&bystander_, pool_, Hashes(900, 4));
  }

  // Another client's session, references and blocks are as before.
  ~SessionErrors() override {
    const auto found = Acquire(&bystander_, pool_, Hashes(900, 4), 0);
    EXPECT_EQ(found.hits.size(), 4u);
    for (uint32_t i = 0; i < found.hits.size(); ++i) EXPECT_EQ(found.hits[i].handle, kept_[i]);
  }

  // The session of `client` goes on.
  static void ExpectAlive(WireClient* client) { (void)client->Call<wire::Pong>(wire::Ping{}); }

  // `client` gets an ERROR about the connection, which then ends.
  static void ExpectCut(WireClient* client, const std::string& reason) {
    EXPECT_EQ(client->ExpectError(0), reason);
    EXPECT_TRUE(client->AtEnd());
  }

  // A session with the pool attached.
  std::unique_ptr<WireClient> Attached() {
    auto client = std::make_unique<WireClient>(daemon_.socket());
    EXPECT_EQ(client->Attach().pool, pool_);
    return client;
  }

  ServerUnderTest daemon_;
  WireClient bystander_;
  PoolId pool_;
  std::vector<BlockHandle> kept_;
};

std::vector<std::byte> HelloPayload(uint32_t magic, uint16_t major, uint16_t minor) {
  ByteWriter writer;
  writer.Write(magic);
  writer.Write(major);
  writer.Write(minor);
  writer.WriteString("bad");
  return writer.Take();
}

constexpr uint16_t kHelloType = static_cast<uint16_t>(MessageType::kHello);

TEST_F(SessionErrors, WrongMagicEndsTheSession) {
  WireClient client(daemon_.socket());
  client.SendFrame(kHelloType, 0, HelloPayload(0x12345678, 1, 0));
  ExpectCut(&client, "bad_magic");
}

TEST_F(SessionErrors, AnotherMajorVersionEndsTheSession) {
  WireClient client(daemon_.socket());
  client.SendFrame(kHelloType, 0, HelloPayload(wire::kMagic, 7, 0));
  ExpectCut(&client, "version_mismatch");
}

TEST_F(SessionErrors, TruncatedHelloEndsTheSession) {
  WireClient client(daemon_.socket());
  client.SendFrame(kHelloType, 0, std::vector<std::byte>(3));
  EXPECT_NE(client.ExpectError(0), "HELLO_REPLY");
  EXPECT_TRUE(client.AtEnd());
}

TEST_F(SessionErrors, RequestBeforeHelloEndsTheSession) {
  WireClient client(daemon_.socket());
  client.Send(wire::Ping{});
  ExpectCut(&client, "hello_expected");
}

TEST_F(SessionErrors, SecondHelloIsRefused) {
  WireClient client(daemon_.socket());
  (void)client.Hello();
  EXPECT_EQ(client.ErrorOf(wire::Hello{}), "hello_again");
  ExpectAlive(&client);
}

TEST_F(SessionErrors, FrameLongerThanAllowedEndsTheSession) {
  WireClient client(daemon_.socket());
  (void)client.Hello();
  ByteWriter writer;
  writer.Write(uint32_t{0xffffffff});
  writer.Write(uint16_t{7});
  writer.Write(uint16_t{0});
  writer.Write(uint64_t{1});
  client.SendBytes(writer.data());
  ExpectCut(&client, "frame_too_long");
  // The client sees the end of the session before the daemon has accounted for it.
  daemon_.WaitUntil([&] { return daemon_.counters().refusals.contains("frame_too_long"); });
  EXPECT_EQ(daemon_.Refusals("frame_too_long"), 1u);
}

TEST_F(SessionErrors, UnknownFlagsEndTheSession) {
  WireClient client(daemon_.socket());
  (void)client.Hello();
  client.SendFrame(static_cast<uint16_t>(MessageType::kPing), 0x8000, {});
  ExpectCut(&client, "unknown_flags");
}

TEST_F(SessionErrors, UnknownMessageIsRefused) {
  WireClient client(daemon_.socket());
  (void)client.Hello();
  EXPECT_EQ(client.ExpectError(client.SendFrame(999, 0, {})), "unknown_message");
  // Replies and the admin socket's messages are no requests here.
  for (const MessageType type : {MessageType::kAcquireReply, MessageType::kAdminRequest}) {
    const uint64_t request = client.SendFrame(static_cast<uint16_t>(type), 0, {});
    EXPECT_EQ(client.ExpectError(request), "unknown_message");
  }
  ExpectAlive(&client);
}

TEST_F(SessionErrors, TruncatedMessageIsRefused) {
  const auto client = Attached();
  for (const MessageType type :
       {MessageType::kRegisterModel, MessageType::kAttach, MessageType::kAcquire,
        MessageType::kCommit, MessageType::kRelease, MessageType::kPrefetch, MessageType::kLookup,
        MessageType::kPin, MessageType::kHint, MessageType::kTokens}) {
    const uint64_t request =
        client->SendFrame(static_cast<uint16_t>(type), 0, std::vector<std::byte>(1));
    EXPECT_EQ(client->ExpectError(request), "truncated_message") << wire::MessageTypeName(type);
  }
  ExpectAlive(client.get());
}

TEST_F(SessionErrors, TrailingBytesAreRefused) {
  WireClient client(daemon_.socket());
  (void)client.Hello();
  const uint64_t request =
      client.SendFrame(static_cast<uint16_t>(MessageType::kPing), 0, std::vector<std::byte>(1));
  EXPECT_EQ(client.ExpectError(request), "trailing_bytes");
  ExpectAlive(&client);
}

TEST_F(SessionErrors, CountThatTheMessageCannotHoldIsRefused) {
  const auto client = Attached();
  ByteWriter writer;
  writer.Write(pool_.value);
  writer.Write(uint32_t{10'000});  // hashes, none of which follows
  const uint64_t request =
      client->SendFrame(static_cast<uint16_t>(MessageType::kLookup), 0, writer.data());
  EXPECT_EQ(client->ExpectError(request), "truncated_message");
  ExpectAlive(client.get());
}

TEST_F(SessionErrors, FourBillionNewBlocksAreRefused) {
  const auto client = Attached();
  ByteWriter writer;
  writer.Write(uint16_t{0});  // block by block, no wish
  writer.Write(uint32_t{1});  // group
  writer.Write(pool_.value);
  writer.Write(uint32_t{0xffffffff});
  writer.Write(uint32_t{0});
  writer.Write(uint32_t{0});
  const uint64_t request =
      client->SendFrame(static_cast<uint16_t>(MessageType::kAcquire), 0, writer.data());
  EXPECT_EQ(client->ExpectError(request), "too_many_blocks");
  ExpectAlive(client.get());
}

TEST_F(SessionErrors, ZeroBlocksAreRefused) {
  const auto client = Attached();
  EXPECT_EQ(client->ErrorOf(wire::Acquire{.parts = {{.pool = pool_}}}), "empty_request");
  EXPECT_EQ(client->ErrorOf(wire::Lookup{.pool = pool_}), "empty_request");
  EXPECT_EQ(client->ErrorOf(wire::Prefetch{.pool = pool_}), "empty_request");
  EXPECT_EQ(client->ErrorOf(wire::Pin{.pool = pool_, .ttl_ms = 1}), "empty_request");
  EXPECT_EQ(client->ExpectError(client->Send(wire::Commit{.pool = pool_}, false)), "empty_request");
  EXPECT_EQ(client->ExpectError(client->Send(wire::Release{.pool = pool_}, false)),
            "empty_request");
  ExpectAlive(client.get());
}

TEST_F(SessionErrors, PoolThatWasNotAttachedIsRefused) {
  WireClient client(daemon_.socket());
  (void)client.Hello();
  // It exists, but is not this session's.
  EXPECT_EQ(client.ErrorOf(wire::Acquire{.parts = {{.pool = pool_, .new_blocks = 1}}}),
            "pool_not_attached");
  const auto hashes = Hashes(900, 4);
  EXPECT_EQ(client.ErrorOf(wire::Lookup{.pool = pool_, .hashes = hashes}), "pool_not_attached");
  EXPECT_EQ(client.ErrorOf(wire::Prefetch{.pool = pool_, .hashes = hashes}), "pool_not_attached");
  EXPECT_EQ(client.ErrorOf(wire::Pin{.pool = pool_, .ttl_ms = 1000, .hashes = hashes}),
            "pool_not_attached");
  EXPECT_EQ(client.ErrorOf(wire::Hint{.pool = pool_, .hashes = hashes}), "pool_not_attached");
  EXPECT_EQ(client.ErrorOf(wire::Tokens{.pool = pool_, .blocks = {}, .ids = {}}),
            "pool_not_attached");
  EXPECT_EQ(client.ExpectError(client.Send(CommitOf(pool_, kept_, hashes), false)),
            "pool_not_attached");
  EXPECT_EQ(client.ExpectError(client.Send(wire::Release{.pool = pool_, .blocks = kept_}, false)),
            "pool_not_attached");
  ExpectAlive(&client);
}

TEST_F(SessionErrors, UnknownModelAndDeviceAreRefused) {
  WireClient client(daemon_.socket());
  (void)client.Hello();
  EXPECT_EQ(client.ErrorOf(wire::Attach{.model = wire::ModelId(77)}), "unknown_model");
  EXPECT_EQ(client.ErrorOf(wire::Attach{.model = wire::ModelId(0)}), "unknown_model");
  EXPECT_EQ(client.ErrorOf(wire::Attach{.model = wire::ModelId(1), .device = 3}), "unknown_device");
  ExpectAlive(&client);
}

TEST_F(SessionErrors, NegativeAndEndlessPinsAreRefused) {
  const auto client = Attached();
  const auto hashes = Hashes(900, 1);
  EXPECT_EQ(client->ErrorOf(wire::Pin{.pool = pool_, .ttl_ms = INT64_MAX, .hashes = hashes}),
            "bad_ttl");
  EXPECT_EQ(client->ErrorOf(wire::Pin{.pool = pool_, .ttl_ms = -1, .hashes = hashes}), "bad_ttl");
  ExpectAlive(client.get());
}

TEST_F(SessionErrors, SequencesThatReturnAfterMoreThanADayAreRefused) {
  const auto client = Attached();
  const auto hashes = Hashes(900, 1);
  wire::Hint hint{.pool = pool_, .hint = SequenceHint::kReturns, .hashes = hashes};
  for (const int64_t returns_in_ms : {kMaxReturnsInMs + 1, INT64_MAX, int64_t{-1}}) {
    hint.returns_in_ms = returns_in_ms;
    EXPECT_EQ(client->ErrorOf(hint), "bad_returns_in");
  }
  ExpectAlive(client.get());
}

TEST_F(SessionErrors, MoreBlocksThanThePoolHasAreRefused) {
  const auto client = Attached();
  EXPECT_EQ(client->ErrorOf(wire::Acquire{.parts = {{.pool = pool_, .new_blocks = 65}}}),
            "pool_full");
  // All or nothing: none was kept.
  EXPECT_EQ(Acquire(client.get(), pool_, {}, 60).new_blocks.size(), 60u);
}

TEST_F(SessionErrors, BlockReleasedTwiceWhileAWaitingAcquireHoldsItCostsOneReference) {
  auto client = Attached();
  const auto hashes = Hashes(100, 60);
  const std::vector<BlockHandle> blocks = Fill(client.get(), pool_, hashes);
  const BlockHandle first = blocks.front();
  client->Send(wire::Release{.pool = pool_, .blocks = {blocks.begin() + 1, blocks.end()}}, false);
  client->Send(wire::Acquire{
      .parts = {{.pool = pool_, .new_blocks = 52, .hashes = std::span(hashes).first(1)}}});
  client->Send(wire::Release{.pool = pool_, .blocks = {first, first}}, false);
  client.reset();
  // The daemon still runs once the session has ended.
  ExpectAlive(&bystander_);
  ExpectAlive(Attached().get());
}

}  // namespace
}  // namespace kvtier
