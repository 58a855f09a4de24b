// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/load_table.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvtier {
namespace {

constexpr SessionId kAlice{1};
constexpr SessionId kBob{2};
constexpr uint32_t kHits = 10;
constexpr uint32_t kClosePartBlocks = 8192;

class LoadTableTest : public ::testing::Test {
 protected:
  // Loads of ten hits, the first of which is there and the others are awaited.
  void OpenLoads(SessionId session, uint32_t loads) {
    for (uint32_t i = 0; i < loads; ++i) {
      const LoadId load = table_.Open({.session = session, .pool = &pool_});
      std::vector<LoadTable::Added> hits;
      for (uint32_t hit = 0; hit < kHits; ++hit) {
        hits.push_back({{Tier::kDisk, 16}, hit == 0 ? kNoEntry : EntryIndex(next_entry_++)});
      }
      table_.Add(load, hits);
      table_.Close(load);
    }
  }

  CachePool pool_{
      .id = PoolId(1), .blocks = PoolBlocks(1), .victims = VictimQueue(MakeLruPolicy())};
  CacheStats stats_;
  std::vector<LoadProgress> reports_;
  LoadTable table_{&stats_, kClosePartBlocks, [this](SessionId, const LoadProgress& progress) {
                     reports_.push_back(progress);
                   }};
  uint32_t next_entry_ = 1;
};

TEST_F(LoadTableTest, ASessionsLoadsAreForgottenInBoundedParts) {
  constexpr uint32_t kLoads = 5000;
  constexpr size_t kMostPerCall = kClosePartBlocks / (kHits + 1) + 1;
  OpenLoads(kAlice, kLoads);
  OpenLoads(kBob, 3);
  size_t before = table_.size();
  int calls = 1;
  for (bool more = table_.CloseSession(kAlice); more; more = table_.CloseSome()) {
    ++calls;
    EXPECT_LE(before - table_.size(), kMostPerCall);
    before = table_.size();
  }
  EXPECT_EQ(table_.size(), 3u);
  EXPECT_EQ(calls, static_cast<int>((kLoads + kMostPerCall - 1) / kMostPerCall));
  EXPECT_TRUE(reports_.empty());
}

TEST_F(LoadTableTest, AnotherSessionsLoadsCostNothingToClose) {
  OpenLoads(kBob, 5000);
  OpenLoads(kAlice, 1);
  EXPECT_FALSE(table_.CloseSession(kAlice));
  EXPECT_EQ(table_.size(), 5000u);
}

TEST_F(LoadTableTest, ALoadThatEndsBeforeItsPartIsForgottenOnce) {
  OpenLoads(kAlice, 2000);
  ASSERT_TRUE(table_.CloseSession(kAlice));
  for (uint32_t entry = 1; entry < next_entry_; ++entry) {
    const BlockEnd arrived{.block = {EntryIndex(entry), 0}, .pool = &pool_};
    table_.OnEnded(std::span(&arrived, 1));
  }
  EXPECT_EQ(table_.size(), 0u);
  while (table_.CloseSome()) {
  }
  EXPECT_EQ(table_.size(), 0u);
}

}  // namespace
}  // namespace kvtier
