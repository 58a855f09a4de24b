// SPDX-License-Identifier: Apache-2.0
// The messages with which the daemon computes and counts, in hostile hands: each costs its sender's
// session at most, and no other client notices.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "gpu/counter_page.h"
#include "tests/fakes/seeded_random.h"
#include "tests/unit/daemon/server_under_test.h"
#include "tests/unit/daemon/verbs.h"
#include "tests/unit/daemon/wire_client.h"

namespace kvtier {
namespace {

constexpr uint64_t kWorkspaceBytes = 64 * kKiB;

class HostileMessages : public testing::Test {
 protected:
  HostileMessages() : bystander_(daemon_.socket()) {
    pool_ = bystander_.Attach().pool;
    kept_ = Fill(&bystander_, pool_, Hashes(900, 4));
  }
  ~HostileMessages() override {
    EXPECT_EQ(Acquire(&bystander_, pool_, Hashes(900, 4), 0).hits.size(), 4u);
    const auto workspace = OpenWorkspace(&bystander_);
    bystander_.Send(AttendOver(kept_));
    const auto received = bystander_.Receive();
    EXPECT_TRUE(received && received->Is(wire::MessageType::kAttendReply));
  }

  // A session that may use all of it: counters, the pool, a workspace.
  struct Intruder {
    WireClient client;
    UniqueFd counters;
    UniqueFd workspace;
  };
  std::unique_ptr<Intruder> Enter() {
    auto intruder = std::make_unique<Intruder>(Intruder{WireClient(daemon_.socket()), {}, {}});
    WireClient& client = intruder->client;
    client.Send(wire::Hello{.client_name = "test"});
    auto hello = client.Receive();
    EXPECT_TRUE(hello && hello->descriptor.valid());
    intruder->counters = std::move(hello->descriptor);
    const auto model = client.Call<wire::RegisterModelReply>(wire::RegisterModel{TestModel()});
    client.Send(wire::Attach{.model = model.model});
    EXPECT_TRUE(client.Receive());
    intruder->workspace = OpenWorkspace(&client);
    return intruder;
  }
  UniqueFd OpenWorkspace(WireClient* client) const {
    client->Send(wire::Workspace{pool_, 0, kWorkspaceBytes});
    auto received = client->Receive();
    EXPECT_TRUE(received && received->Is(wire::MessageType::kWorkspaceReply));
    return std::move(received->descriptor);
  }
  [[nodiscard]] wire::Attend AttendOver(const std::vector<BlockHandle>& blocks) const {
    wire::Attend attend;
    attend.pool = pool_;
    attend.q_heads = 4;
    attend.softmax_scale = 0.125F;
    attend.output_offset = 16 * kKiB;
    attend.lse_offset = 32 * kKiB;
    attend.sequences = {
        {.query_tokens = 1, .kv_tokens = static_cast<uint32_t>(16 * blocks.size())}};
    attend.blocks = blocks;
    return attend;
  }
  // The messages as they should be, of which the intruder makes others.
  [[nodiscard]] std::vector<std::vector<std::byte>> GoodFrames(
      const std::vector<BlockHandle>& blocks, const std::vector<BlockHash>& hashes) const {
    std::vector<std::vector<std::byte>> frames(5);
    wire::Encode(AttendOver(blocks), 1, &frames[0]);
    wire::Encode(wire::Workspace{pool_, 1, kWorkspaceBytes}, 2, &frames[1]);
    wire::Encode(wire::Devices{}, 3, &frames[2]);
    wire::Acquire acquire{.parts = {{.pool = pool_, .new_blocks = 1, .hashes = hashes}}};
    acquire.order = wire::LoadOrder::kLayers;
    wire::Encode(acquire, 4, &frames[3]);
    wire::Encode(
        wire::Acquire{.parts = {{.pool = pool_, .hashes = hashes, .partial_blocks = hashes}}}, 5,
        &frames[4]);
    return frames;
  }

