// SPDX-License-Identifier: Apache-2.0
#include "daemon/runtime/event_loop.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <memory>
#include <thread>
#include <vector>

#include "base/posix.h"

namespace kvtier {
namespace {

struct SocketPair {
  SocketPair() {
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    near = UniqueFd(fds[0]);
    far = UniqueFd(fds[1]);
  }
  UniqueFd near;
  UniqueFd far;
};

TEST(EventLoop, EventsOfOneThreadRunInTheirOrder) {
  EventLoop loop;
  std::vector<int> seen;
  std::thread poster([&] {
    for (int i = 0; i < 1000; ++i) loop.Post([&seen, i] { seen.push_back(i); });
    loop.Post([&] { loop.Stop(); });
  });
  loop.Run();
  poster.join();
  ASSERT_EQ(seen.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(seen[i], i);
}

TEST(EventLoop, PostedEventRunsAfterItsPosterReturns) {
  EventLoop loop;
  std::vector<int> order;
  loop.Post([&] {
    loop.Post([&] {
      order.push_back(2);
      loop.Stop();
    });
    order.push_back(1);
  });
  loop.Run();
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

TEST(EventLoop, WorkAfterAnEventRunsBeforeTheNextEvent) {
  EventLoop loop;
  std::vector<int> order;
  loop.Post([&] {
    loop.RunAfterEvent([&] {
      order.push_back(2);
      // A function that asks for itself again has to queue behind the others.
      loop.RunAfterEvent([&] {
        order.push_back(4);
        loop.Stop();
      });
    });
    order.push_back(1);
  });
  loop.Post([&] { order.push_back(3); });
  loop.Run();
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3, 4}));
}

TEST(EventLoop, WorkAfterATimersEventRunsWithIt) {
  EventLoop loop;
  std::vector<int> order;
  Timer timer(&loop);
  timer.Start(0, [&] {
    loop.Post([&] {
      order.push_back(2);
      loop.Stop();
    });
    loop.RunAfterEvent([&] { order.push_back(1); });
  });
  loop.Run();
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

TEST(EventLoop, WorkOutsideOfAnyEventIsPosted) {
  EventLoop loop;
  bool run = false;
  loop.RunAfterEvent([&] {
    run = true;
    loop.Stop();
  });
  EXPECT_FALSE(run);
  loop.Run();
  EXPECT_TRUE(run);
}

TEST(EventLoop, SignalsAreHandledOnTheLoopEachTime) {
  EventLoop loop;
  int arrived = 0;
  loop.OnSignals({SIGUSR1}, [&](int signal) {
    EXPECT_EQ(signal, SIGUSR1);
    if (++arrived == 2) return loop.Stop();
    std::raise(SIGUSR1);
  });
  std::raise(SIGUSR1);
  loop.Run();
  EXPECT_EQ(arrived, 2);
}

TEST(Timer, CallsBackOncePerStart) {
  EventLoop loop;
  Timer timer(&loop);
  int expired = 0;
  timer.Start(0, [&] { ++expired; });
  EXPECT_TRUE(timer.running());
  loop.RunUntil([&] { return expired == 1; });
  EXPECT_FALSE(timer.running());
  timer.Start(1, [&] { ++expired; });
  loop.RunUntil([&] { return expired == 2; });
}

TEST(Timer, NeverCallsBackAfterCancelRestartOrDestruction) {
  EventLoop loop;
  Timer cancelled(&loop);
  Timer restarted(&loop);
  auto destroyed = std::make_unique<Timer>(&loop);
  bool wrong = false;
  int right = 0;
  cancelled.Start(0, [&] { wrong = true; });
  restarted.Start(0, [&] { wrong = true; });
  destroyed->Start(0, [&] { wrong = true; });
  cancelled.Cancel();
  restarted.Start(0, [&] { ++right; });
  destroyed.reset();
  Timer last(&loop);
  last.Start(2, [&] { loop.Stop(); });
  loop.Run();
  EXPECT_FALSE(wrong);
  EXPECT_EQ(right, 1);
}

TEST(Timer, MayBeDestroyedByItsOwnCallback) {
  EventLoop loop;
  auto timer = std::make_unique<Timer>(&loop);
  timer->Start(0, [&] {
    timer.reset();
    loop.Stop();
  });
  loop.Run();
  EXPECT_EQ(timer, nullptr);
}

TEST(FdWatch, CallsBackOnceForEachWait) {
  EventLoop loop;
  SocketPair sockets;
  FdWatch watch(&loop, sockets.near.get());
  int readable = 0;
  watch.WaitReadable([&] { ++readable; });
  ASSERT_EQ(::write(sockets.far.get(), "x", 1), 1);
  loop.RunUntil([&] { return readable == 1; });
  EXPECT_FALSE(watch.waiting_readable());
  // Unread bytes make the next wait succeed again.
  watch.WaitReadable([&] { ++readable; });
  loop.RunUntil([&] { return readable == 2; });
}

TEST(FdWatch, ReadableAndWritableAreIndependent) {
  EventLoop loop;
  SocketPair sockets;
  FdWatch watch(&loop, sockets.near.get());
  bool readable = false;
  bool writable = false;
  watch.WaitReadable([&] { readable = true; });
  watch.WaitWritable([&] { writable = true; });
  loop.RunUntil([&] { return writable; });
  EXPECT_FALSE(readable);
  EXPECT_TRUE(watch.waiting_readable());
  sockets.far.Reset();
  loop.RunUntil([&] { return readable; });
}

TEST(FdWatch, NeverCallsBackAfterItsDestruction) {
  EventLoop loop;
  SocketPair sockets;
  bool called = false;
  {
    FdWatch watch(&loop, sockets.near.get());
    watch.WaitWritable([&] { called = true; });
  }
  Timer last(&loop);
  last.Start(2, [&] { loop.Stop(); });
  loop.Run();
  EXPECT_FALSE(called);
}

TEST(EventLoop, TellsHowLongItsEventsTook) {
  EventLoop loop;
  Timer timer(&loop);
  // Whatever the machine does meanwhile, it takes at least so long.
  const auto busy_for = [](std::chrono::milliseconds least) {
    const auto end = std::chrono::steady_clock::now() + least;
    while (std::chrono::steady_clock::now() < end) {
    }
  };
  loop.Post([&] { busy_for(std::chrono::milliseconds(6)); });
  timer.Start(0, [&] {
    busy_for(std::chrono::milliseconds(12));
    loop.Stop();
  });
  loop.Run();
  const auto counts = loop.event_times().counts();
  uint64_t events = 0;
  uint64_t long_events = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    events += counts[i];
    // The first three classes end at 5 ms.
    if (i >= 3) long_events += counts[i];
  }
  EXPECT_EQ(events, 2u);
  EXPECT_EQ(long_events, 2u);
  EXPECT_GE(loop.event_times().sum_us(), 18'000u);
}

}  // namespace
}  // namespace kvtier
