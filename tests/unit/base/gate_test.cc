// SPDX-License-Identifier: Apache-2.0
#include "base/gate.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace kvtier {
namespace {

TEST(Gate, CountsThoseInside) {
  Gate gate;
  EXPECT_EQ(gate.holders(), 0u);
  {
    const Gate::Holder one = gate.Enter();
    const Gate::Holder two = gate.Enter();
    EXPECT_EQ(gate.holders(), 2u);
  }
  EXPECT_EQ(gate.holders(), 0u);
}

TEST(Gate, AMovedHolderLeavesOnce) {
  Gate gate;
  Gate::Holder first = gate.Enter();
  Gate::Holder second = std::move(first);
  EXPECT_FALSE(first.inside());
  EXPECT_EQ(gate.holders(), 1u);
  second = gate.Enter();
  EXPECT_EQ(gate.holders(), 1u);
  second.Leave();
  second.Leave();
  EXPECT_EQ(gate.holders(), 0u);
}

TEST(Gate, ClosingAnEmptyGateReportsAtOnce) {
  Gate gate;
  bool empty = false;
  gate.Close([&] { empty = true; });
  EXPECT_TRUE(empty);
  EXPECT_TRUE(gate.closed());
}

TEST(Gate, TheLastToLeaveAClosedGateReports) {
  Gate gate;
  Gate::Holder one = gate.Enter();
  Gate::Holder two = gate.Enter();
  int reports = 0;
  gate.Close([&] { ++reports; });
  one.Leave();
  EXPECT_EQ(reports, 0);
  two.Leave();
  EXPECT_EQ(reports, 1);
}

TEST(Gate, AClosedGateRefusesEntry) {
  Gate gate;
  const Gate::Pass pass = gate.MakePass();
  EXPECT_TRUE(gate.TryEnter().has_value());
  EXPECT_TRUE(pass.TryEnter().has_value());
  gate.Close();
  EXPECT_FALSE(gate.TryEnter().has_value());
  EXPECT_FALSE(pass.TryEnter().has_value());
  EXPECT_DEATH((void)gate.Enter(), "check failed");
}

TEST(Gate, AnOwnerMayBeDestroyedByTheLastThatLeaves) {
  struct Owner {
    Gate gate;
  };
  auto owner = std::make_unique<Owner>();
  Gate::Holder holder = owner->gate.Enter();
  owner->gate.Close([&] { owner.reset(); });
  holder.Leave();
  EXPECT_EQ(owner, nullptr);
}

TEST(Gate, MustBeEmptyAtItsEnd) {
  EXPECT_DEATH(
      {
        auto gate = std::make_unique<Gate>();
        const Gate::Holder holder = gate->Enter();
        gate.reset();
      },
      "check failed");
}

TEST(Gate, APassTellsWhetherTheGateIsOpen) {
  auto gate = std::make_unique<Gate>();
  const Gate::Pass pass = gate->MakePass();
  EXPECT_TRUE(pass.open());
  gate->Close();
  EXPECT_FALSE(pass.open());
  gate.reset();
  EXPECT_FALSE(pass.open());
  EXPECT_FALSE(Gate::Pass().open());
}

TEST(Gate, APassHeldIsInside) {
  Gate gate;
  std::optional<Gate::Holder> holder = gate.MakePass().TryEnter();
  EXPECT_EQ(gate.holders(), 1u);
  holder.reset();
  EXPECT_EQ(gate.holders(), 0u);
}

TEST(Gate, AHeldCallbackIsInsideUntilItsLastCopyIsGone) {
  Gate gate;
  int sum = 0;
  std::function<void(int)> first = gate.Hold([&sum](int value) { sum += value; });
  std::function<void(int)> second = first;
  first(3);
  first = nullptr;
  EXPECT_EQ(gate.holders(), 1u);
  second(4);
  second = nullptr;
  EXPECT_EQ(gate.holders(), 0u);
  EXPECT_EQ(sum, 7);
}

TEST(Gate, AnEventThatComesTooLateDoesNothing) {
  std::vector<std::function<void()>> posted;
  int runs = 0;
  {
    Gate gate;
    posted.emplace_back(gate.WhileOpen([&runs] { ++runs; }));
    posted.front()();
  }
  posted.front()();
  EXPECT_EQ(runs, 1);
}

TEST(Gate, AnEventMayDestroyItsOwner) {
  auto gate = std::make_unique<Gate>();
  const std::function<void()> event = gate->WhileOpen([&gate] { gate.reset(); });
  event();
  EXPECT_EQ(gate, nullptr);
  event();
}

}  // namespace
}  // namespace kvtier
