// SPDX-License-Identifier: Apache-2.0
// Shares the event loop between connections: deficit round robin over tenants, and within each over
// its connections, by the price of the work that they ask for.
//
// A connection that has something to do takes turns. A turn ends when its quantum has been spent,
// and may spend more only where one step of a request is dearer. The price of a turn for which
// others have to wait is a debt, which is paid by letting the others go first: it shrinks as the
// others' turns go by. A turn that no other connection waits for leaves no debt, and none grows
// beyond a few turns: a client that had the loop to itself for hours is served like a new one. One
// that was idle and owes less than a turn goes before those that wait already (as in FQ-CoDel), but
// for a small quantum only: a flood whose connections are idle between two of their requests passes
// the queue as well, and with whole turns sixty of them would hold up a client that asks for little
// for as long as if there were no order. Work that does not fit the small quantum waits for whole
// turns.
//
// Event loop only.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <unordered_map>

#include "base/executor.h"
#include "base/gate.h"

namespace kvtier {

// Prices are in items: a block that a request names costs one.
inline constexpr uint32_t kTurnPrice = 1024;
// The quantum of one that was idle, while others wait: enough for a few small requests, or for an
// acquire of a few hundred blocks, which is one step.
inline constexpr uint32_t kFirstTurnPrice = 64;
// The most that one owes, beside the price of its last turn: a step may be dearer than this, and
// one that takes such steps again and again must not get more than its share.
inline constexpr uint64_t kMaxDebt = 4 * uint64_t{kTurnPrice};

class FairTurns {
  struct Tenant;
  // A debtor's debt, in items. The debt is brought up to date only when its owner asks for a turn,
  // by how far the clock of shares has advanced since `booked_at`; so idle connections cost
  // nothing.
  struct Account {
    uint64_t debt = 0;
    uint64_t booked_at = 0;  // on the clock of shares

    // Its owner was idle until `now` on that clock. The debt never falls below 0: idleness earns no
    // credit beyond being first.
    void Repay(uint64_t now);
    // The turn's price is owed, if another waited for its end.
    void Book(uint32_t price, bool contested);
  };

 public:
  // One connection. REQUIRES: destroyed before the FairTurns, and not within its own turn.
  class Member {
   public:
    // `take_turn` works until it has spent about its quantum or has nothing left to do, and returns
    // the price. It asks for its next turn with Ready.
    Member(FairTurns* turns, const std::string& tenant,
           std::function<uint32_t(uint32_t quantum)> take_turn);
    ~Member();
    Member(const Member&) = delete;
    Member& operator=(const Member&) = delete;

    // Says that the member has something to do. The turn is taken in a later event even if no other
    // waits: the loop may not have heard yet of others whose sockets are readable by now, and
    // six hundred that took their turns while they were heard of would hold up the last of them.
    void Ready();

   private:
    friend class FairTurns;
    FairTurns* const turns_;
    Tenant* const tenant_;
    const std::function<uint32_t(uint32_t quantum)> take_turn_;
    Account account_;
    bool waiting_ = false;
  };

  explicit FairTurns(EventQueue* loop) : loop_(loop) {}
  FairTurns(const FairTurns&) = delete;
  FairTurns& operator=(const FairTurns&) = delete;

  // Connections that wait for a turn.
  [[nodiscard]] size_t waiting() const { return waiting_; }

 private:
  struct Tenant {
    // Members that were idle and owe little, and the others; each in the order of arrival.
    std::list<Member*> sparse;
    std::list<Member*> backlogged;
    Account account;
    size_t members = 0;
    bool waiting = false;
    [[nodiscard]] bool empty() const { return sparse.empty() && backlogged.empty(); }
  };

  void Enqueue(Member* member);
  void EnqueueTenant(Tenant* tenant);
  void Remove(Member* member);
  // Lets the member work and books the cost, for itself and for its tenant. Returns the price,
  // which is at least 1: a turn that costs nothing could be taken for ever.
  uint32_t TakeTurn(Member* member, uint32_t quantum);
  void Post();
  // One event of the loop: turns for about kTurnPrice in all, then the other events of the loop
  // run.
  void RunTurns();

  EventQueue* const loop_;
  std::unordered_map<std::string, Tenant> tenants_;
  std::list<Tenant*> sparse_;
  std::list<Tenant*> backlogged_;
  size_t waiting_ = 0;
  // Clocks that advance by what each connection, or each tenant, that competes could have spent: by
  // so much do the debts of those that are idle shrink.
  uint64_t member_share_ = 0;
  uint64_t tenant_share_ = 0;
  bool posted_ = false;
  Gate gate_;
};

}  // namespace kvtier