  ServerUnderTest daemon_;
  WireClient bystander_;
  PoolId pool_;
  std::vector<BlockHandle> kept_;
};

TEST_F(HostileMessages, BytesChangedAnywhereHarmNobodyElse) {
  const auto hashes = Hashes(900, 4);
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SeededRandom random(seed);
    auto intruder = Enter();
    const auto blocks = Acquire(&intruder->client, pool_, {}, 2).new_blocks;
    const auto frames = GoodFrames(blocks, hashes);
    for (int i = 0; i < 12; ++i) {
      std::vector<std::byte> frame = frames[random.Below(frames.size())];
      // Not the length, which would only end the session.
      const uint64_t changes = 1 + random.Below(4);
      for (uint64_t change = 0; change < changes && frame.size() > 16; ++change) {
        const size_t at = 16 + random.Below(frame.size() - 16);
        constexpr int kTelling[] = {0x00, 0x01, 0x7f, 0x80, 0xff};
        frame[at] = static_cast<std::byte>(random.Below(2) == 0 ? kTelling[random.Below(5)]
                                                                : random.Below(256));
      }
      intruder->client.SendBytes(frame);
    }
    // Until the daemon has taken all of it, or has had enough.
    intruder->client.Send(wire::Ping{});
    while (true) {
      const auto received = intruder->client.Receive();
      if (!received || received->Is(wire::MessageType::kPong)) break;
    }
    intruder.reset();
    daemon_.WaitUntil([&] { return daemon_.server().session_count() == 1; });
    // Its blocks are its process's until that is gone: this one, which does no harm.
    daemon_.OnLoop([&] { daemon_.cache().ReleaseQuarantine(SessionId(seed + 2)); });
  }
}

TEST_F(HostileMessages, NumbersOutOfRangeAreRefusedOneByOne) {
  const auto intruder = Enter();
  WireClient& client = intruder->client;
  const auto blocks = Acquire(&client, pool_, {}, 2).new_blocks;
  const wire::Attend good = AttendOver(blocks);
  const auto error_of = [&](const std::function<void(wire::Attend*)>& change) {
    wire::Attend attend = good;
    change(&attend);
    return client.ErrorOf(attend);
  };
  using A = wire::Attend;
  EXPECT_EQ(error_of([](A* a) { a->sequences[0].kv_tokens = UINT32_MAX; }), "bad_block_count");
  EXPECT_EQ(error_of([](A* a) { a->sequences[0] = {UINT32_MAX, UINT32_MAX}; }), "attend_work");
  EXPECT_EQ(error_of([](A* a) { a->sequences[0].query_tokens = 33; }), "bad_sequence");
  EXPECT_EQ(error_of([](A* a) { a->sequences[0].query_tokens = 0; }), "bad_sequence");
  EXPECT_EQ(error_of([](A* a) { a->sequences.clear(); }), "bad_sequence");
  EXPECT_EQ(error_of([](A* a) { a->layer = UINT32_MAX; }), "bad_layer");
  EXPECT_EQ(error_of([](A* a) { a->q_heads = UINT32_MAX; }), "bad_heads");
  EXPECT_EQ(error_of([](A* a) { a->workspace = UINT32_MAX; }), "unknown_workspace");
  EXPECT_EQ(error_of([](A* a) { a->query_offset = UINT64_MAX; }), "bad_range");
  EXPECT_EQ(error_of([](A* a) { a->query_offset = 8; }), "bad_range");
  EXPECT_EQ(error_of([](A* a) { a->output_offset = 2 * kMiB; }), "bad_range");
  EXPECT_EQ(error_of([](A* a) { a->output_offset = a->query_offset; }), "bad_range");
  EXPECT_EQ(error_of([](A* a) { a->lse_offset = a->output_offset; }), "bad_range");
  EXPECT_EQ(error_of([](A* a) { a->blocks[1].index = BlockIndex(1u << 31); }), "stale_generation");
  client.Send(good);
  const auto received = client.Receive();
  EXPECT_TRUE(received && received->Is(wire::MessageType::kAttendReply));
}

TEST_F(HostileMessages, NoClientCanCutAWorkspaceUnderTheDaemonsFeet) {
  const auto intruder = Enter();
  EXPECT_EQ(::ftruncate(intruder->workspace.get(), 0), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(::ftruncate(intruder->counters.get(), 0), -1);
  EXPECT_EQ(errno, EPERM);
  // Taking the pages out leaves zeros.
  for (const UniqueFd* fd : {&intruder->workspace, &intruder->counters}) {
    EXPECT_EQ(::fallocate(fd->get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 16 * kKiB), 0);
  }
  const auto blocks = Acquire(&intruder->client, pool_, {}, 2).new_blocks;
  intruder->client.Send(AttendOver(blocks));
  const auto received = intruder->client.Receive();
  EXPECT_TRUE(received && received->Is(wire::MessageType::kAttendReply));
}

TEST_F(HostileMessages, WhatAClientWritesOnItsCountersMisleadsOnlyItself) {
  // So many blocks that the first have sunk to host memory.
  for (int round = 0; round < 5; ++round) {
    const auto hashes = Hashes(round * 32, 32);
    const auto blocks = Fill(&bystander_, pool_, hashes);
    bystander_.Send(wire::Release{.pool = pool_, .blocks = blocks}, false);
  }
  const auto intruder = Enter();
  void* const counters = ::mmap(nullptr, kCounterPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                                intruder->counters.get(), 0);
  ASSERT_NE(counters, MAP_FAILED);
  const auto hashes = Hashes(0, 32);
  for (int round = 0; round < 3; ++round) {
    std::memset(counters, round == 0 ? 0xff : 0x5a + round, kCounterPageBytes);
    intruder->client.Send(
        wire::Acquire{.order = round == 1 ? wire::LoadOrder::kLayers : wire::LoadOrder::kBlocks,
                      .parts = {{.pool = pool_, .hashes = hashes}}});
    std::memset(counters, 0xff, kCounterPageBytes);
    bool finished = false;
    uint32_t ready = 32;
    while (!finished) {
      const auto received = intruder->client.Receive();
      ASSERT_TRUE(received);
      if (received->Is(wire::MessageType::kAcquireReply)) {
        const auto reply = wire::Decode<wire::AcquireReply>(received->payload).value();
        EXPECT_EQ(reply.parts.at(0).hits.size(), 32u);
        finished = reply.parts.at(0).load == LoadId{};
      } else if (received->Is(wire::MessageType::kLoadProgress)) {
        const LoadProgress progress =
            wire::Decode<wire::LoadProgress>(received->payload).value().progress;
        ready = progress.ready;
        finished = progress.finished;
      }
    }
    EXPECT_EQ(ready, 32u);
  }
  ::munmap(counters, kCounterPageBytes);
}

TEST(HostileTenants, BlocksOfAnotherTenantCannotBeAttendedTo) {
  ServerUnderTest daemon([](Config* config) {
    config->tenants = {{.name = "red", .uids = {1001}}, {.name = "blue", .uids = {1002}}};
    config->cache.pool_bytes = 512 * kKiB;
  });
  daemon.peers.uid = 1001;
  WireClient red(daemon.socket());
  const PoolId red_pool = red.Attach(TestModel(), 0, 256 * kKiB).pool;
  const auto secret = Fill(&red, red_pool, Hashes(0, 2));
  daemon.peers.uid = 1002;
  WireClient blue(daemon.socket());
  const PoolId blue_pool = blue.Attach(TestModel(), 0, 256 * kKiB).pool;
  blue.Send(wire::Workspace{blue_pool, 0, kWorkspaceBytes});
  ASSERT_TRUE(blue.Receive());
  wire::Attend attend;
  attend.pool = red_pool;
  attend.q_heads = 4;
  attend.output_offset = 16 * kKiB;
  attend.sequences = {{.query_tokens = 1, .kv_tokens = 32}};
  attend.blocks = secret;
  EXPECT_EQ(blue.ErrorOf(attend), "pool_not_attached");
  // The same numbers in one's own pool name nothing that one holds.
  attend.pool = blue_pool;
  EXPECT_EQ(blue.ErrorOf(attend), "stale_generation");
  EXPECT_EQ(blue.ErrorOf(wire::Workspace{red_pool, 1, kWorkspaceBytes}), "pool_not_attached");
}

}  // namespace
}  // namespace kvtier
