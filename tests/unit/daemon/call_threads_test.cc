// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/files/call_threads.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace kvtier {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr size_t kAtOnce = 2;
constexpr size_t kMost = 4;

class CallThreadsTest : public testing::Test {
 protected:
  ~CallThreadsTest() override { Release(); }

  std::future<FileOutcome> Add(milliseconds timeout, std::function<FileOutcome()> work) {
    const auto promise = std::make_shared<std::promise<FileOutcome>>();
    threads_.Add({.deadline = steady_clock::now() + timeout,
                  .work = std::move(work),
                  .ended = [promise](const FileOutcome& outcome) { promise->set_value(outcome); }});
    return promise->get_future();
  }
  FileOutcome Ask() {
    return Add(milliseconds(60'000), [] { return FileOutcome{.text = "done"}; }).get();
  }
  // A call that holds a thread until Release, and whose deadline has passed. A busy machine may
  // begin one too late: that one ends, and another is added.
  std::future<FileOutcome> Hang() {
    for (;;) {
      const auto began = std::make_shared<std::promise<void>>();
      const auto deadline = steady_clock::now() + milliseconds(100);
      std::future<FileOutcome> ended = Add(milliseconds(100), [began, released = released_future_] {
        began->set_value();
        released.wait();
        return FileOutcome{.text = "late"};
      });
      if (began->get_future().wait_until(deadline) != std::future_status::ready) continue;
      while (steady_clock::now() <= deadline) std::this_thread::yield();
      return ended;
    }
  }
  void Release() {
    if (!std::exchange(is_released_, true)) released_.set_value();
  }

  CallThreads threads_{kAtOnce, kMost};

 private:
  std::promise<void> released_;
  const std::shared_future<void> released_future_ = released_.get_future().share();
  bool is_released_ = false;
};

TEST_F(CallThreadsTest, TellHowACallEnded) { EXPECT_EQ(Ask().text, "done"); }

TEST_F(CallThreadsTest, AnotherThreadTakesThePlaceOfOneThatHangs) {
  EXPECT_FALSE(threads_.Hangs());
  std::vector<std::future<FileOutcome>> hanging;
  for (size_t i = 0; i + 1 < kMost; ++i) hanging.push_back(Hang());
  EXPECT_TRUE(threads_.Hangs());
  EXPECT_EQ(Ask().text, "done");
}

TEST_F(CallThreadsTest, CallsAreRefusedAtOnceWhileAllThreadsHang) {
  std::vector<std::future<FileOutcome>> hanging;
  for (size_t i = 0; i < kMost; ++i) hanging.push_back(Hang());
  EXPECT_EQ(Ask().status, KVT_COLD_BUSY);
  Release();
  for (std::future<FileOutcome>& one : hanging) EXPECT_EQ(one.get().text, "late");
  EXPECT_EQ(Ask().text, "done");
}

TEST_F(CallThreadsTest, ACallThatIsNotBegunInTimeIsNotBegunAtAll) {
  const FileOutcome outcome = Add(milliseconds(-1), [] { return FileOutcome(); }).get();
  EXPECT_EQ(outcome.status, KVT_COLD_UNAVAILABLE);
}

TEST_F(CallThreadsTest, AStopDoesNotWaitForAThreadThatHangs) {
  std::future<FileOutcome> hanging = Hang();
  EXPECT_FALSE(threads_.Stop(steady_clock::now()));
  Release();
  EXPECT_TRUE(threads_.Stop(steady_clock::now() + milliseconds(60'000)));
  EXPECT_THROW(hanging.get(), std::future_error) << "no caller is told after the stop";
}

TEST_F(CallThreadsTest, AStopAwaitsThreadsThatHaveNothingToDo) {
  EXPECT_EQ(Ask().text, "done");
  EXPECT_TRUE(threads_.Stop(steady_clock::now() + milliseconds(60'000)));
}

}  // namespace
}  // namespace kvtier
