// SPDX-License-Identifier: Apache-2.0
// A daemon that is slow, silent, gone or out of its mind: calls fail as misses, nothing else
// happens.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "tests/unit/client/client_fixture.h"

namespace kvtier::client {
namespace {

using ::testing::Each;
using Bytes = FakeDaemon::Bytes;

bool Is(const wire::Frame& frame, wire::MessageType type) {
  return frame.type == static_cast<uint16_t>(type);
}

class BrokenDaemonTest : public ClientFixture {
 protected:
  // Answers ACQUIREs with `answer(request_id)`.
  void AnswerAcquires(std::function<Bytes(uint64_t)> answer) {
    daemon_->Intercept([answer](const wire::Frame& frame) -> std::optional<Bytes> {
      if (!Is(frame, wire::MessageType::kAcquire)) return std::nullopt;
      return answer(frame.request_id);
    });
  }
};

TEST_F(BrokenDaemonTest, WithoutADaemonConnectingIsUnavailable) {
  daemon_.reset();
  const auto connection = kvt::Connection::Connect(socket_path());
  ASSERT_FALSE(connection);
  EXPECT_EQ(connection.error().code, KVT_UNAVAILABLE);
  EXPECT_EQ(connection.error().reason, "no_daemon");
}

TEST_F(BrokenDaemonTest, AClientMayStartBeforeItsDaemon) {
  daemon_.reset();
  kvt_connect_options options = Options();
  options.wait_for_daemon = 1;
  auto connection = kvt::Connection::Connect(socket_path(), &options);
  ASSERT_TRUE(connection) << connection.error().ToString();
  EXPECT_FALSE(connection->IsConnected());
  EXPECT_EQ(connection->Ping().error().code, KVT_UNAVAILABLE);
  StartDaemon({});
  EXPECT_TRUE(connection->Ping());
  EXPECT_TRUE(connection->IsConnected());
}

TEST_F(BrokenDaemonTest, ARefusalAtTheDoorIsToldAsItIs) {
  daemon_->Intercept([](const wire::Frame&) -> std::optional<Bytes> {
    return FrameOf(wire::ErrorReply{{ErrorCode::kPermissionDenied, "unknown_user", "uid 1000"}}, 0);
  });
  // The daemon's farewell alone does not end the connection; its hanging up does.
  std::thread hangs_up([&] {
    daemon_->WaitForRequests(wire::MessageType::kHello, 1);
    daemon_->DropClient();
  });
  const auto connection = kvt::Connection::Connect(socket_path());
  hangs_up.join();
  ASSERT_FALSE(connection);
  EXPECT_EQ(connection.error().code, KVT_PERMISSION_DENIED);
  EXPECT_EQ(connection.error().reason, "unknown_user");
}

TEST_F(BrokenDaemonTest, AProtocolVersionThatWasNotOfferedIsUnsupported) {
  daemon_->Intercept([](const wire::Frame& frame) -> std::optional<Bytes> {
    return FrameOf(wire::HelloReply{.major = 2, .tenant = "t"}, frame.request_id);
  });
  const auto connection = kvt::Connection::Connect(socket_path());
  ASSERT_FALSE(connection);
  EXPECT_EQ(connection.error().code, KVT_UNSUPPORTED);
}

TEST_F(BrokenDaemonTest, APoolSmallerThanAnnouncedIsNotUsed) {
  StartDaemon({.short_pool = true});
  const kvt_connect_options options = Options();
  auto connection = kvt::Connection::Connect(socket_path(), &options);
  ASSERT_TRUE(connection);
  const auto model = connection->RegisterModel(Record());
  ASSERT_TRUE(model);
  const auto pool = connection->Attach(model->model, 0, 0);
  ASSERT_FALSE(pool);
  EXPECT_EQ(pool.error().code, KVT_CORRUPT);
  EXPECT_EQ(pool.error().reason, "pool_too_small");
}

TEST_F(BrokenDaemonTest, ADaemonThatUnderstandsTheModelOtherwiseIsNotUsed) {
  daemon_->Intercept([](const wire::Frame& frame) -> std::optional<Bytes> {
    if (!Is(frame, wire::MessageType::kRegisterModel)) return std::nullopt;
    return FrameOf(wire::RegisterModelReply{.groups = {{.block_bytes = 1}}}, frame.request_id);
  });
  auto connection = kvt::Connection::Connect(socket_path());
  ASSERT_TRUE(connection);
  const auto model = connection->RegisterModel(Record());
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().reason, "protocol_violation");
}

TEST_F(BrokenDaemonTest, ASilentDaemonIsATimeout) {
  Attach(ImpatientOptions());
  daemon_->HoldBack(wire::MessageType::kAcquire);
  const auto acquired = pool_->Acquire(Hashes(1, 2), {}, 1);
  ASSERT_FALSE(acquired);
  EXPECT_EQ(acquired.error().code, KVT_TIMEOUT);
  EXPECT_TRUE(connection_->IsConnected());
}

TEST_F(BrokenDaemonTest, WhatIsGrantedTooLateIsReleasedWhileTheClientIdles) {
  Attach(ImpatientOptions());
  Fill(Hashes(1, 2));
  ASSERT_EQ(References(), 0u);
  wire::AcquireReply granted;
  daemon_->WithCache([&](FakeCache* cache) {
    const std::vector<BlockHash> hashes = {WireHash(1), WireHash(2)};
    granted.parts = {*cache->Acquire({.new_blocks = 3, .hashes = hashes})};
  });
  daemon_->HoldBack(wire::MessageType::kAcquire);
  EXPECT_EQ(pool_->Acquire(Hashes(1, 2), {}, 3).error().code, KVT_TIMEOUT);
  EXPECT_EQ(daemon_->references(), 5u);
  const int before = daemon_->Requests(wire::MessageType::kRelease);
  daemon_->Send(FrameOf(granted, daemon_->WaitForHeldBack()));
  // No other call is made.
  daemon_->WaitForRequests(wire::MessageType::kRelease, before + 1);
  EXPECT_EQ(daemon_->references(), 0u);
}

TEST_F(BrokenDaemonTest, AnswersThatComeTooLateAreLetGo) {
  Attach(ImpatientOptions());
  daemon_->HoldBack(wire::MessageType::kDevices);
  EXPECT_EQ(connection_->Devices().error().code, KVT_TIMEOUT);
  daemon_->Send(
      FrameOf(wire::DevicesReply{.devices = {{.name = "late"}}}, daemon_->WaitForHeldBack()));
  EXPECT_TRUE(connection_->IsConnected());
  daemon_->HoldBack(wire::MessageType::kLookup);
  EXPECT_EQ(pool_->Lookup(Hashes(1, 1)).error().code, KVT_TIMEOUT);
  daemon_->Send(FrameOf(wire::LookupReply{.presence = {0}}, daemon_->WaitForHeldBack()));
  EXPECT_TRUE(connection_->IsConnected());
}

TEST_F(BrokenDaemonTest, ADaemonThatTakesNothingInEndsTheConnection) {
  StartDaemon({});
  kvt_connect_options options = Options();
  options.connect_timeout_ms = 2000;
  Attach(options);
  StartDaemon({.deaf = true});
  // The connection to the deaf daemon is made, but HELLO stays unanswered.
  const auto acquired = pool_->Acquire(Hashes(1, 2));
  ASSERT_FALSE(acquired);
  EXPECT_EQ(acquired.error().code, KVT_UNAVAILABLE);
}

class BackPressureTest : public BrokenDaemonTest {
 protected:
  // Sends far more than any socket buffer holds, without waiting for an answer.
  [[nodiscard]] kvt::Status SendMuch() {
    auto acquired = pool_->Acquire({}, {}, 1);
    EXPECT_TRUE(acquired);
    const std::vector<kvt_block> blocks(wire::kMaxBlocksPerCall, acquired->new_blocks.Take()[0]);
    for (int i = 0; i < 100; ++i) {
      if (kvt::Status sent = pool_->Release(blocks); !sent) return sent;
    }
    return {};
  }
};

TEST_F(BackPressureTest, ADaemonThatStopsReadingEndsTheConnection) {
  Attach(ImpatientOptions());
  std::promise<void> gate;
  daemon_->Intercept(
      [opened = gate.get_future().share()](const wire::Frame& frame) -> std::optional<Bytes> {
        if (!Is(frame, wire::MessageType::kRelease)) return std::nullopt;
        opened.wait();
        return Bytes();
      });
  EXPECT_TRUE(SendMuch());  // blocks lost with the connection need no release
  EXPECT_FALSE(connection_->IsConnected());
  EXPECT_EQ(connection_->Flush().error().reason, "send_timeout");
  gate.set_value();
}

TEST_F(BackPressureTest, ASenderReadsWhatTheDaemonInsistsOnSending) {
  Attach();
  Bytes events;
  for (int i = 0; i < 20'000; ++i)
    wire::Encode(wire::LoadProgress{{.load = LoadId{99}}}, 0, &events);
  // The daemon takes in the next request only when the client has taken all of this.
  daemon_->Intercept([events](const wire::Frame& frame) -> std::optional<Bytes> {
    if (!Is(frame, wire::MessageType::kRelease)) return std::nullopt;
    return events;
  });
  ASSERT_TRUE(SendMuch());
  EXPECT_TRUE(connection_->Flush());
}

struct Garbage {
  const char* name;
  std::function<Bytes(uint64_t)> answer;
};

void PrintTo(const Garbage& garbage, std::ostream* out) { *out << garbage.name; }

class GarbageTest : public BrokenDaemonTest, public ::testing::WithParamInterface<Garbage> {};

TEST_P(GarbageTest, EndsTheConnectionAsAMissAndTheNextCallReconnects) {
  Attach();
  Fill(Hashes(1, 2));
  AnswerAcquires(GetParam().answer);
  const auto acquired = pool_->Acquire(Hashes(1, 2), {}, 1);
  ASSERT_FALSE(acquired);
  EXPECT_EQ(acquired.error().code, KVT_UNAVAILABLE);
  EXPECT_EQ(acquired.error().reason, "protocol_violation");
  EXPECT_FALSE(connection_->IsConnected());
  daemon_->Intercept(nullptr);
  const auto again = pool_->Acquire(Hashes(1, 2), {}, 1);
  ASSERT_TRUE(again) << again.error().ToString();
  EXPECT_EQ(again->hits.size(), 2u);
}

AcquiredBlock HitAt(uint32_t index, uint16_t tokens = kBlockTokens, Tier tier = Tier::kPool) {
  return {{BlockIndex{index}, 1}, tier, tokens};
}

const BlockHandle kFresh{BlockIndex{5}, 1};

Bytes Raw(std::initializer_list<int> values) {
  Bytes bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

const Garbage kGarbage[] = {
    {"AReplyToAnotherQuestion", [](uint64_t id) { return FrameOf(wire::Pong{}, id); }},
    {"AReplyToAQuestionNeverAsked", [](uint64_t id) { return FrameOf(wire::Pong{}, id + 1000); }},
    {"ARequest", [](uint64_t id) { return FrameOf(wire::Ping{}, id); }},
    {"AnEventWithoutSense", [](uint64_t) { return FrameOf(wire::Ping{}, 0); }},
    {"AFrameTooLong",
     [](uint64_t) {
       return Raw({0xff, 0xff, 0xff, 0x7f, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
     }},
    {"UnknownFlags",
     [](uint64_t) {
       return Raw({0, 0, 0, 0, 8, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0});
     }},
    {"ATruncatedMessage",
     [](uint64_t id) {
       Bytes bytes = FrameOf(wire::AcquireReply{.parts = {{.new_blocks = {kFresh}}}}, id);
       bytes.pop_back();
       bytes[0] = std::byte(static_cast<uint8_t>(bytes[0]) - 1);
       return bytes;
     }},
    {"MoreHitsThanHashes",
     [](uint64_t id) {
       return FrameOf(wire::AcquireReply{.parts = {{.hits = {HitAt(0), HitAt(1), HitAt(2)},
                                                    .new_blocks = {kFresh}}}},
                      id);
     }},
    {"ABlockOutsideThePool",
     [](uint64_t id) {
       return FrameOf(wire::AcquireReply{.parts = {{.hits = {HitAt(64)}, .new_blocks = {kFresh}}}},
                      id);
     }},
    {"APrivateBlockOutsideThePool",
     [](uint64_t id) {
       return FrameOf(wire::AcquireReply{.parts = {{.new_blocks = {{BlockIndex{UINT32_MAX}, 1}}}}},
                      id);
     }},
    {"NoPart", [](uint64_t id) { return FrameOf(wire::AcquireReply{}, id); }},
    {"NoPrivateBlock", [](uint64_t id) { return FrameOf(wire::AcquireReply{.parts = {{}}}, id); }},
    {"ABlockWithTooManyTokens",
     [](uint64_t id) {
       return FrameOf(wire::AcquireReply{.parts = {{.hits = {HitAt(0, kBlockTokens + 1)},
                                                    .new_blocks = {kFresh}}}},
                      id);
     }},
    {"ABlockToBeLoadedWithoutALoad",
     [](uint64_t id) {
       return FrameOf(wire::AcquireReply{.parts = {{.hits = {HitAt(0, kBlockTokens, Tier::kDisk)},
                                                    .new_blocks = {kFresh}}}},
                      id);
     }},
    {"APartialBlockNotAskedFor",
     [](uint64_t id) {
       return FrameOf(wire::AcquireReply{.parts = {{.partial_block = 0,
                                                    .hits = {HitAt(0), HitAt(1), HitAt(2)},
                                                    .new_blocks = {kFresh}}}},
                      id);
     }},
};

INSTANTIATE_TEST_SUITE_P(All, GarbageTest, ::testing::ValuesIn(kGarbage),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_F(BrokenDaemonTest, ALoadThatGoesBackwardsEndsTheConnection) {
  Attach();
  daemon_->WithCache([](FakeCache* cache) {
    cache->PutBelow(WireHash(1), Tier::kHost, kBlockTokens, std::byte{1});
    cache->PutBelow(WireHash(2), Tier::kHost, kBlockTokens, std::byte{2});
  });
  auto acquired = pool_->Acquire(Hashes(1, 2));
  ASSERT_TRUE(acquired);
  daemon_->Progress(LoadId{acquired->load.id}, 1, false);
  daemon_->Progress(LoadId{acquired->load.id}, 0, false);
  const auto progress = pool_->Wait(&*acquired, 2);
  ASSERT_FALSE(progress);
  EXPECT_EQ(progress.error().code, KVT_UNAVAILABLE);
  EXPECT_EQ(progress.error().reason, "protocol_violation");
}

TEST_F(BrokenDaemonTest, ALoadPastItsEndEndsTheConnection) {
  Attach();
  daemon_->WithCache([](FakeCache* cache) {
    cache->PutBelow(WireHash(1), Tier::kHost, kBlockTokens, std::byte{1});
  });
  auto acquired = pool_->Acquire(Hashes(1, 1));
  ASSERT_TRUE(acquired);
  daemon_->Progress(LoadId{acquired->load.id}, 2, true);
  EXPECT_EQ(pool_->Wait(&*acquired, 1).error().reason, "protocol_violation");
}

TEST_F(BrokenDaemonTest, ProgressOfUnknownLoadsIsIgnored) {
  Attach();
  daemon_->Progress(LoadId{77}, 1, true);
  EXPECT_TRUE(connection_->Ping());
}

TEST_F(BrokenDaemonTest, AFarewellIsPartOfTheReason) {
  Attach();
  daemon_->Send(FrameOf(wire::ErrorReply{{ErrorCode::kTimeout, "slow_reader", "unread"}}, 0));
  daemon_->DropClient();
  EXPECT_FALSE(connection_->IsConnected());
  EXPECT_EQ(connection_->Flush().error().code, KVT_UNAVAILABLE);
  EXPECT_THAT(kvt_last_error()->context, ::testing::HasSubstr("slow_reader"));
}

}  // namespace
}  // namespace kvtier::client
