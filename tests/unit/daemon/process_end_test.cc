// SPDX-License-Identifier: Apache-2.0
#include "daemon/runtime/process_end.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <functional>
#include <string>

#include "base/posix.h"

namespace kvtier {
namespace {

constexpr int kPatienceMs = 60'000;

// The only child of the process's main thread; 0 if it has none.
pid_t ChildOf(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/task/{}/children", pid, pid));
  pid_t child = 0;
  file >> child;
  return child;
}

bool Ends(const UniqueFd& process, int within_ms) {
  pollfd end{.fd = process.get(), .events = POLLIN, .revents = 0};
  return ::poll(&end, 1, within_ms) == 1;
}

// A process that has started its teardown process and waits.
class Parent {
 public:
  Parent() {
    std::array<int, 2> started{}, held{};
    EXPECT_EQ(::pipe2(started.data(), O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(held.data(), O_CLOEXEC), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(started[0]);
      ::close(held[0]);
      const char answer = StartTeardownProcess() ? 'y' : 'n';
      (void)!::write(started[1], &answer, 1);
      while (true) ::pause();
    }
    ::close(held[1]);
    held_ = UniqueFd(held[0]);
    ::close(started[1]);
    char answer = 0;
    EXPECT_EQ(::read(started[0], &answer, 1), 1);
    EXPECT_EQ(answer, 'y');
    ::close(started[0]);
    child_pid_ = ChildOf(pid_);
    child_ = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, child_pid_, 0)));
    EXPECT_TRUE(child_.valid());
  }
  ~Parent() {
    if (pid_ > 0) Kill();
  }
  Parent(const Parent&) = delete;
  Parent& operator=(const Parent&) = delete;

  void SignalChild(int signal) const { ::kill(child_pid_, signal); }
  // Signals that were sent to the child as a process and have not reached it.
  [[nodiscard]] uint64_t PendingInChild() const {
    std::ifstream file(fmt::format("/proc/{}/status", child_pid_));
    uint64_t pending = 0;
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with("ShdPnd:")) pending = std::stoull(line.substr(7), nullptr, 16);
    }
    return pending;
  }
  void Kill() {
    ::kill(pid_, SIGKILL);
    EXPECT_EQ(::waitpid(pid_, nullptr, 0), pid_);
    pid_ = -1;
  }
  [[nodiscard]] const UniqueFd& child() const { return child_; }
  // The end of a pipe whose other end the parent has.
  [[nodiscard]] const UniqueFd& held() const { return held_; }

 private:
  pid_t pid_ = -1;
  pid_t child_pid_ = -1;
  UniqueFd child_;
  UniqueFd held_;
};

class ProcessEndTest : public testing::Test {
 protected:
  void SetUp() override {
#ifdef __SANITIZE_THREAD__
    GTEST_SKIP() << "the thread sanitizer's state cannot be shared with a child";
#endif
  }
};

// Whether it holds of one of a few that are killed: a busy machine may look too late.
bool HoldsOfOne(const std::function<bool(const Parent&)>& holds) {
  constexpr int kTries = 8;
  for (int i = 0; i < kTries; ++i) {
    Parent parent;
    parent.Kill();
    if (holds(parent)) return true;
  }
  return false;
}

TEST_F(ProcessEndTest, TheTeardownProcessClosesDescriptorsAtOnceAndEndsLater) {
  EXPECT_TRUE(HoldsOfOne([](const Parent& parent) {
    pollfd pipe{.fd = parent.held().get(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&pipe, 1, kPatienceMs), 1);
    EXPECT_NE(pipe.revents & POLLHUP, 0);
    const bool lives = !Ends(parent.child(), 0);
    EXPECT_TRUE(Ends(parent.child(), kPatienceMs));
    return lives;
  }));
}

// It shares a context on the GPU, whose memory is to be back after a second.
TEST_F(ProcessEndTest, TheTeardownProcessIsGoneWithinASecond) {
  EXPECT_TRUE(HoldsOfOne([](const Parent& parent) { return Ends(parent.child(), 1'000); }));
}

TEST_F(ProcessEndTest, ATerminalsSignalsStayPendingInTheTeardownProcess) {
  const Parent parent;
  parent.SignalChild(SIGINT);
  EXPECT_NE(parent.PendingInChild() & (uint64_t{1} << (SIGINT - 1)), 0U);
}

}  // namespace
}  // namespace kvtier
