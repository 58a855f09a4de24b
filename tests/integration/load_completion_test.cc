// SPDX-License-Identifier: Apache-2.0
// Loads as a client of a whole daemon sees them come: layer by layer, counted in shared memory.
#include "tests/integration/harness/load_completion.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>

#include "base/units.h"
#include "tools/support/admin.h"

namespace kvtier {
namespace {

constexpr LoadSizes kSizes = {.block_bytes = 64 * kKiB, .layers = 8, .blocks = 60};

class LoadCompletionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    PrivateDaemonOptions options;
    options.settings = {"pool.device=host",      "pool.bytes=4MiB", "host.bytes=16MiB",
                        "cache.slab_bytes=2MiB", "disk.bytes=0B",   "cache.max_wait_ms=5000"};
    auto daemon = PrivateDaemon::Start(std::move(options));
    ASSERT_TRUE(daemon) << daemon.error().ToString();
    daemon_.emplace(std::move(*daemon));
    auto sets = TwoSets::Store(*daemon_, kSizes);
    ASSERT_TRUE(sets) << sets.error().ToString();
    sets_.emplace(std::move(*sets));
  }
  void TearDown() override { sets_.reset(); }

  std::optional<PrivateDaemon> daemon_;
  std::optional<TwoSets> sets_;
};

TEST_F(LoadCompletionTest, EachLayerIsThereWhenItIsSaidToBe) {
  sets_->ExpectEachLayerWhenItIsSaidToBe();
}

TEST_F(LoadCompletionTest, WhoWaitsNoticesAKilledDaemonWithinASecond) {
  std::optional<std::chrono::steady_clock::time_point> killed;
  const auto load =
      sets_->Load(KVT_LOAD_LAYERS, [&](kvt::Pool* pool, kvt::Acquired* acquired) -> Status {
        daemon_->Kill();
        killed = std::chrono::steady_clock::now();
        // Whatever had been counted by then: one of the waits is for
        // what is not there.
        const auto layers = pool->WaitLayers(acquired, kSizes.layers);
        return layers ? Status() : FromClient(layers.error());
      });
  EXPECT_FALSE(load);
  EXPECT_LT(std::chrono::steady_clock::now() - *killed, std::chrono::seconds(1));
}

}  // namespace
}  // namespace kvtier
