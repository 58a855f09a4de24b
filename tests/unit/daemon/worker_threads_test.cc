// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sched.h>

#include "daemon/runtime/process.h"

namespace kvtier {
namespace {

TEST(WorkerThreads, LeaveTwoCoresToOthersWithinBounds) {
  EXPECT_EQ(WorkerThreadsFor(0), 2u);
  EXPECT_EQ(WorkerThreadsFor(1), 2u);
  EXPECT_EQ(WorkerThreadsFor(4), 2u);
  EXPECT_EQ(WorkerThreadsFor(5), 3u);
  EXPECT_EQ(WorkerThreadsFor(16), 14u);
  EXPECT_EQ(WorkerThreadsFor(18), 16u);
  EXPECT_EQ(WorkerThreadsFor(256), 16u);
}

// A container, or taskset, may leave few of the machine's cores.
TEST(WorkerThreads, OnlyCoresThatTheProcessMayUseAreCounted) {
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(before), &before), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int core = 0; CPU_COUNT(&one) == 0; ++core) {
    if (CPU_ISSET(core, &before)) CPU_SET(core, &one);
  }
  ASSERT_EQ(::sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(WorkerThreads(), 2u);
  ASSERT_EQ(::sched_setaffinity(0, sizeof(before), &before), 0);
}

}  // namespace
}  // namespace kvtier
