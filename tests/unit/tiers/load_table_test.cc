// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/load_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace kvtier {
namespace {

constexpr SessionId kAlice{1};
constexpr SessionId kBob{2};
constexpr uint32_t kHits = 10;
constexpr uint32_t kPartBlocks = 8192;

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

  void OpenLoad(SessionId session, const std::vector<EntryIndex>& awaited) {
    OpenLoadOf(&table_, {.session = session, .pool = &pool_}, awaited);
  }
  static void OpenLoadOf(LoadTable* table, LoadTable::Start start,
                         const std::vector<EntryIndex>& awaited) {
    const LoadId load = table->Open(std::move(start));
    for (const EntryIndex entry : awaited) {
      table->Add(load, std::vector<LoadTable::Added>{{{Tier::kDisk, 16}, entry}});
    }
    table->Close(load);
  }
  [[nodiscard]] BlockEnd Arrived(uint32_t entry) {
    return {.block = {EntryIndex(entry), 0}, .pool = &pool_};
  }

  CachePool pool_{
      .id = PoolId(1), .blocks = PoolBlocks(1), .victims = VictimQueue(MakeLruPolicy())};
  CacheStats stats_;
  std::vector<LoadProgress> reports_;
  LoadTable table_{&stats_, kPartBlocks, [this](SessionId, const LoadProgress& progress) {
                     reports_.push_back(progress);
                   }};
  uint32_t next_entry_ = 1;
};

