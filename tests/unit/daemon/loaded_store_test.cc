// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/loaded_store.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/units.h"
#include "daemon/runtime/event_loop.h"
#include "tests/fakes/scripted_cold.h"

namespace kvtier {
namespace {

constexpr int64_t kTimeoutMs = 60'000;
constexpr uint64_t kBytes = 100;

class LoadedStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    auto opened =
        LoadedStore::Open({.library = KVTIER_SCRIPTED_COLD,
                           .endpoint = std::to_string(reinterpret_cast<uintptr_t>(&script_)),
                           .max_bytes_in_flight = [] { return kMiB; },
                           .on_unswept = [this](const std::string& why) { unswept_ += why; }},
                          &loop_);
    ASSERT_TRUE(opened) << opened.error().ToString();
    store_ = *std::move(opened);
  }

  void Get(int64_t timeout_ms = kTimeoutMs) {
    const size_t number = ended_.size();
    ended_.emplace_back();
    store_->Get("name", kBytes, timeout_ms, [this, number](const Result<ColdBytes>& got) {
      ended_[number] = got ? "good" : got.error().reason;
      ++ends_;
      ends_of_event_.back() += 1;
    });
  }
  void GetSome(size_t count, int64_t timeout_ms = kTimeoutMs) {
    loop_.Post([this, count, timeout_ms] {
      for (size_t i = 0; i < count; ++i) Get(timeout_ms);
    });
    loop_.RunUntil([this, count] { return script_.calls.size() == count; });
  }
  // Runs until so many calls have ended, and notes how many of them each event has ended.
  void AwaitEnds(size_t count) {
    loop_.RunUntil([this, count] {
      if (ends_of_event_.back() > 0) ends_of_event_.push_back(0);
      return ends_ == count;
    });
    ends_of_event_.pop_back();
  }
  // As a library's thread does it, while the loop is at something else.
  void EndAll() {
    std::thread([this] {
      for (const uint64_t call : script_.calls) script_.EndGet(call, kBytes);
    }).join();
  }

  EventLoop loop_;
  ScriptedCold script_;
  std::unique_ptr<LoadedStore> store_;
  std::vector<std::string> ended_;  // the ends' reasons
  size_t ends_ = 0;
  std::vector<size_t> ends_of_event_ = {0};
  std::string unswept_;
};

TEST_F(LoadedStoreTest, CallsOfOneEventAreSentTogether) {
  GetSome(5);
  EXPECT_EQ(script_.sends, 1u);
  loop_.Post([this] { Get(); });
  loop_.RunUntil([this] { return script_.calls.size() == 6; });
  EXPECT_EQ(script_.sends, 2u);
}

TEST_F(LoadedStoreTest, EndsThatComeTogetherShareAnEvent) {
  GetSome(5);
  EndAll();
  AwaitEnds(5);
  EXPECT_EQ(ends_of_event_, std::vector<size_t>{5});
  EXPECT_EQ(ended_, std::vector<std::string>(5, "good"));
}

TEST_F(LoadedStoreTest, AnEndThatAnotherFollowsWaitsForIt) {
  GetSome(3);
  bool has_turned = false;
  script_.EndGet(script_.calls[0], kBytes, /*more=*/true);
  loop_.Post([&has_turned] { has_turned = true; });
  loop_.RunUntil([&has_turned] { return has_turned; });
  EXPECT_EQ(ends_, 0u);
  script_.EndGet(script_.calls[1], kBytes, /*more=*/true);
  script_.EndGet(script_.calls[2], kBytes);
  AwaitEnds(3);
  EXPECT_EQ(ends_of_event_, std::vector<size_t>{3});
}

TEST_F(LoadedStoreTest, ManyEndsTakeSeveralEventsSoThatOthersHaveTheirTurns) {
  GetSome(100);
  EndAll();
  AwaitEnds(100);
  EXPECT_GT(ends_of_event_.size(), 5u);
  EXPECT_EQ(ended_, std::vector<std::string>(100, "good"));
}

