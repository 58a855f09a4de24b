// SPDX-License-Identifier: Apache-2.0
#include "base/executor.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

namespace kvtier {
namespace {

// An event loop that runs posted events when the test says so.
class ManualLoop final : public EventQueue {
 public:
  void Post(std::function<void()> event) override {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    posted_.notify_all();
  }

  // Waits until `count` events were posted, then runs them on this thread.
  void RunEvents(size_t count) {
    std::vector<std::function<void()>> events;
    {
      std::unique_lock lock(mutex_);
      posted_.wait(lock, [&] { return events_.size() >= count; });
      events.swap(events_);
    }
    for (const auto& event : events) event();
  }

  size_t pending() {
    const std::lock_guard lock(mutex_);
    return events_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable posted_;
  std::vector<std::function<void()>> events_;
};

TEST(ThreadExecutor, WorksElsewhereAndReportsOnTheLoop) {
  ManualLoop loop;
  ThreadExecutor executor("test", 1, &loop);
  std::thread::id worked_on, reported_on;
  executor.Run([&] { worked_on = std::this_thread::get_id(); },
               [&] { reported_on = std::this_thread::get_id(); });
  loop.RunEvents(1);
  EXPECT_NE(worked_on, std::this_thread::get_id());
  EXPECT_NE(worked_on, std::thread::id());
  EXPECT_EQ(reported_on, std::this_thread::get_id());
}

TEST(ThreadExecutor, IsBusyUntilWorkHasEnded) {
  ManualLoop loop;
  ThreadExecutor executor("test", 1, &loop);
  EXPECT_FALSE(executor.busy());
  std::promise<void> end;
  executor.Run([&] { end.get_future().wait(); }, [] {});
  EXPECT_TRUE(executor.busy());
  end.set_value();
  loop.RunEvents(1);
  EXPECT_FALSE(executor.busy());
}

TEST(ThreadExecutor, BackgroundThreadsGiveWayAndNobodyElseDoes) {
  ManualLoop loop;
  const auto niceness_in = [&loop](ThreadExecutor::Priority standing) {
    ThreadExecutor executor("test", 1, &loop, standing);
    int niceness = 0;
    executor.Run([&] { niceness = ::getpriority(PRIO_PROCESS, 0); }, [] {});
    loop.RunEvents(1);
    return niceness;
  };
  const int own = ::getpriority(PRIO_PROCESS, 0);
  EXPECT_EQ(niceness_in(ThreadExecutor::Priority::kNormal), own);
  EXPECT_EQ(niceness_in(ThreadExecutor::Priority::kBackground), std::max(own, 10));
  EXPECT_EQ(::getpriority(PRIO_PROCESS, 0), own);
}

TEST(ThreadExecutor, BackgroundThreadsOfWhoHasGivenWayFurtherStayThere) {
  std::thread([] {
    ASSERT_EQ(::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 15), 0);
    ManualLoop loop;
    ThreadExecutor executor("test", 1, &loop, ThreadExecutor::Priority::kBackground);
    int niceness = 0;
    executor.Run([&] { niceness = ::getpriority(PRIO_PROCESS, 0); }, [] {});
    loop.RunEvents(1);
    EXPECT_EQ(niceness, 15);
  }).join();
}

TEST(ThreadExecutor, OneThreadKeepsTheOrder) {
  ManualLoop loop;
  std::vector<int> worked, reported;
  ThreadExecutor executor("test", 1, &loop);
  for (int i = 0; i < 100; ++i) {
    executor.Run([&worked, i] { worked.push_back(i); }, [&reported, i] { reported.push_back(i); });
  }
  loop.RunEvents(100);
  EXPECT_EQ(worked, reported);
  EXPECT_EQ(worked.size(), 100u);
  EXPECT_TRUE(std::is_sorted(worked.begin(), worked.end()));
}

TEST(ThreadExecutor, ThreadsWorkAtTheSameTime) {
  ManualLoop loop;
  ThreadExecutor executor("test", 2, &loop);
  std::mutex mutex;
  std::condition_variable changed;
  int inside = 0;
  // Each waits for the other: with one thread this would never end.
  const auto meet = [&] {
    std::unique_lock lock(mutex);
    ++inside;
    changed.notify_all();
    changed.wait(lock, [&] { return inside == 2; });
  };
  executor.Run(meet, [] {});
  executor.Run(meet, [] {});
  loop.RunEvents(2);
  EXPECT_EQ(inside, 2);
}

TEST(ThreadExecutor, DestructorFinishesQueuedWork) {
  ManualLoop loop;
  std::atomic<int> worked = 0;
  {
    ThreadExecutor executor("test", 2, &loop);
    for (int i = 0; i < 1000; ++i) executor.Run([&] { ++worked; }, [] {});
  }
  EXPECT_EQ(worked, 1000);
  EXPECT_EQ(loop.pending(), 1000u);
}

TEST(ThreadExecutor, WorkWithoutReportIsFine) {
  ManualLoop loop;
  std::atomic<int> worked = 0;
  {
    ThreadExecutor("test", 1, &loop).Run([&] { ++worked; }, nullptr);
  }
  EXPECT_EQ(worked, 1);
  EXPECT_EQ(loop.pending(), 0u);
}

}  // namespace
}  // namespace kvtier
