// SPDX-License-Identifier: Apache-2.0
// Waiting for loads that are counted in shared memory.
#include <chrono>
#include <future>

#include "tests/unit/client/client_fixture.h"

namespace kvtier::client {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr uint8_t kChecksumMismatch = 6;

class LoadCounterTest : public ClientFixture {
 protected:
  void SetUp() override { Begin(); }
  void Begin() {
    StartDaemon({.counters = true});
    Attach();
    daemon_->WithCache([](FakeCache* cache) {
      for (uint8_t byte = 1; byte <= 4; ++byte) {
        cache->PutBelow(WireHash(byte), Tier::kHost, kBlockTokens, std::byte{byte});
      }
    });
  }
  kvt::Acquired Acquire(kvt_load_order order = KVT_LOAD_BLOCKS) {
    auto acquired = pool_->Acquire(Hashes(1, 4), {}, 0, order);
    EXPECT_TRUE(acquired) << acquired.error().ToString();
    EXPECT_EQ(acquired->hits.size(), 4u);
    EXPECT_NE(acquired->load.id, 0u);
    return *std::move(acquired);
  }
  [[nodiscard]] static LoadId IdOf(const kvt::Acquired& acquired) {
    return LoadId{acquired.load.id};
  }
};

TEST_F(LoadCounterTest, TheCounterIsAheadOfTheEvents) {
  kvt::Acquired acquired = Acquire();
  daemon_->Count(IdOf(acquired), 2);
  const auto two = pool_->Wait(&acquired, 2);
  ASSERT_TRUE(two) << two.error().ToString();
  EXPECT_EQ(two->ready, 2u);
  EXPECT_FALSE(two->finished);
  EXPECT_EQ((*pool_->Bytes(acquired.hits[1]))[0], std::byte{2});
  daemon_->Count(IdOf(acquired), 4);
  const auto all = pool_->Wait(&acquired, 4);
  ASSERT_TRUE(all);
  EXPECT_EQ(all->ready, 4u);
  EXPECT_TRUE(all->finished);
  EXPECT_EQ(all->layers, KVT_ALL_LAYERS);
}

TEST_F(LoadCounterTest, EventsAloneDoAsWell) {
  kvt::Acquired acquired = Acquire();
  daemon_->Progress(IdOf(acquired), 4, true);
  const auto all = pool_->Wait(&acquired, 4);
  ASSERT_TRUE(all);
  EXPECT_EQ(all->ready, 4u);
}

TEST_F(LoadCounterTest, NotWaitingTellsHowFarItIs) {
  kvt::Acquired acquired = Acquire();
  daemon_->Count(IdOf(acquired), 3);
  kvt_load_progress progress{};
  progress.size = sizeof(progress);
  EXPECT_EQ(kvt_wait(pool_->get(), acquired.load, 4, 0, &progress), KVT_TIMEOUT);
  EXPECT_EQ(progress.ready, 3u);
  EXPECT_EQ(progress.finished, 0);
}

TEST_F(LoadCounterTest, AnEndedCounterLeavesTheWordToTheEvents) {
  kvt::Acquired acquired = Acquire();
  daemon_->Count(IdOf(acquired), 5);
  kvt_load_progress progress{};
  progress.size = sizeof(progress);
  EXPECT_EQ(kvt_wait(pool_->get(), acquired.load, 4, 20, &progress), KVT_TIMEOUT);
  EXPECT_EQ(progress.ready, 0u);
  daemon_->Progress(IdOf(acquired), 1, true, kChecksumMismatch);
  const auto ended = pool_->Wait(&acquired, 4);
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->ready, 1u);
  EXPECT_EQ(ended->miss, KVT_MISS_CHECKSUM_MISMATCH);
  EXPECT_EQ(acquired.hits.size(), 1u);
}

TEST_F(LoadCounterTest, LayersAreCounted) {
  kvt::Acquired acquired = Acquire(KVT_LOAD_LAYERS);
  daemon_->Count(IdOf(acquired), 3);
  const auto three = pool_->WaitLayers(&acquired, 2);
  ASSERT_TRUE(three);
  EXPECT_EQ(three->layers, 3u);
  EXPECT_EQ(three->ready, 0u);
  // All layers are all hits.
  daemon_->Count(IdOf(acquired), 8);
  const auto all = pool_->Wait(&acquired, 4);
  ASSERT_TRUE(all);
  EXPECT_EQ(all->ready, 4u);
  EXPECT_EQ(all->layers, KVT_ALL_LAYERS);
}

