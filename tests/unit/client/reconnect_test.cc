// SPDX-License-Identifier: Apache-2.0
// Things that survive a lost connection, and things that must not. The daemon's messages about the
// end of an attachment.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <fstream>
#include <ios>
#include <memory>
#include <string>
#include <thread>

#include "tests/unit/client/client_fixture.h"

namespace kvtier::client {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ReconnectTest : public ClientFixture {
 protected:
  void SetUp() override {
    ClientFixture::SetUp();
    Attach();
    Fill(Hashes(1, 2));
  }

  void Restart(uint64_t generation) {
    daemon_.reset();
    StartDaemon({.generation = generation});
  }
};

TEST_F(ReconnectTest, WithoutADaemonEverythingIsAMiss) {
  daemon_.reset();
  kvt_acquire_request request{};
  request.size = sizeof(request);
  const std::vector<kvt_hash> hashes = Hashes(1, 2);
  request.hashes = hashes.data();
  request.hash_count = hashes.size();
  std::vector<kvt_acquired_block> hits(2);
  kvt_acquire_reply reply{};
  reply.size = sizeof(reply);
  reply.hits = hits.data();
  reply.hits_capacity = hits.size();
  reply.hit_count = 99;
  EXPECT_EQ(kvt_acquire(pool_->get(), &request, &reply), KVT_UNAVAILABLE);
  EXPECT_EQ(reply.hit_count, 0u);
  EXPECT_EQ(reply.new_block_count, 0u);
  EXPECT_EQ(reply.load.id, 0u);
  EXPECT_EQ(reply.miss, KVT_MISS_UNAVAILABLE);
  EXPECT_EQ(pool_->Lookup(hashes).error().code, KVT_UNAVAILABLE);
  EXPECT_EQ(pool_->Prefetch(hashes).error().code, KVT_UNAVAILABLE);
  EXPECT_EQ(connection_->Ping().error().code, KVT_UNAVAILABLE);
}

TEST_F(ReconnectTest, APoolOfBeforeTheFirstDaemonHasWholeBlocks) {
  const uint64_t block_bytes = pool_->block_bytes();
  EXPECT_EQ(block_bytes, pool_->Info().block_bytes);
  daemon_.reset();
  kvt_connect_options options = Options();
  options.wait_for_daemon = 1;
  Attach(options);
  EXPECT_EQ(pool_->block_bytes(), block_bytes);
  EXPECT_EQ(pool_->Info().block_bytes, 0u);
  StartDaemon({});
  const auto acquired = pool_->Acquire({}, {}, 1);
  ASSERT_TRUE(acquired) << acquired.error().ToString();
  const auto bytes = pool_->Bytes(acquired->new_blocks[0]);
  ASSERT_TRUE(bytes);
  EXPECT_EQ(bytes->size(), block_bytes);
}

// The daemon's only device from now on; `attach`, if any, answers ATTACH.
void List(FakeDaemon* daemon, const wire::DevicesReply::Device& device,
          const std::optional<Error>& attach = {}) {
  daemon->Intercept([=](const wire::Frame& frame) -> std::optional<FakeDaemon::Bytes> {
    if (frame.type == static_cast<uint16_t>(wire::MessageType::kDevices)) {
      return FrameOf(wire::DevicesReply{{device}}, frame.request_id);
    }
    if (!attach || frame.type != static_cast<uint16_t>(wire::MessageType::kAttach)) return {};
    return FrameOf(wire::ErrorReply{*attach}, frame.request_id);
  });
}

TEST_F(ReconnectTest, APoolInHostMemoryDoesNotMoveToAGpu) {
  daemon_.reset();
  StartDaemon({.generation = 2});
  List(daemon_.get(), {.kind = wire::DeviceKind::kCuda, .uuid = {1}, .name = "gpu"});
  EXPECT_EQ(pool_->Acquire({}, {}, 1).error().code, KVT_UNAVAILABLE);
  const std::vector<kvt_async_error> errors = connection_->TakeErrors();
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_STREQ(errors[0].reason, "device_not_served");
  daemon_->Intercept(nullptr);
  EXPECT_TRUE(pool_->Acquire({}, {}, 1));
}

TEST_F(ReconnectTest, APoolThatTheDaemonRefusesLaterSaysWhy) {
  pool_.reset();
  connection_.reset();
  daemon_.reset();
  kvt_connect_options options = Options();
  options.wait_for_daemon = 1;
  Attach(options);
  StartDaemon({});
  List(daemon_.get(), {.kind = wire::DeviceKind::kCuda, .uuid = {1}, .name = "gpu"},
       Error{ErrorCode::kResourceExhausted, "pool_bytes_exhausted", "none is left"});
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(pool_->Acquire({}, {}, 1).error().code, KVT_UNAVAILABLE);
  }
  const std::vector<kvt_async_error> errors = connection_->TakeErrors();
  ASSERT_EQ(errors.size(), 1u) << "once, however often it is refused";
  EXPECT_EQ(errors[0].code, KVT_RESOURCE_EXHAUSTED);
  EXPECT_STREQ(errors[0].reason, "pool_bytes_exhausted");
  EXPECT_EQ(errors[0].block.attachment, 0u);
  kvt_pool_info info{};
  info.size = sizeof(info);
  EXPECT_EQ(kvt_pool_get_info(pool_->get(), &info), KVT_UNAVAILABLE);
  EXPECT_THAT(kvt_last_error()->context, HasSubstr("none is left"));
  List(daemon_.get(), {.kind = wire::DeviceKind::kCuda, .uuid = {2}, .name = "another"});
  EXPECT_TRUE(pool_->Acquire({}, {}, 1)) << "it was never on the GPU of the daemon that refused";
  EXPECT_THAT(connection_->TakeErrors(), IsEmpty());
}

