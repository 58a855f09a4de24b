// SPDX-License-Identifier: Apache-2.0
#include "tiers/policy/tenant_queues.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace kvtier {
namespace {

using ::testing::ElementsAre;
using Queues = TenantQueues<int>;

// The lines that had turns, in order; each step takes one item.
std::vector<uint32_t> TurnsOf(Queues* queues) {
  std::vector<uint32_t> turns;
  queues->TakeTurns([&](TenantLine line, PriorityQueue<int>* items) {
    turns.push_back(line.value);
    items->next()->pop_front();
    return true;
  });
  return turns;
}

TEST(TenantQueues, LinesTakeTurnsFromTheOneBehindTheLast) {
  Queues queues;
  for (const uint32_t line : {3U, 0U, 9000U, 3U, 0U}) queues.Push(TenantLine(line), 1);
  EXPECT_EQ(queues.size(), 5u);
  EXPECT_THAT(TurnsOf(&queues), ElementsAre(3, 9000, 0, 3, 0));
  EXPECT_TRUE(queues.empty());
  for (const uint32_t line : {0U, 3U}) queues.Push(TenantLine(line), 1);
  EXPECT_THAT(TurnsOf(&queues), ElementsAre(3, 0)) << "lines that were empty have turns again";
}

TEST(TenantQueues, ALineThatAFailedStepFillsHasItsTurn) {
  Queues queues;
  queues.Push(TenantLine(1), 1);
  const bool got_on = queues.TakeTurn([&](TenantLine line, PriorityQueue<int>* items) {
    if (line == TenantLine(2)) {
      items->next()->pop_front();
      return true;
    }
    queues.Push(TenantLine(2), 1);
    return false;
  });
  EXPECT_TRUE(got_on);
  EXPECT_EQ(queues.size(TenantLine(1)), 1u);
  EXPECT_EQ(queues.size(TenantLine(2)), 0u);
}

TEST(TenantQueues, ALineThatWasEmptiedByOthersCountsAsEmpty) {
  Queues queues;
  queues.Push(TenantLine(1), 1);
  queues.PushLater(TenantLine(2), 1);
  queues.ForEachLine([](TenantLine line, PriorityQueue<int>* items) {
    if (line == TenantLine(1)) items->now()->clear();
  });
  EXPECT_EQ(queues.size(), 1u);
  EXPECT_THAT(TurnsOf(&queues), ElementsAre(2));
}

}  // namespace
}  // namespace kvtier
