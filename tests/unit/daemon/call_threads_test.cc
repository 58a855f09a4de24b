// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/files/call_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/cold/files/call_kind.h"

namespace kvtier {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr size_t kAtOnce = 2;
constexpr size_t kMost = 4;
// So many calls that only compute tell what kind they are of.
constexpr size_t kTelling = 200;

class CallThreadsTest : public testing::Test {
 protected:
  ~CallThreadsTest() override { Release(); }

  std::future<FileOutcome> Begin(milliseconds timeout, std::function<FileOutcome()> work) {
    return std::move(BeginAll(timeout, {std::move(work)}).front());
  }
  std::vector<std::future<FileOutcome>> BeginAll(milliseconds timeout,
                                                 std::vector<std::function<FileOutcome()>> works) {
    std::vector<std::future<FileOutcome>> ended;
    std::vector<FileCall> calls;
    for (std::function<FileOutcome()>& work : works) {
      const auto promise = std::make_shared<std::promise<FileOutcome>>();
      ended.push_back(promise->get_future());
      calls.push_back(
          {.deadline = steady_clock::now() + timeout,
           .work = std::move(work),
           .ended = [promise](const FileOutcome& outcome, bool) { promise->set_value(outcome); }});
    }
    threads_.Add(std::move(calls));
    return ended;
  }
  FileOutcome Ask() {
    return Begin(milliseconds(60'000), [] { return FileOutcome{.text = "done"}; }).get();
  }
  // A call that holds a thread until Release, and whose deadline has passed. A busy machine may
  // begin one too late: that one ends, and another is added.
  std::future<FileOutcome> Hang() {
    for (;;) {
      const auto began = std::make_shared<std::promise<void>>();
      const auto deadline = steady_clock::now() + milliseconds(100);
      std::future<FileOutcome> ended =
          Begin(milliseconds(100), [began, released = released_future_] {
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

  CallThreads threads_{{.at_once = kAtOnce, .most = kMost, .while_copying = 1}};

 private:
  std::promise<void> released_;
  const std::shared_future<void> released_future_ = released_.get_future().share();
  bool is_released_ = false;
};

TEST(CallKindTest, CallsCountAsCopiesOnceSomeInARowHaveNotSlept) {
  using std::chrono::microseconds;
  CallKind kind;
  EXPECT_FALSE(kind.AreCopies());
  for (size_t i = 0; i < 2 * CallKind::kTurn; ++i) kind.End(milliseconds(3), 0);
  EXPECT_TRUE(kind.AreCopies()) << "though they are long";
  kind.End(milliseconds(3), 1);
  EXPECT_TRUE(kind.AreCopies()) << "one has waited for a lock";
  for (size_t i = 0; i < CallKind::kTurn; ++i) kind.End(microseconds(150), 1);
  EXPECT_FALSE(kind.AreCopies());
}

// The test counts its sleeps, and waits for nothing by them.
TEST(CallKindTest, AThreadThatWaitsSleeps) {
  const int64_t before = CallKind::CountSleeps();
  constexpr int kSleeps = 3;
  for (int i = 0; i < kSleeps; ++i) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_GE(CallKind::CountSleeps(), before + kSleeps);
}

TEST(CallKindTest, SomeCallsAreLookedAt) {
  CallKind kind;
  size_t looked_at = 0;
  for (size_t i = 0; i < 10 * CallKind::kLookedAt; ++i) looked_at += kind.Begin() ? 1 : 0;
  EXPECT_EQ(looked_at, 10u);
}

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
  const FileOutcome outcome = Begin(milliseconds(-1), [] { return FileOutcome(); }).get();
  EXPECT_EQ(outcome.status, KVT_COLD_UNSENT);
}

// One thread takes calls that copy, and it is held up.
TEST_F(CallThreadsTest, NeitherCallsNorEndsWaitForACallThatIsHeldUp) {
  for (size_t i = 0; i < kTelling; ++i) EXPECT_EQ(Ask().text, "done");
  std::promise<void> release;
  const auto held = [released = release.get_future().share()] {
    released.wait();
    return FileOutcome{.text = "held up"};
  };
  const auto copy = [] { return FileOutcome{.text = "done"}; };
  std::vector<std::future<FileOutcome>> calls = BeginAll(milliseconds(60'000), {copy, held, copy});
  EXPECT_EQ(calls[0].get().text, "done");
  EXPECT_EQ(calls[2].get().text, "done");
  EXPECT_FALSE(threads_.Hangs()) << "it has time";
  release.set_value();
  EXPECT_EQ(calls[1].get().text, "held up");
}

TEST_F(CallThreadsTest, ACallIsTakenBesideOneThatBeganJustBeforeAndIsHeldUp) {
  for (size_t i = 0; i < kTelling; ++i) EXPECT_EQ(Ask().text, "done");
  std::promise<void> release;
  const auto began = std::make_shared<std::promise<void>>();
  std::future<FileOutcome> holding =
      Begin(milliseconds(60'000), [began, released = release.get_future().share()] {
        began->set_value();
        released.wait();
        return FileOutcome{.text = "held up"};
      });
  began->get_future().wait();
  EXPECT_EQ(Ask().text, "done");
  release.set_value();
  EXPECT_EQ(holding.get().text, "held up");
}

TEST_F(CallThreadsTest, ACallForWhichNoThreadIsFreeEndsWhenItsDeadlinePasses) {
  std::promise<void> release;
  const auto held = [released = release.get_future().share()] {
    released.wait();
    return FileOutcome{.text = "held up"};
  };
  std::vector<std::future<FileOutcome>> holding =
      BeginAll(milliseconds(60'000), std::vector<std::function<FileOutcome()>>(kAtOnce, held));
  EXPECT_EQ(Begin(milliseconds(20), held).get().status, KVT_COLD_UNSENT);
  release.set_value();
  for (std::future<FileOutcome>& one : holding) EXPECT_EQ(one.get().text, "held up");
}

TEST_F(CallThreadsTest, OfManyCallsThatCopyEachIsToldOnce) {
  for (size_t i = 0; i < kTelling; ++i) EXPECT_EQ(Ask().text, "done");
  std::vector<std::function<FileOutcome()>> works;
  for (size_t i = 0; i < 1000; ++i) {
    works.emplace_back([i] { return FileOutcome{.text = std::to_string(i)}; });
  }
  std::vector<std::future<FileOutcome>> calls = BeginAll(milliseconds(60'000), std::move(works));
  for (size_t i = 0; i < calls.size(); ++i) EXPECT_EQ(calls[i].get().text, std::to_string(i));
}

// As a server on a network has them, which answers many requests at a time.
TEST_F(CallThreadsTest, CallsThatWaitAreWorkedAtTogether) {
  std::promise<void> both;
  const auto began = std::make_shared<std::atomic<size_t>>(0);
  const auto wait = [&both, began, are_both = both.get_future().share()] {
    if (++*began == kAtOnce) both.set_value();
    are_both.wait();
    return FileOutcome();
  };
  for (std::future<FileOutcome>& call : BeginAll(milliseconds(60'000), {wait, wait})) {
    EXPECT_EQ(call.get().status, KVT_COLD_OK);
  }
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