TEST_F(ReconnectTest, BetweenTriesCallsFailAtOnce) {
  kvt_connect_options options = Options();
  options.reconnect_min_ms = 1'000'000;
  options.reconnect_max_ms = 1'000'000;
  pool_.reset();
  Attach(options);
  daemon_.reset();
  EXPECT_EQ(connection_->Ping().error().reason, "no_daemon");
  StartDaemon({});
  EXPECT_EQ(connection_->Ping().error().reason, "reconnect_pause");
  EXPECT_EQ(daemon_->requests(), 0);
}

TEST_F(ReconnectTest, ReconnectingCanBeTurnedOff) {
  kvt_connect_options options = Options();
  options.reconnect_min_ms = -1;
  pool_.reset();
  Attach(options);
  daemon_->DropClient();
  EXPECT_EQ(connection_->Ping().error().reason, "connection_lost");
  EXPECT_EQ(connection_->Ping().error().reason, "connection_lost");
}

TEST_F(ReconnectTest, ARestartedDaemonServesTheNextCallWithoutAMiss) {
  Restart(2);
  const auto acquired = pool_->Acquire({}, {}, 1);
  ASSERT_TRUE(acquired) << acquired.error().ToString();
  EXPECT_EQ(daemon_->Requests(wire::MessageType::kRegisterModel), 1);
  EXPECT_EQ(daemon_->Requests(wire::MessageType::kAttach), 1);
  EXPECT_EQ(pool_->Info().generation, 2u);
}

TEST_F(ReconnectTest, HandlesOfALostConnectionAreStale) {
  auto acquired = pool_->Acquire(Hashes(1, 2), {}, 1);
  ASSERT_TRUE(acquired);
  const uint64_t attachment = pool_->Info().attachment;
  Restart(2);
  ASSERT_TRUE(pool_->Acquire({}, {}, 1));
  EXPECT_NE(pool_->Info().attachment, attachment);

  kvt_commit_entry entry{};
  entry.block = acquired->new_blocks[0];
  entry.tokens = kBlockTokens;
  EXPECT_EQ(pool_->Commit(std::span(&entry, 1)).error().code, KVT_STALE_HANDLE);
  const std::vector<kvt_block> blocks = acquired->hits.Take();
  std::vector<kvt_status> results(blocks.size());
  EXPECT_EQ(kvt_release(pool_->get(), blocks.data(), blocks.size(), results.data()), KVT_OK);
  EXPECT_THAT(results, Each(KVT_STALE_HANDLE));
  acquired->load = {1, attachment};
  EXPECT_EQ(pool_->Wait(&*acquired, 1).error().code, KVT_STALE_HANDLE);
}