TEST_F(LoadedStoreTest, EachCallIsLateByItsOwnTimeout) {
  for (const int64_t timeout_ms : {kTimeoutMs, int64_t{30}, int64_t{1}, kTimeoutMs, int64_t{1}}) {
    Get(timeout_ms);
  }
  AwaitEnds(3);
  const std::string late(kColdStoreLate);
  EXPECT_EQ(ended_, (std::vector<std::string>{"", late, late, "", late}));
  EndAll();
  AwaitEnds(5);
  EXPECT_EQ(ended_, (std::vector<std::string>{"good", late, late, "good", late}));
}

// The answer came too late for its caller, but it came, and another call was never sent.
TEST_F(LoadedStoreTest, ACallThatIsLateInAQueueSaysNothingOfTheStore) {
  for (const bool has_queue : {true, false}) {
    const size_t first = ended_.size();
    Get(1);
    Get(1);
    AwaitEnds(first + 2);
    Get(200);
    loop_.RunUntil([&] { return script_.calls.size() == first + 3; });
    script_.EndGet(script_.calls[first], kBytes);
    const int end_of_other = has_queue ? KVT_COLD_UNSENT : KVT_COLD_UNAVAILABLE;
    script_.done(script_.context, script_.calls[first + 1], end_of_other, nullptr, 0, 0);
    AwaitEnds(first + 3);
    EXPECT_EQ(ended_.back(), has_queue ? kColdCallUnsent : kColdStoreLate);
  }
}

TEST_F(LoadedStoreTest, ACallAfterOthersHaveEndedIsStillLate) {
  GetSome(3, 20);
  EndAll();
  AwaitEnds(3);
  Get(40);
  AwaitEnds(4);
  EXPECT_EQ(ended_.back(), "cold_store_late");
}

TEST_F(LoadedStoreTest, ACallThatTheLibraryCouldNotSendInTimeSaysSo) {
  GetSome(2);
  script_.done(script_.context, script_.calls[0], KVT_COLD_LATE, nullptr, 0, 0);
  script_.done(script_.context, script_.calls[1], KVT_COLD_UNSENT, nullptr, 0, 0);
  AwaitEnds(2);
  EXPECT_EQ(ended_, (std::vector<std::string>{"cold_store_late", std::string(kColdCallUnsent)}));
}

TEST_F(LoadedStoreTest, AnAnswerThatCameWhileTheLoopWasBusyIsNotLate) {
  constexpr int64_t kSoonMs = 20;
  loop_.Post([this] {
    for (int i = 0; i < 10; ++i) Get(kSoonMs);
  });
  loop_.RunUntil([this] { return script_.calls.size() == 10; });
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(2 * kSoonMs);
  loop_.Post([this, until] {
    EndAll();
    while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
  });
  AwaitEnds(10);
  EXPECT_EQ(ended_, std::vector<std::string>(10, "good"));
}

TEST_F(LoadedStoreTest, ASweepThatLeavesSomethingOutIsToldByNoCall) {
  GetSome(1);
  const std::string why = "a reason";
  script_.done(script_.context, KVT_COLD_NO_CALL, KVT_COLD_REFUSED, why.data(), why.size(), 0);
  loop_.RunUntil([this] { return !unswept_.empty(); });
  EXPECT_EQ(unswept_, why);
  EXPECT_EQ(ends_, 0u);
}

TEST_F(LoadedStoreTest, AnEndThatIsToldTwiceCountsOnce) {
  GetSome(2);
  script_.EndGet(script_.calls[0], kBytes);
  EndAll();
  AwaitEnds(2);
  EXPECT_EQ(ended_, std::vector<std::string>(2, "good"));
}

TEST_F(LoadedStoreTest, ACallerMayDestroyTheStoreWhenItHearsOfAnEnd) {
  size_t ended = 0;
  for (int i = 0; i < 3; ++i) {
    store_->Get("name", kBytes, kTimeoutMs, [&](const Result<ColdBytes>&) {
      ++ended;
      store_.reset();
    });
  }
  EndAll();
  loop_.RunUntil([&] { return script_.is_closed; });
  EXPECT_EQ(ended, 1u);
}

}  // namespace
}  // namespace kvtier
