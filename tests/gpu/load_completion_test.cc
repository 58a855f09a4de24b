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

struct Geometry {
  uint64_t block_bytes = 0;
  uint32_t layers = 0;
  size_t blocks = 0;
};

std::string GeometryName(const ::testing::TestParamInfo<Geometry>& info) {
  return std::to_string(info.param.block_bytes / kKiB) + "KiB";
}

class LoadCompletionTest : public ::testing::TestWithParam<Geometry> {
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
    auto client = BenchClient::Connect(*daemon_, block_bytes_, layers_);
    ASSERT_TRUE(client) << client.error().ToString();
    client_.emplace(std::move(*client));
    for (const Set& set : {first_, second_, first_, second_}) {
      const Status stored = client_->Store(set);
      ASSERT_TRUE(stored) << stored.error().ToString();
    }
  }
  void TearDown() override { client_.reset(); }

  // Expects the first `layers` layers of the hits to hold their bytes.
  void Checlayers_(kvt::Pool* pool, const kvt::Acquired& acquired, const Set& set,
                   uint32_t layers) const {
    std::vector<std::byte> expected(block_bytes_);
    std::vector<std::byte> seen(block_bytes_ / layers_ * layers);
    for (size_t i = 0; i < acquired.hits.size(); ++i) {
      FillBlock(set[i], expected);
      ASSERT_TRUE(pool->Read(acquired.hits[i], seen));
      ASSERT_EQ(std::memcmp(seen.data(), expected.data(), seen.size()), 0) << "block " << i;
    }
  }

  const uint64_t block_bytes_ = GetParam().block_bytes;
  const uint32_t layers_ = GetParam().layers;
  const size_t blocks_ = GetParam().blocks;
  const Set first_ = BenchClient::Set(1, blocks_);
  const Set second_ = BenchClient::Set(2, blocks_);
  std::optional<TemporaryDirectory> directory_;
  std::optional<PrivateDaemon> daemon_;
  std::optional<BenchClient> client_;
};

TEST_P(LoadCompletionTest, EachLayerIsThereWhenItIsSaidToBe) {
  const auto load = client_->Load(first_, KVT_LOAD_LAYERS,
                                  [&](kvt::Pool* pool, kvt::Acquired* acquired) -> Status {
                                    for (uint32_t layers = 1; layers <= layers_; ++layers) {
                                      const auto waited = pool->WaitLayers(acquired, layers);
                                      if (!waited) return FromClient(waited.error());
                                      EXPECT_GE(waited->layers, layers);
                                      Checlayers_(pool, *acquired, first_, layers);
                                    }
                                    return {};
                                  });
  ASSERT_TRUE(load) << load.error().ToString();
  EXPECT_EQ(load->ready, blocks_);
  EXPECT_GT(load->hit[1], blocks_ / 2);
}

TEST_P(LoadCompletionTest, AStreamWaitsForALayer) {
  const auto load = client_->Load(
      first_, KVT_LOAD_LAYERS, [&](kvt::Pool* pool, kvt::Acquired* acquired) -> Status {
        for (uint32_t layers = 1; layers <= layers_; layers += 3) {
          const auto queued = pool->WaitOnStream(*acquired, layers, nullptr);
          if (!queued) return FromClient(queued.error());
          EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
          Checlayers_(pool, *acquired, first_, layers);
          const auto confirmed = pool->WaitLayers(acquired, layers);
          EXPECT_TRUE(confirmed);
        }
        return {};
      });
  ASSERT_TRUE(load) << load.error().ToString();
}

TEST_P(LoadCompletionTest, AStreamWaitsForBlocks) {
  const auto load = client_->Load(
      first_, KVT_LOAD_BLOCKS, [&](kvt::Pool* pool, kvt::Acquired* acquired) -> Status {
        const auto queued = pool->WaitOnStream(*acquired, blocks_, nullptr);
        if (!queued) return FromClient(queued.error());
        EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
        Checlayers_(pool, *acquired, first_, layers_);
        return {};
      });
  ASSERT_TRUE(load) << load.error().ToString();
}

// Whether the load was complete by then depends on the machine; that the stream goes on does not.
TEST_P(LoadCompletionTest, AWaitingStreamGoesOnWhenTheDaemonIsKilled) {
  const auto load = client_->Load(
      first_, KVT_LOAD_LAYERS, [&](kvt::Pool* pool, kvt::Acquired* acquired) -> Status {
        EXPECT_TRUE(pool->WaitOnStream(*acquired, layers_, nullptr));
        daemon_->Kill();
        const auto killed = std::chrono::steady_clock::now();
        EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
        EXPECT_LT(std::chrono::steady_clock::now() - killed, std::chrono::seconds(1));
        return {};
      });
  ASSERT_FALSE(load);
  EXPECT_EQ(load.error().code, ErrorCode::kUnavailable) << load.error().ToString();
}

// The small ones are cut into layers of 2 KiB, fewer than the hardware takes at a time.
INSTANTIATE_TEST_SUITE_P(Geometries, LoadCompletionTest,
                         ::testing::Values(Geometry{512 * kKiB, 8, 200},
                                           Geometry{64 * kKiB, 32, 1500}),
                         GeometryName);

}  // namespace
}  // namespace kvtier
