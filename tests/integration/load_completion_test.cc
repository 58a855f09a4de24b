// Loads as a client of a whole daemon sees them come: layer by layer, counted in shared memory.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <future>
#include <optional>

#include "base/byte_size.h"
#include "tools/bench/bench_client.h"
#include "tools/replay/block_pattern.h"
#include "tools/support/client_error.h"

namespace kvtier {
namespace {

using Set = std::vector<BlockHash>;

constexpr uint64_t kBlockBytes = 64 * kKiB;
constexpr uint32_t kLayers = 8;
constexpr size_t kBlocks = 60;

class LoadCompletionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    PrivateDaemonOptions options;
    options.settings = {"pool.device=host",       "pool.bytes=4MiB", "host.bytes=16MiB",
                        "cache.chunk_bytes=2MiB", "disk.bytes=0B",   "cache.max_wait_ms=5000"};
    auto daemon = PrivateDaemon::Start(std::move(options));
    ASSERT_TRUE(daemon) << daemon.error().ToString();
    daemon_.emplace(std::move(*daemon));
    auto client = BenchClient::Connect(*daemon_, kBlockBytes, kLayers);
    ASSERT_TRUE(client) << client.error().ToString();
    client_.emplace(std::move(*client));
    for (const Set& set : {first_, second_, first_, second_}) {
      const Status stored = client_->Store(set);
      ASSERT_TRUE(stored) << stored.error().ToString();
    }
  }
  void TearDown() override { client_.reset(); }

  const Set first_ = BenchClient::Set(1, kBlocks);
  const Set second_ = BenchClient::Set(2, kBlocks);
  std::optional<PrivateDaemon> daemon_;
  std::optional<BenchClient> client_;
};

TEST_F(LoadCompletionTest, EachLayerIsThereWhenItIsSaidToBe) {
  std::vector<std::byte> expected(kBlockBytes);
  const auto load = client_->Load(
      first_, KVT_LOAD_LAYERS, [&](kvt::Pool* pool, kvt::Acquired* acquired) -> Status {
        for (uint32_t layers = 1; layers <= kLayers; ++layers) {
          const auto waited = pool->WaitLayers(acquired, layers);
          if (!waited) return FromClient(waited.error());
          EXPECT_GE(waited->layers, layers);
          for (size_t i = 0; i < acquired->hits.size(); ++i) {
            FillBlock(first_[i], expected);
            const auto bytes = pool->Bytes(acquired->hits[i]);
            EXPECT_EQ(std::memcmp(bytes->data(), expected.data(), kBlockBytes / kLayers * layers),
                      0)
                << "block " << i << " of " << layers << " layers";
          }
        }
        return {};
      });
  ASSERT_TRUE(load) << load.error().ToString();
  EXPECT_EQ(load->ready, kBlocks);
  EXPECT_GT(load->hit[1], kBlocks / 2);
}

TEST_F(LoadCompletionTest, WhoWaitsNoticesAKilledDaemonWithinASecond) {
  std::optional<std::chrono::steady_clock::time_point> killed;
  const auto load = client_->Load(first_, KVT_LOAD_LAYERS,
                                  [&](kvt::Pool* pool, kvt::Acquired* acquired) -> Status {
                                    daemon_->Kill();
                                    killed = std::chrono::steady_clock::now();
                                    // Whatever had been counted by then: one of the waits is for
                                    // what is not there.
                                    const auto layers = pool->WaitLayers(acquired, kLayers);
                                    return layers ? Status() : FromClient(layers.error());
                                  });
  EXPECT_FALSE(load);
  EXPECT_LT(std::chrono::steady_clock::now() - *killed, std::chrono::seconds(1));
}

}  // namespace
}  // namespace kvtier