TEST_F(ReconnectTest, ReleasingWhatALostConnectionHeldIsNoError) {
  const auto acquired = pool_->Acquire(Hashes(1, 2));
  ASSERT_TRUE(acquired);
  daemon_.reset();
  EXPECT_TRUE(pool_->Release(acquired->hits.blocks()));
}

TEST_F(ReconnectTest, AWaitForALoadOfALostConnectionIsUnavailable) {
  daemon_->WithCache([](FakeCache* cache) {
    cache->PutBelow(WireHash(9), Tier::kHost, kBlockTokens, std::byte{9});
  });
  auto acquired = pool_->Acquire(std::vector<kvt_hash>{Hash(9)});
  ASSERT_TRUE(acquired);
  daemon_->DropClient();
  EXPECT_EQ(pool_->Wait(&*acquired, 1).error().code, KVT_UNAVAILABLE);
}

TEST_F(ReconnectTest, MemoryOfAnEarlierPoolStaysReadableUntilItIsDropped) {
  const auto acquired = pool_->Acquire(Hashes(1, 2));
  ASSERT_TRUE(acquired);
  const kvt_block old = acquired->hits[1];
  const std::byte* bytes = pool_->Bytes(old)->data();
  Restart(2);
  ASSERT_TRUE(pool_->Acquire({}, {}, 1));
  EXPECT_EQ(bytes[0], std::byte{2});
  EXPECT_EQ(pool_->Bytes(old)->data(), bytes);
  EXPECT_NE(pool_->Info().base, nullptr);
  pool_->DropStaleMappings();
  EXPECT_EQ(pool_->Bytes(old).error().code, KVT_STALE_HANDLE);
}

TEST_F(ReconnectTest, APoolTwoGenerationsOldIsEmptiedButDoesNotFault) {
  const auto acquired = pool_->Acquire(Hashes(1, 2));
  ASSERT_TRUE(acquired);
  std::byte* bytes = pool_->Bytes(acquired->hits[1])->data();
  Restart(2);
  ASSERT_TRUE(pool_->Acquire({}, {}, 1));
  EXPECT_EQ(bytes[0], std::byte{2});
  Restart(3);
  ASSERT_TRUE(pool_->Acquire({}, {}, 1));
  EXPECT_EQ(bytes[0], std::byte{0});
  bytes[0] = std::byte{1};
}

TEST_F(ReconnectTest, AnotherPoolsHandlesAreStaleAlsoAfterAReconnection) {
  auto other = connection_->Attach(pool_->Info().model, 0, 0);
  ASSERT_TRUE(other) << other.error().ToString();
  const auto acquired = other->Acquire({}, {}, 1);
  ASSERT_TRUE(acquired);
  const kvt_block block = acquired->new_blocks[0];
  daemon_->DropClient();
  ASSERT_TRUE(pool_->Acquire({}, {}, 1));
  std::vector<std::byte> bytes(1);
  EXPECT_EQ(pool_->Bytes(block).error().code, KVT_STALE_HANDLE);
  EXPECT_EQ(pool_->Read(block, bytes).error().code, KVT_STALE_HANDLE);
  EXPECT_EQ(pool_->Write(block, bytes).error().code, KVT_STALE_HANDLE);
}

