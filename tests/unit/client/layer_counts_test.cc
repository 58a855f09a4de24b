// SPDX-License-Identifier: Apache-2.0
#include "client/core/layer_counts.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

namespace kvtier::client {
namespace {

constexpr uint32_t kLayers = 4;
constexpr uint64_t kLoad = 7;

// Parts of loads are counted in a page that nothing else writes.
class LayerCountsTest : public testing::Test {
 protected:
  void SetUp() override {
    UniqueFd page(::memfd_create("counters", MFD_CLOEXEC));
    ASSERT_EQ(::ftruncate(page.get(), 4096), 0);
    auto counters = LoadCounters::Map(std::move(page));
    ASSERT_TRUE(counters) << counters.error().ToString();
    counters_ = *std::move(counters);
    counts_.emplace(counters_);
  }
  [[nodiscard]] uint32_t Layers() {
    const auto state = counts_->Find(kLoad);
    EXPECT_TRUE(state) << state.error().ToString();
    return state ? state->layers : UINT32_MAX;
  }

  std::shared_ptr<LoadCounters> counters_;
  std::optional<LayerCounts> counts_;
};

TEST_F(LayerCountsTest, ALoadHasTheLayersThatAllOfItsPartsHave) {
  const auto first = counts_->AddPart(kLoad, 1, kLayers);
  const auto second = counts_->AddPart(kLoad, 2, kLayers);
  counters_->Set(*first, 3);
  EXPECT_EQ(Layers(), 0u);
  counters_->Set(*second, 2);
  EXPECT_EQ(Layers(), 2u);
  counts_->EndPart(1, std::nullopt);
  EXPECT_EQ(Layers(), 2u);
  counts_->EndPart(2, std::nullopt);
  EXPECT_EQ(Layers(), kLayers);
}

TEST_F(LayerCountsTest, ALoadIsNotOverWhenAPartEndsBeforeTheNextIsSent) {
  (void)counts_->AddPart(kLoad, 1, kLayers);
  counts_->EndPart(1, std::nullopt);
  const auto second = counts_->AddPart(kLoad, 2, kLayers);
  EXPECT_EQ(Layers(), 0u);
  EXPECT_FALSE(counts_->Find(kLoad)->ended);
  counters_->Set(*second, 1);
  EXPECT_EQ(Layers(), 1u);
  counts_->EndPart(2, std::nullopt);
  EXPECT_EQ(Layers(), kLayers);
  // It is remembered once: loads that end later push it out, and only it.
  for (uint64_t other = 0; other < LayerCounts::kEndedKept; ++other) {
    (void)counts_->AddPart(100 + other, 100 + other, kLayers);
    counts_->EndPart(100 + other, std::nullopt);
  }
  EXPECT_FALSE(counts_->Find(kLoad));
  EXPECT_TRUE(counts_->Find(100));
}

}  // namespace
}  // namespace kvtier::client
