// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/quarantine.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/unit/daemon/bystander.h"

namespace kvtier {
namespace {

class QuarantineTest : public testing::Test {
 protected:
  std::function<void(SessionId)> Releasing() {
    return [this](SessionId id) { released_.push_back(id); };
  }

  EventLoop loop_;
  Log log_{LogConfig{.level = LogLevel::kError}};
  std::vector<SessionId> released_;
};

TEST_F(QuarantineTest, ReleasesAllSessionsOfAProcessThatHasEnded) {
  Quarantine quarantine(&loop_, &log_, Releasing(), {});
  Bystander process;
  quarantine.Add(SessionId(1), process.peer());
  quarantine.Add(SessionId(2), process.peer());
  EXPECT_EQ(quarantine.sessions(), 2u);
  process.Kill();
  loop_.RunUntil([&] { return released_.size() == 2; });
  EXPECT_EQ(quarantine.sessions(), 0u);
}

TEST_F(QuarantineTest, SaysOfAProcessThatLivesOnThatItsBlocksStayOutOfUse) {
  Log log{LogConfig{.level = LogLevel::kWarning}};
  testing::internal::CaptureStderr();
  Quarantine quarantine(&loop_, &log, Releasing(), {});
  Bystander lives, ends;
  quarantine.Add(SessionId(1), lives.peer());
  quarantine.Add(SessionId(2), ends.peer());
  ends.Kill();
  loop_.RunUntil([&] { return !released_.empty(); });
  // Another clock of the same length, started later: the warning comes first.
  Timer later(&loop_);
  bool over = false;
  later.Start(1100, [&] { over = true; });
  loop_.RunUntil([&] { return over; });
  log.Flush();
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find(fmt::format("session.warned: process {} ", lives.peer().pid)),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find(fmt::format("process {} ", ends.peer().pid)), std::string::npos) << text;
}

TEST_F(QuarantineTest, ASessionThatHasGivenAllBackSinceIsNeitherCountedNorWarnedOf) {
  Log log{LogConfig{.level = LogLevel::kWarning}};
  testing::internal::CaptureStderr();
  bool withholds = true;
  Quarantine quarantine(&loop_, &log, Releasing(), {}, [&](SessionId) { return withholds; });
  Bystander lives;
  quarantine.Add(SessionId(1), lives.peer());
  EXPECT_EQ(quarantine.sessions(), 1u);
  withholds = false;
  EXPECT_EQ(quarantine.sessions(), 0u);
  Timer later(&loop_);
  bool over = false;
  later.Start(1100, [&] { over = true; });
  loop_.RunUntil([&] { return over; });
  log.Flush();
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST_F(QuarantineTest, WaitsAsLongAsTheProcessIsOutlastedByItsKernels) {
  int asked = 0;
  Quarantine quarantine(&loop_, &log_, Releasing(), [&](int32_t, std::function<void(bool)> answer) {
    const bool outlasted = ++asked < 3;
    EXPECT_TRUE(released_.empty());
    loop_.Post([answer, outlasted] { answer(outlasted); });
  });
  Bystander process;
  quarantine.Add(SessionId(1), process.peer());
  process.Kill();
  loop_.RunUntil([&] { return !released_.empty(); });
  EXPECT_EQ(asked, 3);
  EXPECT_EQ(quarantine.sessions(), 0u);
}

// A process's remains may hold its entry for long after its death; its number is soon another's.
TEST_F(QuarantineTest, ALaterProcessOfTheSameNumberIsAwaitedForItself) {
  std::function<void(bool)> answer_first;
  Quarantine quarantine(&loop_, &log_, Releasing(), [&](int32_t, std::function<void(bool)> answer) {
    if (!answer_first) {
      answer_first = std::move(answer);
    } else {
      loop_.Post([answer] { answer(false); });
    }
  });
  Bystander first, second;
  Peer later = second.peer();
  later.pid = first.peer().pid;
  quarantine.Add(SessionId(1), first.peer());
  first.Kill();
  loop_.RunUntil([&] { return answer_first != nullptr; });
  quarantine.Add(SessionId(2), std::move(later));
  answer_first(false);
  EXPECT_EQ(released_, std::vector<SessionId>{SessionId(1)});
  EXPECT_EQ(quarantine.sessions(), 1u);
  second.Kill();
  loop_.RunUntil([&] { return released_.size() == 2; });
  EXPECT_EQ(quarantine.sessions(), 0u);
}

TEST_F(QuarantineTest, AProcessOfAnotherPidNamespaceCostsOneDescriptorHoweverOftenItConnects) {
  Bystander process;
  if (!process.CanBeToldWithoutANumber()) GTEST_SKIP() << "this kernel cannot tell them apart";
  Quarantine quarantine(&loop_, &log_, Releasing(), {});
  quarantine.Add(SessionId(1), process.foreign_peer());
  const size_t open = OpenPidfds();
  for (uint64_t id = 2; id <= 10; ++id) quarantine.Add(SessionId(id), process.foreign_peer());
  EXPECT_EQ(OpenPidfds(), open);
  EXPECT_EQ(quarantine.sessions(), 10u);
  Bystander other;
  quarantine.Add(SessionId(11), other.foreign_peer());
  EXPECT_EQ(OpenPidfds(), open + 1) << "another process is awaited for itself";
  process.Kill();
  loop_.RunUntil([&] { return released_.size() == 10; });
  EXPECT_EQ(quarantine.sessions(), 1u);
}

TEST_F(QuarantineTest, AProcessOfWhichNothingIsAwaitedCostsNoDescriptor) {
  Quarantine quarantine(&loop_, &log_, Releasing(), {});
  Bystander process;
  const size_t open = OpenPidfds();
  quarantine.Add(SessionId(1), process.peer());
  quarantine.Add(SessionId(2), process.peer());
  quarantine.Forget(SessionId(1));
  quarantine.Forget(SessionId(3));
  EXPECT_EQ(quarantine.sessions(), 1u);
  quarantine.Forget(SessionId(2));
  EXPECT_EQ(quarantine.sessions(), 0u);
  EXPECT_EQ(OpenPidfds(), open);
}

// The driver is asked about the process, and its answer names the entry.
TEST_F(QuarantineTest, WhatIsForgottenAfterItsProcessEndedIsNotReleased) {
  std::function<void(bool)> answer;
  Quarantine quarantine(&loop_, &log_, Releasing(),
                        [&](int32_t, std::function<void(bool)> asked) { answer = asked; });
  Bystander process;
  quarantine.Add(SessionId(1), process.peer());
  process.Kill();
  loop_.RunUntil([&] { return answer != nullptr; });
  quarantine.Forget(SessionId(1));
  answer(false);
  EXPECT_TRUE(released_.empty());
}

TEST_F(QuarantineTest, AnAnswerThatComesAfterItsEndIsNobodys) {
  std::function<void(bool)> late;
  {
    Quarantine quarantine(&loop_, &log_, Releasing(),
                          [&](int32_t, std::function<void(bool)> answer) { late = answer; });
    Bystander process;
    quarantine.Add(SessionId(1), process.peer());
    process.Kill();
    loop_.RunUntil([&] { return late != nullptr; });
  }
  late(false);
  EXPECT_TRUE(released_.empty());
}

}  // namespace
}  // namespace kvtier
