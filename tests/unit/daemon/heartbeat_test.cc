// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <poll.h>

#include <memory>

#include "daemon/runtime/supervision.h"

namespace kvtier {
namespace {

constexpr int64_t kIntervalMs = 5;

TEST(Heartbeat, BeatsAgainAndAgainWhileTheLoopTurns) {
  EventLoop loop;
  Heartbeat heartbeat(&loop);
  int beats = 0;
  heartbeat.Start(kIntervalMs, [&] { ++beats; });
  loop.RunUntil([&] { return beats == 3; });
}

TEST(Heartbeat, StopsWhileAnEventHoldsTheLoop) {
  EventLoop loop;
  Heartbeat heartbeat(&loop);
  int beats = 0;
  heartbeat.Start(kIntervalMs, [&] { ++beats; });
  bool held = false;
  loop.Post([&] {
    ::poll(nullptr, 0, 10 * kIntervalMs);
    EXPECT_EQ(beats, 0);
    held = true;
  });
  loop.RunUntil([&] { return held; });
  EXPECT_EQ(beats, 0);
  loop.RunUntil([&] { return beats > 0; });
}

TEST(Heartbeat, EndsWithItsObject) {
  EventLoop loop;
  int beats = 0;
  {
    Heartbeat heartbeat(&loop);
    heartbeat.Start(1, [&] { ++beats; });
  }
  Timer later(&loop);
  bool expired = false;
  later.Start(10, [&] { expired = true; });
  loop.RunUntil([&] { return expired; });
  EXPECT_EQ(beats, 0);
}

}  // namespace
}  // namespace kvtier
