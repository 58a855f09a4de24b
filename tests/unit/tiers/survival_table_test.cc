// SPDX-License-Identifier: Apache-2.0
#include "tiers/policy/survival_table.h"

#include <gtest/gtest.h>

#include <ctime>
#include <unordered_set>

namespace kvtier {
namespace {

constexpr size_t kUsedOnce = 0;
constexpr size_t kUsedTwice = 1;

// `count` blocks become idle, one every ten seconds, and each is used again after `idle_s`; 0:
// never. Returns when the last became idle.
uint32_t Watch(SurvivalTable* table, uint64_t first, uint32_t count, size_t use_class,
               uint32_t idle_s) {
  for (uint32_t i = 0; i < count; ++i) {
    table->BeginEpisode(first + i, use_class, 10 * i);
    if (idle_s > 0) table->EndEpisode(first + i, 10 * i + idle_s);
  }
  return 10 * (count - 1);
}

TEST(SurvivalTableTest, ClassesAreOfUsesThatDouble) {
  const std::vector<std::pair<uint32_t, size_t>> expected = {{1, 0}, {2, 1}, {3, 2}, {4, 2},
                                                             {5, 3}, {8, 3}, {9, 4}, {255, 4}};
  for (const auto& [uses, use_class] : expected) {
    EXPECT_EQ(SurvivalTable::ClassOf(uses), use_class) << uses;
  }
}

TEST(SurvivalTableTest, FewBlocksAreEnoughToLearn) {
  SurvivalTable table;
  Watch(&table, 1, 128, kUsedOnce, 0);
  const uint32_t end_s = Watch(&table, 1000, 128, kUsedTwice, 60);
  table.Learn(end_s + 10'000);
  EXPECT_GT(table.Rank(kUsedTwice, 30), 10 * table.Rank(kUsedOnce, 0));
}

TEST(SurvivalTableTest, MoreBlocksThanCanBeKeptLeaveASampleOfAll) {
  SurvivalTable table;
  // Blocks come back, and within the hour so many others are seen that all of these could be
  // replaced.
  const uint32_t end_s = Watch(&table, 1, 300, kUsedTwice, 60);
  for (uint32_t i = 0; i < 4 * SurvivalTable::kMaxEpisodes; ++i) {
    table.BeginEpisode(1'000'000 + i, kUsedOnce, end_s + 60);
  }
  table.Learn(end_s + 1000);
  EXPECT_GT(table.Rank(kUsedTwice, 30), 10 * table.Rank(kUsedOnce, 30));
  EXPECT_LT(table.memory_bytes(), 3u << 20);
}

TEST(SurvivalTableTest, TheSampleGrowsAgainWhenBlocksHaveBecomeFew) {
  SurvivalTable table;
  for (uint32_t i = 0; i < 100 * SurvivalTable::kMaxEpisodes; ++i) {
    table.BeginEpisode(1'000'000 + i, kUsedOnce, 0);
  }
  constexpr uint32_t kDayS = 24 * 3600;
  for (uint32_t lesson = 0; lesson < 10; ++lesson) table.Learn(kDayS);
  for (uint32_t i = 0; i < 2000; ++i) {
    table.BeginEpisode(i, kUsedTwice, kDayS + i);
    table.EndEpisode(i, kDayS + i + 60);
  }
  table.Learn(kDayS + 3000);
  EXPECT_GT(table.Rank(kUsedTwice, 30), 100 * table.Rank(kUsedOnce, 30));
}

TEST(SurvivalTableTest, BeforeAnythingIsLearnedTheLongestIdleRanksLowest) {
  SurvivalTable table;
  table.Learn(1000);
  EXPECT_LT(table.Rank(kUsedTwice, 20), table.Rank(kUsedOnce, 10));
  EXPECT_LT(table.Rank(kUsedOnce, 10), table.Rank(kUsedTwice, 10));
}

TEST(SurvivalTableTest, BlocksThatComeBackRankAboveThoseThatDoNot) {
  SurvivalTable table;
  Watch(&table, 1, 1000, kUsedOnce, 0);
  const uint32_t end_s = Watch(&table, 10'000, 1000, kUsedTwice, 60);
  table.Learn(end_s + 100'000);
  for (const uint32_t idle_s : {0u, 10u, 30u}) {
    EXPECT_GT(table.Rank(kUsedTwice, idle_s), table.Rank(kUsedOnce, idle_s)) << idle_s;
  }
  // Though it was used a minute ago and the other just now.
  EXPECT_GT(table.Rank(kUsedTwice, 55), table.Rank(kUsedOnce, 0));
}

TEST(SurvivalTableTest, BlockThatMissedItsTimeRanksBelowOneWhoseTimeIsToCome) {
  SurvivalTable table;
  const uint32_t end_s = Watch(&table, 1, 1000, kUsedOnce, 60);
  table.Learn(end_s + 60);
  EXPECT_LT(table.Rank(kUsedOnce, 600), table.Rank(kUsedOnce, 5));
  // The nearer its time, the shorter it has to be kept.
  EXPECT_GT(table.Rank(kUsedOnce, 50), table.Rank(kUsedOnce, 5));
}

TEST(SurvivalTableTest, EpisodesThatGoOnCountAsNotUsedUpToNow) {
  SurvivalTable idle, ended;
  Watch(&idle, 1, 1000, kUsedOnce, 0);
  Watch(&ended, 1, 1000, kUsedOnce, 500);
  idle.Learn(20'000);
  ended.Learn(20'000);
  EXPECT_LT(idle.Rank(kUsedOnce, 100), ended.Rank(kUsedOnce, 100));
}

TEST(SurvivalTableTest, UseOfABlockThatIsNotIdleChangesNothing) {
  SurvivalTable table, same;
  const uint32_t end_s = Watch(&table, 1, 1000, kUsedOnce, 60);
  Watch(&same, 1, 1000, kUsedOnce, 60);
  for (uint64_t block = 0; block < 2000; ++block) table.EndEpisode(block, end_s + 100);
  table.Learn(end_s + 200);
  same.Learn(end_s + 200);
  for (uint32_t idle_s = 0; idle_s < 1000; idle_s += 7) {
    EXPECT_EQ(table.Rank(kUsedOnce, idle_s), same.Rank(kUsedOnce, idle_s));
  }
}

TEST(SurvivalTableTest, OldEpisodesAreForgottenAndMemoryIsBounded) {
  SurvivalTable table;
  // Once blocks that are used twice come back, later no more.
  Watch(&table, 1, 10'000, kUsedTwice, 5);
  table.Learn(200'000);
  const double before = table.Rank(kUsedTwice, 0);
  for (uint64_t i = 0; i < 5 * SurvivalTable::kMaxEpisodes; ++i) {
    table.BeginEpisode(100'000 + i, kUsedTwice, 200'000);
  }
  table.Learn(300'000);
  EXPECT_LT(table.Rank(kUsedTwice, 0), before / 100);
  EXPECT_LT(table.memory_bytes(), 3u << 20);
}

// The processor's time of watching and using as many blocks as are kept, at such a distance.
clock_t TimeOf(uint64_t distance) {
  SurvivalTable table;
  const clock_t began = std::clock();
  for (uint64_t i = 1; i <= SurvivalTable::kMaxEpisodes; ++i) {
    table.BeginEpisode(i * distance, kUsedOnce, 1000);
  }
  for (uint64_t i = 1; i <= SurvivalTable::kMaxEpisodes; ++i) table.EndEpisode(i * distance, 1001);
  return std::clock() - began;
}

// Clients choose the hashes: those that a hash table of the library would put in one bucket.
TEST(SurvivalTableTest, NoChoiceOfHashesMakesASearchLong) {
  std::unordered_set<uint64_t> table;
  for (uint64_t i = 0; i < SurvivalTable::kMaxEpisodes; ++i) table.insert(i);
  const clock_t fair = TimeOf(0xD1B5'4A32'D192'ED03);
  EXPECT_LT(TimeOf(table.bucket_count() << 16 | table.bucket_count()),
            10 * fair + CLOCKS_PER_SEC / 10);
}

}  // namespace
}  // namespace kvtier
