// SPDX-License-Identifier: Apache-2.0
#include "client/core/loads.h"

#include <gtest/gtest.h>

namespace kvtier::client {
namespace {

LoadProgress Progress(uint64_t load, uint32_t ready, bool finished) {
  return {.load = LoadId{load}, .ready = ready, .finished = finished};
}

TEST(LoadStates, KnowsHowFarEachLoadIs) {
  LoadStates table;
  ASSERT_TRUE(table.Add(LoadId{1}, {.hits = 5}));
  ASSERT_TRUE(table.Add(LoadId{2}, {.hits = 3}));
  ASSERT_TRUE(table.OnProgress(Progress(1, 2, false)));
  ASSERT_TRUE(table.OnProgress(Progress(2, 3, true)));
  EXPECT_EQ(table.Find(LoadId{1})->progress.ready, 2u);
  EXPECT_FALSE(table.Find(LoadId{1})->progress.finished);
  EXPECT_TRUE(table.Find(LoadId{2})->progress.finished);
  EXPECT_EQ(table.Find(LoadId{3}), nullptr);
}

TEST(LoadStates, RefusesProgressThatMakesNoSense) {
  LoadStates table;
  ASSERT_TRUE(table.Add(LoadId{1}, {.hits = 5}));
  EXPECT_EQ(table.Add(LoadId{1}, {.hits = 5}).error().reason, "load_id_reused");
  EXPECT_FALSE(table.OnProgress(Progress(1, 6, false)));
  ASSERT_TRUE(table.OnProgress(Progress(1, 3, false)));
  EXPECT_FALSE(table.OnProgress(Progress(1, 2, false)));
  ASSERT_TRUE(table.OnProgress(Progress(1, 3, true)));
  EXPECT_FALSE(table.OnProgress(Progress(1, 5, true)));
}

TEST(LoadStates, ForgetsTheOldestFinishedLoads) {
  LoadStates table;
  ASSERT_TRUE(table.Add(LoadId{1'000'000}, {.hits = 1}));
  for (uint64_t id = 1; id <= LoadStates::kFinishedKept + 1; ++id) {
    ASSERT_TRUE(table.Add(LoadId{id}, {.hits = 1}));
    ASSERT_TRUE(table.OnProgress(Progress(id, 1, true)));
  }
  EXPECT_EQ(table.Find(LoadId{1}), nullptr);
  EXPECT_NE(table.Find(LoadId{2}), nullptr);
  EXPECT_NE(table.Find(LoadId{1'000'000}), nullptr);
}

TEST(LoadStates, KeepsALoadThatIsHeldHoweverManyFinishAfterIt) {
  LoadStates table;
  const LoadId held{1'000'000};
  ASSERT_TRUE(table.Add(held, {.hits = 2, .held = true}));
  ASSERT_TRUE(table.OnProgress({.load = held, .ready = 1, .finished = true}));
  uint64_t id = 0;
  const auto finish = [&](size_t count) {
    for (const uint64_t end = id + count; id < end; ++id) {
      ASSERT_TRUE(table.Add(LoadId{id}, {.hits = 1}));
      ASSERT_TRUE(table.OnProgress(Progress(id, 1, true)));
    }
  };
  finish(LoadStates::kFinishedKept + 1);
  EXPECT_EQ(table.Find(LoadId{0}), nullptr);
  ASSERT_NE(table.Find(held), nullptr);
  EXPECT_EQ(table.Find(held)->progress.ready, 1u);
  table.LetGo(held);
  EXPECT_NE(table.Find(held), nullptr) << "it is the latest now";
  finish(LoadStates::kFinishedKept);
  EXPECT_EQ(table.Find(held), nullptr);
}

}  // namespace
}  // namespace kvtier::client