TEST_F(LoadCounterTest, LayersThatWereCountedBeforeAFailureAreNotConfirmed) {
  kvt::Acquired acquired = Acquire(KVT_LOAD_LAYERS);
  daemon_->Count(IdOf(acquired), 3);
  ASSERT_TRUE(pool_->WaitLayers(&acquired, 3));
  daemon_->Count(IdOf(acquired), 9);
  daemon_->Progress(IdOf(acquired), 2, true, kChecksumMismatch);
  const auto ended = pool_->WaitLayers(&acquired, 3);
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->layers, 0u);
  EXPECT_EQ(ended->ready, 2u);
}

TEST_F(LoadCounterTest, WhoWaitsNoticesTheEndOfTheDaemonWithinASecond) {
  EXPECT_TRUE(CanBeWithin(std::chrono::seconds(1), [&]() -> std::chrono::nanoseconds {
    Begin();
    kvt::Acquired acquired = Acquire();
    auto waiting = std::async(std::launch::async, [&] {
      kvt_load_progress progress{};
      progress.size = sizeof(progress);
      return kvt_wait(pool_->get(), acquired.load, 4, 60'000, &progress);
    });
    daemon_->DropClient();
    const auto dropped = SteadyClock::now();
    EXPECT_EQ(waiting.get(), KVT_UNAVAILABLE);
    return SteadyClock::now() - dropped;
  }));
}

TEST_F(LoadCounterTest, HostMemoryHasNoStreams) {
  const kvt::Acquired acquired = Acquire();
  EXPECT_EQ(kvt_wait_on_stream(pool_->get(), acquired.load, 1, nullptr), KVT_UNSUPPORTED);
}

TEST_F(LoadCounterTest, AStreamThatCannotWaitIsToldWhetherTheHostHas) {
  pool_.reset();
  connection_.reset();
  StartDaemon({.device_kind = wire::DeviceKind::kCuda});
  kvt_connect_options options = ImpatientOptions();
  Attach(options);
  daemon_->WithCache([](FakeCache* cache) {
    for (uint8_t byte = 1; byte <= 4; ++byte) {
      cache->PutBelow(WireHash(byte), Tier::kHost, kBlockTokens, std::byte{byte});
    }
  });
  const kvt::Acquired acquired = Acquire();
  daemon_->Progress(IdOf(acquired), 2, false);
  EXPECT_TRUE(pool_->WaitOnStream(acquired, 2, nullptr));
  const kvt::Status all = pool_->WaitOnStream(acquired, 4, nullptr);
  ASSERT_FALSE(all);
  EXPECT_EQ(all.error().code, KVT_TIMEOUT);
  EXPECT_EQ(all.error().reason, "load_timeout");
}

TEST_F(LoadCounterTest, AStructThatIsShorterThanTheLibrarysIsRefusedALongerOneIsTaken) {
  const std::vector<kvt_hash> hashes = Hashes(1, 1);
  kvt_acquire_request request{};
  request.size = offsetof(kvt_acquire_request, load_order);
  request.hashes = hashes.data();
  request.hash_count = 1;
  kvt_acquired_block hit{};
  kvt_acquire_reply reply{};
  reply.size = sizeof(reply);
  reply.hits = &hit;
  reply.hits_capacity = 1;
  EXPECT_EQ(kvt_acquire(pool_->get(), &request, &reply), KVT_INVALID_ARGUMENT);
  EXPECT_STREQ(kvt_last_error()->reason, "bad_struct_size");
  request.size = sizeof(request) + 8;
  EXPECT_EQ(kvt_acquire(pool_->get(), &request, &reply), KVT_OK);
  EXPECT_EQ(reply.hit_count, 1u);
}

TEST_F(LoadCounterTest, ALoadThatIsNotCountedIsFollowedByItsEvents) {
  pool_.reset();
  connection_.reset();
  StartDaemon({});
  Attach();
  daemon_->WithCache([](FakeCache* cache) {
    cache->PutBelow(WireHash(1), Tier::kHost, kBlockTokens, std::byte{1});
  });
  auto acquired = pool_->Acquire(Hashes(1, 1), {}, 0, KVT_LOAD_LAYERS);
  ASSERT_TRUE(acquired);
  daemon_->Progress(LoadId{acquired->load.id}, 1, true);
  const auto layers = pool_->WaitLayers(&*acquired, 1);
  ASSERT_TRUE(layers);
  EXPECT_EQ(layers->layers, KVT_ALL_LAYERS);
}

}  // namespace
}  // namespace kvtier::client
