// SPDX-License-Identifier: Apache-2.0
// Tenants share a number of things: none of them can have so many that others lack theirs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace kvtier {

// A tenant may have as many as are then left to all others: alone at most a half, two that take all
// that they can a third each. Any thread.
class TenantBudget {
 public:
  explicit TenantBudget(uint64_t total);

  [[nodiscard]] bool MayTake(const std::string& tenant, uint64_t count) const;
  // REQUIRES: MayTake, or they are taken anyway; GiveBack gives no more than were taken.
  void Take(const std::string& tenant, uint64_t count);
  void GiveBack(const std::string& tenant, uint64_t count);
  // One that its last owner gives back, also when this has gone. Null if the tenant may not have
  // it.
  [[nodiscard]] std::shared_ptr<const void> TakeOne(const std::string& tenant);

  [[nodiscard]] uint64_t total() const;
  [[nodiscard]] uint64_t taken(const std::string& tenant) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace kvtier
