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
constexpr SessionId kHoldings{13};
constexpr SessionId kFormer{5};
constexpr PoolId kPool{3};
constexpr int64_t kLong = 3'600'000;

class FormerClientsTest : public testing::Test {
 protected:
  [[nodiscard]] static SessionSecret Secret() {
    SessionSecret secret;
    secret.bytes.fill(7);
    return secret;
  }
  [[nodiscard]] std::unique_ptr<FormerClients> Watch(std::vector<ProcessIdentity> processes,
                                                     Quarantine::KernelsRemain remain = {},
                                                     int64_t grace_ms = kLong) {
    AbsentClients absent{.device = DeviceIndex(0),
                         .pool = kPool,
                         .sessions = {},
                         .readers = kReaders,
                         .writers = kWriters,
                         .writers_hold = writers_hold_};
    for (const ProcessIdentity& process : processes) {
      const uint64_t position = absent.sessions.size();
      absent.sessions.push_back({{.process = process,
                                  .uid = ::getuid(),
                                  .session = SessionId(kFormer.value + position),
                                  .secret = Secret()},
                                 SessionId(kHoldings.value + position)});
    }
    return std::make_unique<FormerClients>(
        &loop_, &log_, std::vector{absent}, FormerClients::Options{.grace_ms = grace_ms},
        std::move(remain), [this](SessionId session) { released_.push_back(session); });
  }
  // As the server knows the process; of the test's own user.
  [[nodiscard]] static Peer PeerOf(Bystander& process) {
    Peer peer = process.peer();
    peer.uid = ::getuid();
    return peer;
  }
  void RunUntilReleased(size_t sessions) {
    loop_.RunUntil([&] { return released_.size() == sessions; });
  }

  EventLoop loop_;
  Log log_{LogConfig{.level = LogLevel::kError}};
  std::vector<SessionId> released_;
  bool writers_hold_ = false;
};

TEST_F(FormerClientsTest, WithoutAnyEverythingIsGivenBackAtOnce) {
  const auto clients = Watch({});
  RunUntilReleased(2);
  EXPECT_THAT(released_, UnorderedElementsAre(kReaders, kWriters));
}

TEST_F(FormerClientsTest, AProcessThatLivesKeepsAllUntilItEnds) {
  Bystander process;
  const auto clients = Watch({IdentityOf(process.peer().pid)});
  EXPECT_EQ(clients->waiting(), 1u);
  EXPECT_THAT(released_, IsEmpty());
  process.Kill();
  RunUntilReleased(3);
  EXPECT_THAT(released_, UnorderedElementsAre(kReaders, kWriters, kHoldings));
  EXPECT_EQ(clients->waiting(), 0u);
}

TEST_F(FormerClientsTest, OneThatDoesNotComeInTimeReadsNoMoreButMayStillWrite) {
  Bystander process;
  const auto clients = Watch({IdentityOf(process.peer().pid)}, {}, /*grace_ms=*/1);
  RunUntilReleased(1);
  EXPECT_THAT(released_, ElementsAre(kReaders));
  EXPECT_EQ(clients->waiting(), 1u);
  EXPECT_EQ(clients->Find(kPool, kFormer, Secret(), PeerOf(process)), kHoldings);
  process.Kill();
  RunUntilReleased(3);
  EXPECT_THAT(released_, UnorderedElementsAre(kReaders, kWriters, kHoldings));
}

TEST_F(FormerClientsTest, OneThatHasBeenResumedIsNotWaitedForAnyMore) {
  Bystander process;
  const auto clients = Watch({IdentityOf(process.peer().pid)});
  ASSERT_EQ(clients->Find(kPool, kFormer, Secret(), PeerOf(process)), kHoldings);
  clients->OnResumed(kHoldings);
  clients->OnResumed(kHoldings);
  RunUntilReleased(3);
  EXPECT_THAT(released_, UnorderedElementsAre(kReaders, kWriters, kHoldings));
  EXPECT_EQ(clients->waiting(), 0u);
  EXPECT_EQ(clients->Find(kPool, kFormer, Secret(), PeerOf(process)), std::nullopt);
}

TEST_F(FormerClientsTest, BlocksThatSomeProcessMayWriteToWaitForItsEndAllTheSame) {
  writers_hold_ = true;
  Bystander process;
  const auto clients = Watch({IdentityOf(process.peer().pid)});
  clients->OnResumed(kHoldings);
  RunUntilReleased(1);
  EXPECT_THAT(released_, ElementsAre(kReaders));
  process.Kill();
  RunUntilReleased(3);
}

TEST_F(FormerClientsTest, OfTwoSessionsOfAProcessTheReadersWaitForBoth) {
  Bystander process;
  const ProcessIdentity identity = IdentityOf(process.peer().pid);
  const auto clients = Watch({identity, identity});
  clients->OnResumed(kHoldings);
  RunUntilReleased(1);
  EXPECT_THAT(released_, ElementsAre(kHoldings));
  clients->OnResumed(SessionId(kHoldings.value + 1));
  RunUntilReleased(4);
}

TEST_F(FormerClientsTest, OnlyTheProcessItselfWithItsSecretIsKnown) {
  Bystander process;
  Bystander other;
  const auto clients = Watch({IdentityOf(process.peer().pid)});
  const Peer peer = PeerOf(process);
  SessionSecret wrong = Secret();
  wrong.bytes.back() ^= 1;
  EXPECT_EQ(clients->Find(kPool, kFormer, wrong, peer), std::nullopt);
  EXPECT_EQ(clients->Find(kPool, kFormer, {}, peer), std::nullopt);
  EXPECT_EQ(clients->Find(kPool, SessionId(6), Secret(), peer), std::nullopt);
  EXPECT_EQ(clients->Find(PoolId(4), kFormer, Secret(), peer), std::nullopt);
  EXPECT_EQ(clients->Find(kPool, kFormer, Secret(), PeerOf(other)), std::nullopt);
  Peer stranger = PeerOf(process);
  ++stranger.uid;
  EXPECT_EQ(clients->Find(kPool, kFormer, Secret(), stranger), std::nullopt);
  EXPECT_EQ(clients->Find(kPool, kFormer, Secret(), peer), kHoldings);
}

TEST_F(FormerClientsTest, ALaterProcessOfTheSameNumberIsNotWaitedFor) {
  Bystander process;
  ProcessIdentity former = IdentityOf(process.peer().pid);
  ASSERT_GT(former.birth, 0u);
  --former.birth;
  const auto clients = Watch({former});
  RunUntilReleased(3);
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
  RunUntilReleased(3);
  EXPECT_EQ(asked, 2);
}

}  // namespace
}  // namespace kvtier
