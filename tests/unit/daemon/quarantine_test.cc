// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/quarantine.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <vector>

namespace kvtier {
namespace {

// A process that does nothing until it is killed.
class Bystander {
 public:
  Bystander() : pid_(::fork()) {
    if (pid_ == 0) {
      while (true) ::pause();
    }
  }
  ~Bystander() { Kill(); }
  Bystander(const Bystander&) = delete;
  Bystander& operator=(const Bystander&) = delete;

  [[nodiscard]] Peer peer() const {
    return {.pid = pid_, .pidfd = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)))};
  }
  void Kill() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

 private:
  const pid_t pid_;
};

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

// What a dead process left behind may hold its entry for long; its number is soon another's.
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
