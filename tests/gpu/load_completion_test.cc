// SPDX-License-Identifier: Apache-2.0
// Loads as a client of a whole daemon sees them come: layer by layer, on the host and on a stream.
#include "tests/integration/harness/load_completion.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>

#include "base/units.h"
#include "tests/gpu/gpu_daemon_fixture.h"
#include "tools/support/admin.h"

namespace kvtier {
namespace {

std::string NameOf(const testing::TestParamInfo<LoadSizes>& info) {
  return std::to_string(info.param.block_bytes / kKiB) + "KiB";
}

class LoadCompletionTest : public GpuDaemonFixture, public testing::WithParamInterface<LoadSizes> {
 protected:
  void SetUp() override {
    GpuDaemonFixture::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    ASSERT_NO_FATAL_FAILURE(
        StartDaemon({"pool.device=cuda:0", "pool.bytes=100MiB", "host.bytes=512MiB",
                     "disk.bytes=0B", "cache.max_wait_ms=5000"}));
    auto sets = TwoSets::Store(*daemon_, sizes_);
    ASSERT_TRUE(sets) << sets.error().ToString();
    sets_.emplace(std::move(*sets));
  }
  void TearDown() override { sets_.reset(); }

  const LoadSizes sizes_ = GetParam();
  std::optional<TwoSets> sets_;
};

TEST_P(LoadCompletionTest, EachLayerIsThereWhenItIsSaidToBe) {
  sets_->ExpectEachLayerWhenItIsSaidToBe();
}

TEST_P(LoadCompletionTest, AStreamWaitsForALayer) {
  const auto load =
      sets_->Load(KVT_LOAD_LAYERS, [&](kvt::Pool* pool, kvt::Acquired* acquired) -> Status {
        for (uint32_t layers = 1; layers <= sizes_.layers; layers += 3) {
          const auto queued = pool->WaitOnStream(*acquired, layers, nullptr);
          if (!queued) return FromClient(queued.error());
          EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
          sets_->CheckLayers(pool, *acquired, layers);
          const auto confirmed = pool->WaitLayers(acquired, layers);
          EXPECT_TRUE(confirmed);
        }
        return {};
      });
  ASSERT_TRUE(load) << load.error().ToString();
}

TEST_P(LoadCompletionTest, AStreamWaitsForBlocks) {
  const auto load =
      sets_->Load(KVT_LOAD_BLOCKS, [&](kvt::Pool* pool, kvt::Acquired* acquired) -> Status {
        const auto queued = pool->WaitOnStream(*acquired, sizes_.blocks, nullptr);
        if (!queued) return FromClient(queued.error());
        EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
        sets_->CheckLayers(pool, *acquired, sizes_.layers);
        return {};
      });
  ASSERT_TRUE(load) << load.error().ToString();
}

// Whether the load was complete by then depends on the machine; that the stream goes on does not.
TEST_P(LoadCompletionTest, AWaitingStreamGoesOnWhenTheDaemonIsKilled) {
  const auto load =
      sets_->Load(KVT_LOAD_LAYERS, [&](kvt::Pool* pool, kvt::Acquired* acquired) -> Status {
        EXPECT_TRUE(pool->WaitOnStream(*acquired, sizes_.layers, nullptr));
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
INSTANTIATE_TEST_SUITE_P(Sizes, LoadCompletionTest,
                         testing::Values(LoadSizes{512 * kKiB, 8, 200},
                                         LoadSizes{64 * kKiB, 32, 1500}),
                         NameOf);

}  // namespace
}  // namespace kvtier
