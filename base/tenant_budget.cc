// SPDX-License-Identifier: Apache-2.0
#include "base/tenant_budget.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "base/result.h"

namespace kvtier {

struct TenantBudget::State {
  explicit State(uint64_t all) : total(all) {}

  [[nodiscard]] uint64_t Of(const std::string& tenant) const {
    const auto found = of_tenant.find(tenant);
    return found == of_tenant.end() ? 0 : found->second;
  }
  // Compared by subtraction, so that no sum can overflow.
  [[nodiscard]] bool MayTake(const std::string& tenant, uint64_t count) const {
    const uint64_t left = total - std::min(total, taken);
    return count <= left && Of(tenant) + count <= left - count;
  }
  void Take(const std::string& tenant, uint64_t count) {
    taken += count;
    of_tenant[tenant] += count;
  }
  void GiveBack(const std::string& tenant, uint64_t count) {
    const auto found = of_tenant.find(tenant);
    KVT_CHECK(found != of_tenant.end() && found->second >= count);
    taken -= count;
    found->second -= count;
    if (found->second == 0) of_tenant.erase(found);
  }

  const uint64_t total;
  mutable std::mutex mutex;
  uint64_t taken = 0;
  std::unordered_map<std::string, uint64_t> of_tenant;
};

TenantBudget::TenantBudget(uint64_t total) : state_(std::make_shared<State>(total)) {}

bool TenantBudget::MayTake(const std::string& tenant, uint64_t count) const {
  const std::lock_guard lock(state_->mutex);
  return state_->MayTake(tenant, count);
}

void TenantBudget::Take(const std::string& tenant, uint64_t count) {
  const std::lock_guard lock(state_->mutex);
  state_->Take(tenant, count);
}

void TenantBudget::GiveBack(const std::string& tenant, uint64_t count) {
  const std::lock_guard lock(state_->mutex);
  state_->GiveBack(tenant, count);
}

std::shared_ptr<const void> TenantBudget::TakeOne(const std::string& tenant) {
  const std::lock_guard lock(state_->mutex);
  if (!state_->MayTake(tenant, 1)) return nullptr;
  state_->Take(tenant, 1);
  return {state_.get(), [state = state_, tenant](const void*) {
            const std::lock_guard returned(state->mutex);
            state->GiveBack(tenant, 1);
          }};
}

uint64_t TenantBudget::total() const { return state_->total; }

uint64_t TenantBudget::taken(const std::string& tenant) const {
  const std::lock_guard lock(state_->mutex);
  return state_->Of(tenant);
}

}  // namespace kvtier
