// SPDX-License-Identifier: Apache-2.0
#include "base/tenant_budget.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace kvtier {
namespace {

uint64_t TakeAll(TenantBudget* budget, const std::string& tenant) {
  while (budget->MayTake(tenant, 1)) budget->Take(tenant, 1);
  return budget->taken(tenant);
}

TEST(TenantBudget, ATenantLeavesAsManyToTheOthersAsItHas) {
  TenantBudget budget(120);
  EXPECT_TRUE(budget.MayTake("a", 60));
  EXPECT_FALSE(budget.MayTake("a", 61));
  EXPECT_EQ(TakeAll(&budget, "a"), 60u);
  EXPECT_EQ(TakeAll(&budget, "b"), 30u);
  EXPECT_EQ(TakeAll(&budget, "c"), 15u);
  EXPECT_FALSE(budget.MayTake("a", 1));
  EXPECT_TRUE(budget.MayTake("d", 1));
  EXPECT_FALSE(budget.MayTake("d", UINT64_MAX));
  budget.GiveBack("a", 60);
  EXPECT_TRUE(budget.MayTake("d", 37));
}

TEST(TenantBudget, OneGoesBackWithItsLastOwner) {
  auto budget = std::make_unique<TenantBudget>(4);
  std::vector<std::shared_ptr<const void>> shares = {budget->TakeOne("a"), budget->TakeOne("a")};
  EXPECT_EQ(budget->TakeOne("a"), nullptr);
  shares.push_back(shares.front());
  shares.erase(shares.begin());
  EXPECT_EQ(budget->taken("a"), 2u);
  shares.pop_back();
  EXPECT_EQ(budget->taken("a"), 1u);
  EXPECT_NE(shares.emplace_back(budget->TakeOne("a")), nullptr);
  budget.reset();
  shares.clear();
}

}  // namespace
}  // namespace kvtier
