// Loads as a client of a whole daemon sees them come: layer by layer, on the host and on a stream.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <optional>

#include "base/byte_size.h"
#include "gpu/cuda_device.h"
#include "tools/bench/bench_client.h"
#include "tools/replay/block_pattern.h"
#include "tools/support/client_error.h"
#include "tools/support/temporary_directory.h"

namespace kvtier {
namespace {

using Set = std::vector<BlockHash>;

constexpr uint64_t kBlockBytes = 512 * kKiB;
constexpr uint32_t kLayers = 8;
constexpr size_t kBlocks = 200;

class LoadCompletionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto presence = FindCudaDevices();
    ASSERT_TRUE(presence) << presence.error().ToString();
    if (presence->devices == 0) GTEST_SKIP() << presence->why_none;
    auto directory = TemporaryDirectory::Create();
    ASSERT_TRUE(directory) << directory.error().ToString();
    directory_.emplace(std::move(*directory));
    PrivateDaemonOptions options;
    options.program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "kvtierd";
    options.directory = directory_->path();
    options.settings = {"pool.device=cuda:0", "pool.bytes=100MiB", "host.bytes=512MiB",
                        "disk.bytes=0B", "cache.max_wait_ms=5000"};
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

  // Expects the first `layers` layers of the hits to hold their bytes.
  static void CheckLayers(kvt::Pool* pool, const kvt::Acquired& acquired, const Set& set,
                          uint32_t layers) {
    std::vector<std::byte> expected(kBlockBytes);
    std::vector<std::byte> seen(kBlockBytes / kLayers * layers);
    for (size_t i = 0; i < acquired.hits.size(); ++i) {
      FillBlock(set[i], expected);
      ASSERT_TRUE(pool->Read(acquired.hits[i], seen));
      ASSERT_EQ(std::memcmp(seen.data(), expected.data(), seen.size()), 0) << "block " << i;
    }
  }

  const Set first_ = BenchClient::Set(1, kBlocks);
  const Set second_ = BenchClient::Set(2, kBlocks);
  std::optional<TemporaryDirectory> directory_;
  std::optional<PrivateDaemon> daemon_;
  std::optional<BenchClient> client_;
};

TEST_F(LoadCompletionTest, EachLayerIsThereWhenItIsSaidToBe) {
  const auto load = client_->Load(first_, KVT_LOAD_LAYERS,
                                  [&](kvt::Pool* pool, kvt::Acquired* acquired) -> Status {
                                    for (uint32_t layers = 1; layers <= kLayers; ++layers) {
                                      const auto waited = pool->WaitLayers(acquired, layers);
                                      if (!waited) return FromClient(waited.error());
                                      EXPECT_GE(waited->layers, layers);
                                      CheckLayers(pool, *acquired, first_, layers);
                                    }
                                    return {};
                                  });
  ASSERT_TRUE(load) << load.error().ToString();
  EXPECT_EQ(load->ready, kBlocks);
  EXPECT_GT(load->hit[1], kBlocks / 2);
}

TEST_F(LoadCompletionTest, AStreamWaitsForALayer) {
  const auto load = client_->Load(
      first_, KVT_LOAD_LAYERS, [&](kvt::Pool* pool, kvt::Acquired* acquired) -> Status {
        for (uint32_t layers = 1; layers <= kLayers; layers += 3) {
          const auto queued = pool->WaitOnStream(*acquired, layers, nullptr);
          if (!queued) return FromClient(queued.error());
          EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
          CheckLayers(pool, *acquired, first_, layers);
          const auto confirmed = pool->WaitLayers(acquired, layers);
          EXPECT_TRUE(confirmed);
        }
        return {};
      });
  ASSERT_TRUE(load) << load.error().ToString();
}

TEST_F(LoadCompletionTest, AStreamWaitsForBlocks) {
  const auto load = client_->Load(
      first_, KVT_LOAD_BLOCKS, [&](kvt::Pool* pool, kvt::Acquired* acquired) -> Status {
        const auto queued = pool->WaitOnStream(*acquired, kBlocks, nullptr);
        if (!queued) return FromClient(queued.error());
        EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
        CheckLayers(pool, *acquired, first_, kLayers);
        return {};
      });
  ASSERT_TRUE(load) << load.error().ToString();
}

// Whether the load was complete by then depends on the machine; that the stream goes on does not.
TEST_F(LoadCompletionTest, AWaitingStreamGoesOnWhenTheDaemonIsKilled) {
  const auto load = client_->Load(
      first_, KVT_LOAD_LAYERS, [&](kvt::Pool* pool, kvt::Acquired* acquired) -> Status {
        EXPECT_TRUE(pool->WaitOnStream(*acquired, kLayers, nullptr));
        daemon_->Kill();
        const auto killed = std::chrono::steady_clock::now();
        EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
        EXPECT_LT(std::chrono::steady_clock::now() - killed, std::chrono::seconds(1));
        return {};
      });
  ASSERT_FALSE(load);
  EXPECT_EQ(load.error().code, ErrorCode::kUnavailable) << load.error().ToString();
}

}  // namespace
}  // namespace kvtier