TEST_F(ReconnectTest, WhatALostConnectionHeldIsReadAndNotWritten) {
  const auto acquired = pool_->Acquire(Hashes(1, 1));
  ASSERT_TRUE(acquired);
  const kvt_block block = acquired->hits[0];
  daemon_->DropClient();
  ASSERT_TRUE(pool_->Acquire({}, {}, 1));
  std::vector<std::byte> bytes(1);
  EXPECT_TRUE(pool_->Read(block, bytes));
  EXPECT_EQ(bytes[0], std::byte{1});
  EXPECT_EQ(pool_->Write(block, bytes).error().code, KVT_STALE_HANDLE);
}

TEST_F(ReconnectTest, ABlockBehindTheEndOfItsOwnPoolIsRefused) {
  const auto acquired = pool_->Acquire({}, {}, 1);
  ASSERT_TRUE(acquired);
  kvt_block block = acquired->new_blocks[0];
  block.index = pool_->Info().blocks;
  daemon_.reset();
  StartDaemon({.blocks = 4096, .generation = 2});
  ASSERT_TRUE(pool_->Acquire({}, {}, 1));
  std::vector<std::byte> bytes(1);
  EXPECT_EQ(pool_->Read(block, bytes).error().reason, "block_outside_pool");
}

TEST_F(ReconnectTest, TheSamePoolKeepsItsAddress) {
  const kvt_pool_info before = pool_->Info();
  daemon_->DropClient();
  const auto acquired = pool_->Acquire(Hashes(1, 2));
  ASSERT_TRUE(acquired) << acquired.error().ToString();
  EXPECT_EQ(acquired->hits.size(), 2u);
  const kvt_pool_info after = pool_->Info();
  EXPECT_EQ(after.base, before.base);
  EXPECT_EQ(after.generation, before.generation);
  EXPECT_NE(after.attachment, before.attachment);
}

TEST_F(ReconnectTest, AFlushDoesNotPassOverALostConnection) {
  ASSERT_TRUE(connection_->Flush());
  daemon_->DropClient();
  EXPECT_EQ(connection_->Flush().error().code, KVT_UNAVAILABLE);
  EXPECT_TRUE(connection_->Ping());
  EXPECT_EQ(connection_->Flush().error().code, KVT_UNAVAILABLE);
  EXPECT_TRUE(connection_->Flush());
}

TEST_F(ReconnectTest, LookingForTheConnectionDoesNotReconnect) {
  EXPECT_TRUE(connection_->IsConnected());
  daemon_->DropClient();
  EXPECT_FALSE(connection_->IsConnected());
  EXPECT_FALSE(connection_->IsConnected());
}

TEST_F(ReconnectTest, TheLossIsSeenEvenWhileAnotherThreadReads) {
  daemon_->WithCache([](FakeCache* cache) {
    cache->PutBelow(WireHash(9), Tier::kHost, kBlockTokens, std::byte{9});
  });
  auto acquired = pool_->Acquire(std::vector<kvt_hash>{Hash(9)});
  ASSERT_TRUE(acquired);
  std::thread waits([&] { EXPECT_FALSE(pool_->Wait(&*acquired, 1)); });
  daemon_->DropClient();
  EXPECT_FALSE(connection_->IsConnected());
  waits.join();
}

TEST_F(ReconnectTest, AThreadThatWaitsLearnsOfTheLoss) {
  daemon_->Intercept([](const wire::Frame& frame) -> std::optional<FakeDaemon::Bytes> {
    if (frame.type != static_cast<uint16_t>(wire::MessageType::kAcquire)) return std::nullopt;
    return FakeDaemon::Bytes();
  });
  std::thread kills([&] {
    daemon_->WaitForRequests(wire::MessageType::kAcquire, 2);  // one by Fill
    daemon_->DropClient();
  });
  const auto acquired = pool_->Acquire(Hashes(1, 2));
  kills.join();
  ASSERT_FALSE(acquired);
  EXPECT_EQ(acquired.error().code, KVT_UNAVAILABLE);
  EXPECT_EQ(acquired.error().reason, "connection_lost");
}

constexpr auto kDetach = wire::MessageType::kDetach;

