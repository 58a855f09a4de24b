// SPDX-License-Identifier: Apache-2.0
#include "daemon/net/fair_turns.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/executor.h"

namespace kvtier {
namespace {

// A connection with work of a known price, which takes note of its turns.
class Worker {
 public:
  Worker(FairTurns* turns, const std::string& tenant, std::string name, uint64_t work,
         std::vector<std::string>* log)
      : name_(std::move(name)),
        work_(work),
        log_(log),
        member_(turns, tenant, [this](uint32_t quantum) { return Turn(quantum); }) {}

  void Start() { member_.Ready(); }
  void Add(uint64_t work) { work_ += work; }
  [[nodiscard]] uint64_t spent() const { return spent_; }
  [[nodiscard]] uint64_t most_in_a_turn() const { return most_in_a_turn_; }

 private:
  uint32_t Turn(uint32_t quantum) {
    const auto price = static_cast<uint32_t>(std::min<uint64_t>(work_, quantum));
    work_ -= price;
    spent_ += price;
    most_in_a_turn_ = std::max<uint64_t>(most_in_a_turn_, price);
    if (log_ != nullptr) log_->push_back(name_);
    if (work_ > 0) member_.Ready();
    return price;
  }

  const std::string name_;
  uint64_t work_;
  uint64_t spent_ = 0;
  uint64_t most_in_a_turn_ = 0;
  std::vector<std::string>* const log_;
  FairTurns::Member member_;
};

class FairTurnsTest : public testing::Test {
 protected:
  std::unique_ptr<Worker> Make(const std::string& tenant, const std::string& name, uint64_t work) {
    return std::make_unique<Worker>(&turns_, tenant, name, work, &log_);
  }
  // One event of the loop.
  void RunEvent() {
    bool ran = false;
    loop_.Post([&] { ran = true; });
    loop_.RunUntil([&] { return ran; });
  }
  [[nodiscard]] size_t TurnsOf(const std::string& name) const {
    return static_cast<size_t>(std::ranges::count(log_, name));
  }

