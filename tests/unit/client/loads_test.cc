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

}  // namespace
}  // namespace kvtier::client
