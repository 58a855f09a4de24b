// SPDX-License-Identifier: Apache-2.0
// A daemon that answers a RESUME after the client has stopped waiting for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "tests/unit/client/resume_fixture.h"

namespace kvtier::client {
namespace {

using ::testing::IsEmpty;

// The daemon may have given the blocks, and only its answer says so.
class LateAnswerTest : public ResumeTest {
 protected:
  void SetUp() override {
    ResumeTest::SetUp();
    Attach(ImpatientOptions());
    blocks_ = AcquireNew(2);
    daemon_->HoldBack(wire::MessageType::kResume);
    daemon_->DieAndAdopt();
    EXPECT_EQ(pool_->Check(blocks_).error().code, KVT_STALE_HANDLE);
    request_ = daemon_->WaitForHeldBack();
    detached_before_ = daemon_->Requests(wire::MessageType::kDetach);
  }
  void Answer() {
    daemon_->Send(
        FrameOf(wire::ResumeReply{{ResumeOutcome::kPrivate, ResumeOutcome::kPrivate}}, request_));
  }

  std::vector<kvt_block> blocks_;
  uint64_t request_ = 0;
  int detached_before_ = 0;
};

TEST_F(LateAnswerTest, ACallThatFindsItGoesOnWithTheBlocks) {
  EXPECT_EQ(pool_->Acquire({}, {}, 1).error().reason, "resume_timeout");
  Answer();
  EXPECT_TRUE(pool_->Check(blocks_));
  EXPECT_EQ(daemon_->Requests(wire::MessageType::kResume), 1);
  EXPECT_EQ(daemon_->Requests(wire::MessageType::kDetach), detached_before_);
  EXPECT_TRUE(pool_->Release(blocks_));
  EXPECT_EQ(References(), 0u);
  EXPECT_THAT(connection_->TakeErrors(), IsEmpty());
}

TEST_F(LateAnswerTest, BlocksThatWereReleasedMeanwhileAreGivenBackThen) {
  EXPECT_TRUE(pool_->Release(blocks_));
  Answer();
  EXPECT_TRUE(pool_->Acquire({}, {}, 1));
  EXPECT_EQ(References(), 0u);
}

TEST_F(LateAnswerTest, MoreThanOneMessageNamesIsGivenBackThen) {
  EXPECT_TRUE(pool_->Release(blocks_));
  Answer();
  Fill({Hash(1)});
  const std::vector<kvt_hash> often(wire::kMaxHashesPerCall, Hash(1));
  std::vector<kvt::Acquired> held;
  for (int i = 0; i < 2; ++i) {
    auto acquired = pool_->Acquire(often);
    ASSERT_TRUE(acquired) << acquired.error().ToString();
    held.push_back(*std::move(acquired));
  }
  daemon_->HoldBack(wire::MessageType::kResume);
  daemon_->DieAndAdopt();
  EXPECT_FALSE(pool_->Check(held[0].hits.blocks()));
  const uint64_t request = daemon_->WaitForHeldBack();
  held.clear();
  daemon_->Send(FrameOf(wire::ResumeReply{{ResumeOutcome::kReferenced}}, request));
  EXPECT_TRUE(pool_->Acquire({}, {}, 1));
  EXPECT_EQ(References(), 0u);
}

TEST_F(LateAnswerTest, ThreadsDoNotWaitInTurn) {
  constexpr int kThreads = 32;
  kvt_connect_options options = ImpatientOptions();
  options.resume_wait_ms = options.request_timeout_ms;
  daemon_->Intercept(nullptr);
  Attach(options);
  const std::vector<kvt_block> blocks = AcquireNew(1);
  daemon_->HoldBack(wire::MessageType::kResume);
  daemon_->DieAndAdopt();
  const auto begun = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] { EXPECT_FALSE(pool_->Check(blocks)); });
  }
  for (std::thread& thread : threads) thread.join();
  // In turn, they would have waited for as many time-outs.
  EXPECT_LT(std::chrono::steady_clock::now() - begun,
            kThreads / 2 * std::chrono::milliseconds(options.request_timeout_ms));
}

TEST_F(LateAnswerTest, APoolThatIsClosedMeanwhileLeavesTheSession) {
  pool_.reset();
  daemon_->WaitForRequests(wire::MessageType::kDetach, detached_before_ + 1);
}

TEST_F(LateAnswerTest, ADaemonThatDiesBeforeItIsFollowedByTheNext) {
  daemon_->Intercept(nullptr);
  daemon_->DieAndAdopt();
  EXPECT_TRUE(pool_->Check(blocks_));
}

}  // namespace
}  // namespace kvtier::client