  std::vector<std::string> log_;
  BlockingLoop loop_;
  FairTurns turns_{&loop_};
};

TEST_F(FairTurnsTest, OneWithoutCompetitorsIsServedInTheNextEvent) {
  const auto only = Make("a", "only", 10);
  only->Start();
  RunEvent();
  EXPECT_EQ(only->spent(), 10u);
}

// The loop hears of sockets one after the other, and each request fits one turn.
TEST_F(FairTurnsTest, AClientThatIsHeardOfLastPassesSixHundredFloods) {
  std::vector<std::unique_ptr<Worker>> floods;
  for (int i = 0; i < 600; ++i) floods.push_back(Make("a", "flood", kTurnPrice));
  const auto client = Make("b", "client", 16);
  for (const auto& flood : floods) loop_.Post([&flood] { flood->Start(); });
  loop_.Post([&client] { client->Start(); });
  while (TurnsOf("client") == 0) RunEvent();
  EXPECT_LE(TurnsOf("flood"), 20u);
}

TEST_F(FairTurnsTest, ALongRequestTakesOneTurnAnEvent) {
  const auto one = Make("a", "one", 100 * kTurnPrice);
  one->Start();
  for (uint64_t turn = 1; turn <= 5; ++turn) {
    RunEvent();
    EXPECT_EQ(one->spent(), turn * kTurnPrice);
  }
  EXPECT_EQ(one->most_in_a_turn(), kTurnPrice);
}

TEST_F(FairTurnsTest, CheapTurnsShareAnEvent) {
  std::vector<std::unique_ptr<Worker>> clients;
  for (int i = 0; i < 20; ++i) clients.push_back(Make("a", "client", 16));
  for (const auto& client : clients) client->Start();
  RunEvent();
  EXPECT_EQ(TurnsOf("client"), 20u);
}

TEST_F(FairTurnsTest, ConnectionsOfOneTenantTakeTurnsInRound) {
  std::vector<std::unique_ptr<Worker>> floods;
  for (int i = 0; i < 10; ++i) floods.push_back(Make("a", "flood", 1000 * kTurnPrice));
  for (const auto& flood : floods) flood->Start();
  RunEvent();  // in which all have their first, short turns
  std::vector<uint64_t> first;
  for (const auto& flood : floods) first.push_back(flood->spent());
  for (int event = 0; event < 100; ++event) RunEvent();
  for (size_t i = 0; i < floods.size(); ++i) {
    EXPECT_EQ(floods[i]->spent() - first[i], 10u * kTurnPrice);
  }
}

TEST_F(FairTurnsTest, AClientThatAsksForLittlePassesSixtyFloods) {
  std::vector<std::unique_ptr<Worker>> floods;
  for (int i = 0; i < 60; ++i) floods.push_back(Make("a", "flood", 1'000'000));
  for (const auto& flood : floods) flood->Start();
  for (int event = 0; event < 60; ++event) RunEvent();
  const auto client = Make("a", "client", 16);
  for (int request = 0; request < 50; ++request) {
    log_.clear();
    client->Start();
    while (TurnsOf("client") == 0) RunEvent();
    EXPECT_LE(TurnsOf("flood"), 1u) << "request " << request;
    client->Add(16);
  }
}

// A flood whose connections were idle goes before those that wait, too; sixty of them must not take
// a whole turn each before a client that asks for little.
TEST_F(FairTurnsTest, AClientThatAsksForLittleIsServedAfterAFewItemsOfEachFloodThatBegins) {
  std::vector<std::unique_ptr<Worker>> floods;
  for (int i = 0; i < 60; ++i) floods.push_back(Make("a", "flood", 16 * kTurnPrice));
  for (const auto& flood : floods) flood->Start();
  const auto client = Make("a", "client", 16);
  client->Start();
  while (TurnsOf("client") == 0) RunEvent();
  uint64_t items_before = 0;
  for (const auto& flood : floods) items_before += flood->spent();
  // The event in which it was served may have gone on with another's turn.
  EXPECT_LE(items_before, 60u * kFirstTurnPrice + kTurnPrice);
}

TEST_F(FairTurnsTest, OneThatAsksAgainAndAgainDoesNotPassTheOthers) {
  const auto flood = Make("a", "flood", 1'000'000);
  const auto greedy = Make("a", "greedy", kTurnPrice);
  flood->Start();
  for (int event = 0; event < 200; ++event) {
    greedy->Add(kTurnPrice);
    greedy->Start();
    RunEvent();
  }
  EXPECT_GE(TurnsOf("flood"), 90u);
  EXPECT_GE(TurnsOf("greedy"), 90u);
}

TEST_F(FairTurnsTest, ATenantGetsItsShareHoweverManyConnectionsAnotherOpens) {
  std::vector<std::unique_ptr<Worker>> floods;
  for (int i = 0; i < 50; ++i) floods.push_back(Make("hostile", "flood", 1'000'000'000));
  for (const auto& flood : floods) flood->Start();
  const auto client = Make("sound", "client", 1'000'000'000);
  client->Start();
  for (int event = 0; event < 1000; ++event) RunEvent();
  EXPECT_GE(TurnsOf("client"), 480u);
}

// How many turns of floods go before a small request of one that has worked alone before.
class FairTurnsAfterWorkAlone : public FairTurnsTest {
 protected:
  // In tens of microseconds a turn, some seconds: a debt that would outlast any test.
  static constexpr int kTurnsAlone = 100'000;

  size_t TurnsBefore(Worker* client, const std::string& tenant_of_floods, int floods) {
    std::vector<std::unique_ptr<Worker>> flooding;
    for (int i = 0; i < floods; ++i) {
      flooding.push_back(Make(tenant_of_floods, "flood", 1'000'000'000));
      flooding.back()->Start();
    }
    for (int event = 0; event < 2 * floods; ++event) RunEvent();
    size_t most = 0;
    for (int request = 0; request < 100; ++request) {
      log_.clear();
      client->Add(16);
      client->Start();
      while (TurnsOf("client") == 0) RunEvent();
      most = std::max(most, TurnsOf("flood"));
    }
    return most;
  }
};

TEST_F(FairTurnsAfterWorkAlone, TheOneWhoHasWorkedIsServedAsTheOneWhoHasNot) {
  for (const std::string tenant_of_floods : {"client's", "another"}) {
    for (const int floods : {1, 3, 60}) {
      const auto fresh = Make("client's", "client", 0);
      const size_t turns_of_fresh = TurnsBefore(fresh.get(), tenant_of_floods, floods);
      const auto worked = Make("client's", "client", 0);
      for (int turn = 0; turn < kTurnsAlone; ++turn) {
        log_.clear();
        worked->Add(kTurnPrice);
        worked->Start();
        RunEvent();
      }
      EXPECT_LE(TurnsBefore(worked.get(), tenant_of_floods, floods), turns_of_fresh)
          << floods << " floods of " << tenant_of_floods;
    }
  }
}

// The same where the work was one long request after the other, each in turns of its own.
TEST_F(FairTurnsAfterWorkAlone, WorkInManyTurnsLeavesNoDebtEither) {
  const auto worked = Make("a", "client", 0);
  worked->Add(uint64_t{100'000} * kTurnPrice);
  worked->Start();
  while (worked->spent() < uint64_t{100'000} * kTurnPrice) RunEvent();
  EXPECT_LE(TurnsBefore(worked.get(), "b", 3), 3u);
}

TEST_F(FairTurnsTest, OneThatGoesWhileItWaitsTakesNoTurn) {
  auto gone = Make("a", "gone", 100);
  const auto stays = Make("b", "stays", 100);
  gone->Start();
  stays->Start();
  gone.reset();
  RunEvent();
  EXPECT_EQ(TurnsOf("gone"), 0u);
  EXPECT_EQ(TurnsOf("stays"), 1u);
  EXPECT_EQ(turns_.waiting(), 0u);
}

}  // namespace
}  // namespace kvtier
