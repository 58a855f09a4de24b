// SPDX-License-Identifier: Apache-2.0
// Calls that run out of memory or descriptors fail, and those after them go on.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <new>

#include "client/core/connection.h"
#include "client/core/own_thread.h"
#include "tests/fakes/temporary_directory.h"
#include "tests/unit/client/failing_allocations.h"
#include "tests/unit/client/fake_daemon.h"

namespace kvtier::client {
namespace {

class ExhaustionTest : public ::testing::Test {
 protected:
  [[nodiscard]] static ConnectionOptions Options(int64_t request_timeout_ms = 60'000) {
    return {.client_name = "test",
            .connect_timeout_ms = 60'000,
            .request_timeout_ms = request_timeout_ms,
            .reconnect_min_ms = 0,
            .reconnect_max_ms = 0};
  }
  // Runs `call` again and again, until none of its allocations fails; `check` after each time.
  static void WithEachAllocationFailing(const std::function<void()>& call,
                                        const std::function<void()>& check) {
    bool failed = true;
    for (int allocations = 0; failed; ++allocations) {
      FailAfter(allocations);
      try {
        call();
      } catch (const std::bad_alloc&) {
      }
      failed = FailNoMore();
      check();
      if (HasFatalFailure()) return;
    }
  }

  TestDirectory directory_;
  const std::string path_ = (directory_.path() / "sock").string();
  FakeDaemon daemon_{path_};
};

TEST_F(ExhaustionTest, AConnectionThatCouldNotBeReplacedIsReplacedByTheNextCall) {
  Connection connection(path_, Options());
  ASSERT_TRUE(connection.Connect());
  WithEachAllocationFailing(
      [&] {
        daemon_.DropClient();
        while (connection.IsConnected()) {
        }
        (void)connection.GetSession();
      },
      [&] { ASSERT_TRUE(connection.GetSession()); });
}

TEST_F(ExhaustionTest, ARequestThatCouldNotBeMadeIsMadeByTheNextCall) {
  Connection connection(path_, Options());
  ASSERT_TRUE(connection.Connect());
  WithEachAllocationFailing(
      [&] {
        const auto session = connection.GetSession();
        if (!session) return;
        (void)(*session)->channel().Call<wire::StatsReply>(wire::Stats{}, DeadlineIn(60'000));
      },
      [&] {
        const auto session = connection.GetSession();
        ASSERT_TRUE(session);
        ASSERT_TRUE((*session)->channel().Call<wire::Pong>(wire::Ping{}, DeadlineIn(60'000)));
      });
}

TEST_F(ExhaustionTest, WithoutADescriptorForLateRepliesACallTimesOutAndTheSessionEnds) {
  Connection connection(path_, Options());
  ASSERT_TRUE(connection.Connect());
  const auto session = connection.GetSession();
  ASSERT_TRUE(session);
  daemon_.HoldBack(wire::MessageType::kPing);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const UniqueFd lowest(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const rlimit none{static_cast<rlim_t>(lowest.get()), before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto pong = (*session)->channel().Call<wire::Pong>(wire::Ping{}, DeadlineIn(0));
  const Status watched = (*session)->WatchForLoss();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_FALSE(pong);
  EXPECT_EQ(pong.error().code, ErrorCode::kTimeout);
  ASSERT_FALSE(watched);
  EXPECT_EQ(watched.error().reason, "no_descriptor");
  EXPECT_TRUE((*session)->WatchForLoss());
}

TEST_F(ExhaustionTest, AThreadThatCannotBeStartedLeavesTheCallersSignalsAsTheyWere) {
  const auto blocked = [] {
    sigset_t mask;
    ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    return ::sigismember(&mask, SIGTERM) == 1;
  };
  ASSERT_FALSE(blocked());
  WithEachAllocationFailing(
      [] {
        auto thread = StartOwnThread("test", [] {});
        if (thread) thread->join();
      },
      [&] { ASSERT_FALSE(blocked()); });
}

}  // namespace
}  // namespace kvtier::client
