// SPDX-License-Identifier: Apache-2.0
#include "daemon/net/fair_turns.h"

#include <algorithm>
#include <utility>

namespace kvtier {
namespace {

// Takes the first of `sparse`, otherwise the first of `backlogged` that owes less than a turn.
// The skipped ones go to the end and have a turn's price of their debt forgiven for it, so that the
// loop ends. REQUIRES: one of the lists is not empty.
template <typename Debtor, typename DebtOf>
Debtor* TakeNext(std::list<Debtor*>* sparse, std::list<Debtor*>* backlogged, DebtOf debt_of) {
  std::list<Debtor*>* const from = sparse->empty() ? backlogged : sparse;
  if (from == backlogged) {
    while (debt_of(backlogged->front()) >= kTurnPrice) {
      debt_of(backlogged->front()) -= kTurnPrice;
      backlogged->splice(backlogged->end(), *backlogged, backlogged->begin());
    }
  }
  Debtor* const first = from->front();
  from->pop_front();
  return first;
}

}  // namespace

FairTurns::Member::Member(FairTurns* turns, const std::string& tenant,
                          std::function<uint32_t(uint32_t quantum)> take_turn)
    : turns_(turns), tenant_(&turns->tenants_[tenant]), take_turn_(std::move(take_turn)) {
  ++tenant_->members;
}

// The last member of a tenant takes the tenant's entry with it, so that the map is no larger than
// the number of connections.
FairTurns::Member::~Member() {
  turns_->Remove(this);
  if (--tenant_->members > 0) return;
  // The debt of a tenant whose connections have all gone is not kept: a new connection costs it
  // more than a turn is worth.
  std::erase_if(turns_->tenants_, [this](const auto& tenant) { return &tenant.second == tenant_; });
}

void FairTurns::Member::Ready() {
  if (!waiting_) turns_->Enqueue(this);
}

void FairTurns::Account::Repay(uint64_t now) {
  debt -= std::min(debt, now - booked_at);
  booked_at = now;
}

void FairTurns::Account::Book(uint32_t price, bool contested) {
  debt = contested ? std::min(debt + price, kMaxDebt + price) : 0;
}

void FairTurns::Enqueue(Member* member) {
  Tenant* const tenant = member->tenant_;
  Account& account = member->account_;
  account.Repay(member_share_);
  (account.debt < kTurnPrice ? tenant->sparse : tenant->backlogged).push_back(member);
  member->waiting_ = true;
  ++waiting_;
  EnqueueTenant(tenant);
  Post();
}

void FairTurns::EnqueueTenant(Tenant* tenant) {
  if (std::exchange(tenant->waiting, true)) return;
  Account& account = tenant->account;
  account.Repay(tenant_share_);
  (account.debt < kTurnPrice ? sparse_ : backlogged_).push_back(tenant);
}

void FairTurns::Remove(Member* member) {
  if (!std::exchange(member->waiting_, false)) return;
  --waiting_;
  Tenant* const tenant = member->tenant_;
  tenant->sparse.remove(member);
  tenant->backlogged.remove(member);
  if (!tenant->empty()) return;
  tenant->waiting = false;
  sparse_.remove(tenant);
  backlogged_.remove(tenant);
}

uint32_t FairTurns::TakeTurn(Member* member, uint32_t quantum) {
  Tenant* const tenant = member->tenant_;
  Account& member_account = member->account_;
  Account& tenant_account = tenant->account;
  // Connections that wait now are owed this turn. Tenants owe each other alone.
  const bool contested = waiting_ > 0;
  const bool tenants_contend = sparse_.size() + backlogged_.size() > 0;
  // A debt shrinks by itself only while its owner is idle, not while it waits for this turn.
  member_account.booked_at = member_share_;
  tenant_account.booked_at = tenant_share_;
  // Until the price is known: one that asks for its next turn from within this one must not appear
  // to owe nothing.
  const uint64_t member_debt = std::exchange(member_account.debt, member_account.debt + kTurnPrice);
  const uint64_t tenant_debt = std::exchange(tenant_account.debt, tenant_account.debt + kTurnPrice);
  const uint32_t price = std::max(member->take_turn_(quantum), 1u);
  member_account = {member_debt, member_share_};
  tenant_account = {tenant_debt, tenant_share_};
  member_account.Book(price, contested);
  tenant_account.Book(price, tenants_contend);
  member_share_ += price / (waiting_ + 1) + 1;
  tenant_share_ += price / (sparse_.size() + backlogged_.size() + 1) + 1;
  return price;
}

// At most one event is under way, however many members wait.
void FairTurns::Post() {
  if (std::exchange(posted_, true)) return;
  loop_->Post(gate_.WhileOpen([this] {
    posted_ = false;
    RunTurns();
  }));
}

void FairTurns::RunTurns() {
  // Several cheap turns share one event, so that small requests of many clients cost no more events
  // than requests of one.
  for (uint64_t spent = 0; waiting_ > 0 && spent < kTurnPrice;) {
    Tenant* const tenant = TakeNext(&sparse_, &backlogged_,
                                    [](Tenant* one) -> uint64_t& { return one->account.debt; });
    const bool was_idle = !tenant->sparse.empty();
    Member* const member = TakeNext(&tenant->sparse, &tenant->backlogged,
                                    [](Member* one) -> uint64_t& { return one->account_.debt; });
    member->waiting_ = false;
    --waiting_;
    tenant->waiting = false;
    // With no other that waits there is nothing to pass, and so no reason for a small quantum.
    spent += TakeTurn(member, was_idle && waiting_ > 0 ? kFirstTurnPrice : kTurnPrice);
    if (!tenant->empty()) EnqueueTenant(tenant);
  }
  if (waiting_ > 0) Post();
}

}  // namespace kvtier