class DetachTest : public ClientFixture {
 protected:
  void SetUp() override {
    ClientFixture::SetUp();
    Attach();
  }
  // An argument for Intercept: `look` sees each DETACH, which is then served.
  static FakeDaemon::Interceptor WithDetach(std::function<void(const wire::Detach&)> look) {
    return [look = std::move(look)](const wire::Frame& frame) -> std::optional<FakeDaemon::Bytes> {
      if (frame.type == static_cast<uint16_t>(kDetach)) {
        look(*wire::Decode<wire::Detach>(frame.payload));
      }
      return std::nullopt;
    };
  }
};

// Threads and allocators may take the address at once, for memory of their own.
bool IsMappedShared(const void* address) {
  std::ifstream maps("/proc/self/maps");
  uintptr_t begin = 0, end = 0;
  char dash = 0;
  std::string access, rest;
  while (maps >> std::hex >> begin >> dash >> end >> access && std::getline(maps, rest)) {
    const auto at = reinterpret_cast<uintptr_t>(address);
    if (begin <= at && at < end) return access.ends_with('s');
  }
  return false;
}

TEST_F(DetachTest, ClosingAPoolUnmapsItAndTellsTheDaemon) {
  ASSERT_TRUE(IsMappedShared(pool_->Info().base));
  struct Seen {
    std::atomic<uint32_t> pool = 0;
    std::atomic<bool> unmapped = false;
  };
  const auto seen = std::make_shared<Seen>();
  void* const base = pool_->Info().base;
  daemon_->Intercept(WithDetach([seen, base](const wire::Detach& detach) {
    seen->unmapped = !IsMappedShared(base);
    seen->pool = detach.pool.value;
  }));
  pool_.reset();
  daemon_->WaitForRequests(kDetach, 1);
  EXPECT_EQ(seen->pool, 3u);
  EXPECT_TRUE(seen->unmapped);
  EXPECT_TRUE(connection_->Ping());
}

TEST_F(DetachTest, NothingIsWaitedFor) {
  daemon_->HoldBack(kDetach);
  pool_.reset();
  (void)daemon_->WaitForHeldBack();
  EXPECT_TRUE(connection_->Ping());
}

TEST_F(DetachTest, ADaemonThatDoesNotKnowTheMessageIsPassedOver) {
  daemon_->Intercept([](const wire::Frame& frame) -> std::optional<FakeDaemon::Bytes> {
    if (frame.type != static_cast<uint16_t>(kDetach)) return std::nullopt;
    return FrameOf(wire::ErrorReply{{ErrorCode::kUnsupported, "unknown_message", "fake"}},
                   frame.request_id);
  });
  pool_.reset();
  EXPECT_TRUE(connection_->Ping());
  EXPECT_THAT(connection_->TakeErrors(), IsEmpty());
  const auto model = connection_->RegisterModel(Record());
  ASSERT_TRUE(model);
  auto again = connection_->Attach(model->model, 0, 0);
  ASSERT_TRUE(again) << again.error().ToString();
  EXPECT_TRUE(again->Acquire({}, {}, 1));
}

TEST_F(DetachTest, WithoutAConnectionThereIsNothingToTell) {
  daemon_->DropClient();
  pool_.reset();
  EXPECT_TRUE(connection_->Ping()) << "it has reconnected";
  EXPECT_EQ(daemon_->Requests(kDetach), 0);
}

TEST_F(DetachTest, AnAttachmentThatComesTooLateIsTakenBack) {
  Attach(ImpatientOptions());
  daemon_->WaitForRequests(kDetach, 1);
  const auto model = connection_->RegisterModel(Record());
  ASSERT_TRUE(model);
  daemon_->HoldBack(wire::MessageType::kAttach);
  ASSERT_FALSE(connection_->Attach(model->model, 0, 0));
  const uint64_t request = daemon_->WaitForHeldBack();
  daemon_->Intercept({});
  daemon_->Send(
      FrameOf(wire::AttachReply{.pool = PoolId{9}, .block_bytes = 1, .blocks = 1}, request));
  daemon_->WaitForRequests(kDetach, 2);
}

}  // namespace
}  // namespace kvtier::client