TEST_F(LoadTableTest, ASessionsLoadsAreForgottenInBoundedParts) {
  constexpr uint32_t kLoads = 5000;
  constexpr size_t kMostPerCall = kPartBlocks / (kHits + 1) + 1;
  OpenLoads(kAlice, kLoads);
  OpenLoads(kBob, 3);
  size_t before = table_.size();
  int calls = 1;
  for (table_.CloseSession(kAlice); table_.HasMore(); table_.GoOn()) {
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
  table_.CloseSession(kAlice);
  EXPECT_FALSE(table_.HasMore());
  EXPECT_EQ(table_.size(), 5000u);
}

TEST_F(LoadTableTest, ALoadThatEndsBeforeItsPartIsForgottenOnce) {
  OpenLoads(kAlice, 2000);
  table_.CloseSession(kAlice);
  ASSERT_TRUE(table_.HasMore());
  for (uint32_t entry = 1; entry < next_entry_; ++entry) {
    const BlockEnd arrived{.block = {EntryIndex(entry), 0}, .pool = &pool_};
    table_.BeginEvent();
    table_.OnEnded(std::span(&arrived, 1));
  }
  EXPECT_EQ(table_.size(), 0u);
  while (table_.HasMore()) table_.GoOn();
  EXPECT_EQ(table_.size(), 0u);
}

// A client may have as many loads wait for one block as it may have references.
TEST_F(LoadTableTest, LoadsThatWaitForOneBlockAreReportedInBoundedParts) {
  constexpr uint32_t kLoads = 2 * kPartBlocks + 10;
  const BlockEnd ends[] = {
      Arrived(1), {.block = {EntryIndex(2), 0}, .pool = &pool_, .reason = MissReason::kReadError}};
  for (uint32_t i = 0; i < kLoads; ++i) OpenLoad(kAlice, {EntryIndex(1), EntryIndex(2)});
  int parts = 0;
  size_t before = 0;
  for (table_.OnEnded(ends); ++parts, true; table_.GoOn()) {
    EXPECT_LE(reports_.size() - before, kPartBlocks);
    before = reports_.size();
    if (!table_.HasMore()) break;
  }
  EXPECT_GT(parts, 2);
  EXPECT_EQ(reports_.size(), kLoads);
  EXPECT_EQ(reports_.back().ready, 1u);
  EXPECT_EQ(reports_.back().miss, MissReason::kReadError);
  EXPECT_EQ(table_.size(), 0u);
}

// All blocks but the last of each load arrive at once.
TEST_F(LoadTableTest, LoadsThatWaitForManyBlocksAreToldOfThemInBoundedParts) {
  constexpr uint32_t kLoads = 1000;
  constexpr uint32_t kArrived = 100;
  std::vector<EntryIndex> awaited;
  std::vector<BlockEnd> ends;
  for (uint32_t i = 1; i <= kArrived; ++i) ends.push_back(Arrived(i));
  for (uint32_t i = 1; i <= kArrived + 1; ++i) awaited.emplace_back(i);
  for (uint32_t i = 0; i < kLoads; ++i) OpenLoad(kAlice, awaited);
  table_.OnEnded(ends);
  EXPECT_TRUE(reports_.empty()) << "one call tells a part of them";
  uint32_t parts = 1;
  for (; table_.HasMore(); ++parts) table_.GoOn();
  EXPECT_GE(parts, 2 * (kLoads * kArrived / kPartBlocks)) << "told in parts, and reported";
  EXPECT_EQ(reports_.size(), kLoads);
  for (const LoadProgress& progress : reports_) EXPECT_EQ(progress.ready, kArrived);
  EXPECT_EQ(table_.size(), kLoads);
}

// The device counts for a part of them, and a part of the blocks that it could: the rest is counted
// when it has arrived.
TEST_F(LoadTableTest, LoadsThatWaitForACopyAreHandedToTheDeviceInABoundedPart) {
  constexpr uint32_t kPart = 4;
  LoadTable table(&stats_, kPart, [](SessionId, const LoadProgress&) {});
  const auto page = CounterPage::Create().value();
  std::vector<std::shared_ptr<StepCounter>> counters;
  for (int i = 0; i < 10; ++i) {
    counters.push_back(page->Open(4));
    OpenLoadOf(&table, {.session = kAlice, .pool = &pool_, .counter = counters.back()},
               {EntryIndex(1), EntryIndex(2), EntryIndex(3), EntryIndex(4)});
  }
  const auto all_arrive = [&](std::vector<BlockEnd> ends) {
    for (table.OnEnded(ends); table.HasMore();) table.GoOn();
  };
  all_arrive({Arrived(2), Arrived(3)});
  const EntryIndex first(1);
  table.BeginEvent();
  const std::vector<CountedStep> steps = table.BlocksQueued(pool_, std::span(&first, 1));
  EXPECT_EQ(steps.size(), kPart);
  uint32_t counted = 0;
  for (const CountedStep& step : steps) counted += step.done;
  EXPECT_EQ(counted, kPart);
  all_arrive({Arrived(1), Arrived(4)});
  for (const auto& counter : counters) {
    uint32_t value = 0;
    std::memcpy(&value, page->memory().data() + counter->offset(), sizeof(value));
    EXPECT_EQ(value, counter->ValueOf(4));
  }
  EXPECT_EQ(table.size(), 0u);
}

// As reads that are given up together.
TEST_F(LoadTableTest, BlocksThatEndOneByOneInOneEventAreToldInABoundedPartOfIt) {
  constexpr uint32_t kLoads = 1000;
  constexpr uint32_t kEnded = 100;
  std::vector<EntryIndex> awaited;
  for (uint32_t i = 1; i <= kEnded + 1; ++i) awaited.emplace_back(i);
  for (uint32_t i = 0; i < kLoads; ++i) OpenLoad(kAlice, awaited);
  for (uint32_t i = 1; i <= kEnded; ++i) {
    const BlockEnd end = Arrived(i);
    table_.OnEnded(std::span(&end, 1));
  }
  EXPECT_LE(reports_.size(), kPartBlocks);
  for (size_t before = reports_.size(); table_.HasMore(); before = reports_.size()) {
    table_.GoOn();
    EXPECT_LE(reports_.size() - before, kPartBlocks);
  }
  EXPECT_EQ(reports_.back().ready, kEnded);
}

// The load has ended by the failure before the block that comes last.
TEST_F(LoadTableTest, AFailureBetweenBlocksOfOneLoadEndsItOnce) {
  OpenLoad(kAlice, {EntryIndex(1), EntryIndex(2), EntryIndex(3)});
  const BlockEnd ends[] = {
      Arrived(1),
      {.block = {EntryIndex(2), 0}, .pool = &pool_, .reason = MissReason::kReadError},
      Arrived(3)};
  table_.OnEnded(ends);
  ASSERT_EQ(reports_.size(), 1u);
  EXPECT_TRUE(reports_[0].finished);
  EXPECT_EQ(reports_[0].ready, 1u);
}

// Eight times as many waiters take eight times as long, and not sixty-four times.
TEST_F(LoadTableTest, LoadsThatWaitForOneBlockAreNotComparedWithEachOther) {
  const auto time_of = [this](uint32_t loads) {
    const EntryIndex queued[] = {EntryIndex(1), EntryIndex(2)};
    const BlockEnd ends[] = {Arrived(1), Arrived(2)};
    for (uint32_t i = 0; i < loads; ++i) OpenLoad(kAlice, {EntryIndex(1), EntryIndex(2)});
    const std::clock_t begin = std::clock();
    (void)table_.BlocksQueued(pool_, queued);
    table_.OnEnded(ends);
    while (table_.HasMore()) table_.GoOn();
    return std::clock() - begin;
  };
  std::clock_t few = time_of(10'000), many = time_of(80'000);
  for (int i = 0; i < 4; ++i) {
    few = std::max(few, time_of(10'000));
    many = std::min(many, time_of(80'000));
  }
  EXPECT_LT(many, 24 * few);
}

}  // namespace
}  // namespace kvtier
