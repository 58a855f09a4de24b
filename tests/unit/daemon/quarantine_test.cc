#include "daemon/server/quarantine.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>

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
