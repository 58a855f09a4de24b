// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/former_clients.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <vector>

#include "tests/unit/daemon/bystander.h"

namespace kvtier {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr SessionId kReaders{11};
constexpr SessionId kWriters{12};

class FormerClientsTest : public testing::Test {
 protected:
  [[nodiscard]] std::unique_ptr<FormerClients> Watch(std::vector<ProcessIdentity> processes,
                                                     Quarantine::KernelsRemain remain = {}) {
    auto clients = std::make_unique<FormerClients>(
        &loop_, &log_,
        std::vector<AbsentClients>{{DeviceIndex(0), std::move(processes), kReaders, kWriters}},
        /*copies_until_ms=*/0, std::move(remain),
        [this](SessionId session) { released_.push_back(session); });
    return clients;
  }
  void RunUntilReleased(size_t sessions) {
    loop_.RunUntil([&] { return released_.size() == sessions; });
  }

  EventLoop loop_;
  Log log_{LogConfig{.level = LogLevel::kError}};
  std::vector<SessionId> released_;
};

TEST_F(FormerClientsTest, WithoutAnyEverythingIsGivenBackAtOnce) {
  const auto clients = Watch({});
  RunUntilReleased(2);
  EXPECT_THAT(released_, UnorderedElementsAre(kReaders, kWriters));
}

TEST_F(FormerClientsTest, AProcessThatLivesKeepsAllUntilItEnds) {
  Bystander process;
  const auto clients = Watch({IdentityOf(process.peer().pid)});
  Bystander other;
  clients->OnHello(other.peer());
  EXPECT_EQ(clients->waiting(), 1u);
  EXPECT_THAT(released_, IsEmpty());
  process.Kill();
  RunUntilReleased(2);
  EXPECT_THAT(released_, UnorderedElementsAre(kReaders, kWriters));
  EXPECT_EQ(clients->waiting(), 0u);
}

TEST_F(FormerClientsTest, AProcessThatSaysHelloReadsNoMoreButMayStillWrite) {
  Bystander process;
  const auto clients = Watch({IdentityOf(process.peer().pid)});
  clients->OnHello(process.peer());
  clients->OnHello(process.peer());
  RunUntilReleased(1);
  EXPECT_THAT(released_, ElementsAre(kReaders));
  EXPECT_EQ(clients->waiting(), 1u);
  process.Kill();
  RunUntilReleased(2);
  EXPECT_THAT(released_, ElementsAre(kReaders, kWriters));
}

TEST_F(FormerClientsTest, ALaterProcessOfTheSameNumberIsNotWaitedFor) {
  Bystander process;
  ProcessIdentity former = IdentityOf(process.peer().pid);
  ASSERT_GT(former.start_time, 0u);
  --former.start_time;
  const auto clients = Watch({former});
  RunUntilReleased(2);
}

TEST_F(FormerClientsTest, WhatAnEndedProcessLeftOnAGpuIsWaitedFor) {
  Bystander process;
  const ProcessIdentity former = IdentityOf(process.peer().pid);
  process.Kill();
  int asked = 0;
  const auto clients = Watch({former}, [&](int32_t pid, std::function<void(bool)> answer) {
    EXPECT_EQ(pid, former.pid);
    const bool remains = ++asked < 2;
    EXPECT_THAT(released_, IsEmpty());
    loop_.Post([answer, remains] { answer(remains); });
  });
  RunUntilReleased(2);
  EXPECT_EQ(asked, 2);
}

}  // namespace
}  // namespace kvtier
