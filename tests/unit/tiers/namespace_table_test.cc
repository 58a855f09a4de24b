// SPDX-License-Identifier: Apache-2.0
#include "tiers/blocks/namespace_table.h"

#include <gtest/gtest.h>

#include <cstring>
#include <ctime>

namespace kvtier {
namespace {

Namespace Space(uint32_t model, const std::string& tenant = "a", TenantId row = TenantId(0),
                TenantLine line = TenantLine(0)) {
  Namespace space{.identity = {.tenant = tenant, .model = {}, .block_bytes = 4096},
                  .slot_bytes = 8192,
                  .tenant = row,
                  .line = line};
  std::memcpy(space.identity.model.bytes.data(), &model, sizeof(model));
  return space;
}

TEST(NamespaceTable, ATenantGetsHalfOfTheNumbersThatThereAre) {
  constexpr uint32_t kHalf = NamespaceTable::kMaxNamespaces / 2;
  NamespaceTable table;
  for (uint32_t i = 0; i < kHalf; ++i) {
    const auto id = table.Add(Space(i));
    ASSERT_TRUE(id);
    ASSERT_EQ(id->value, i);
  }
  const auto refused = table.Add(Space(kHalf));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reason, "too_many_namespaces");
  EXPECT_EQ(table.Find(Space(70'000).identity), NamespaceId(70'000));
}

TEST(NamespaceTable, ATenantThatTakesAllThatItCanLeavesSomeToOthers) {
  NamespaceTable table;
  uint32_t model = 0;
  while (table.Add(Space(model, "greedy"))) ++model;
  EXPECT_TRUE(table.Add(Space(0, "other", TenantId(0), TenantLine(1))));
}

TEST(NamespaceTable, ANumberThatIsTakenBackIsGivenToTheNext) {
  NamespaceTable table;
  ASSERT_EQ(*table.Add(Space(1)), NamespaceId(0));
  ASSERT_EQ(*table.Add(Space(2)), NamespaceId(1));
  table.TakeBack(NamespaceId(0));
  EXPECT_FALSE(table.Find(Space(1).identity));
  EXPECT_EQ(table.count(), 1u);
  EXPECT_EQ(*table.Add(Space(3)), NamespaceId(0));
  EXPECT_EQ(*table.Add(Space(1)), NamespaceId(2));
}

TEST(NamespaceTable, NumbersThatWereNotRestoredAreFree) {
  NamespaceTable table;
  ASSERT_TRUE(table.Restore(NamespaceId(1), Space(1)));
  ASSERT_TRUE(table.Restore(NamespaceId(3), Space(3)));
  EXPECT_EQ(table.size(), 4u);
  EXPECT_EQ(table.count(), 2u);
  EXPECT_EQ(*table.Add(Space(10)), NamespaceId(0));
  EXPECT_EQ(*table.Add(Space(11)), NamespaceId(2));
  EXPECT_EQ(*table.Add(Space(12)), NamespaceId(4));
  EXPECT_EQ(table.Find(Space(3).identity), NamespaceId(3));
}

TEST(NamespaceTable, ADamagedIndexRestoresNoNumberTwiceAndNoneBeyondTheBound) {
  NamespaceTable table;
  EXPECT_TRUE(table.Restore(NamespaceId(1), Space(1)));
  EXPECT_FALSE(table.Restore(NamespaceId(1), Space(2)));
  EXPECT_FALSE(table.Restore(NamespaceId(NamespaceTable::kMaxNamespaces), Space(3)));
  EXPECT_FALSE(table.Restore(NamespaceId(UINT32_MAX), Space(3)));
  EXPECT_EQ(table.Find(Space(1).identity), NamespaceId(1));
}

// A client can make records whose fingerprints begin alike, or fall into one bucket.
TEST(NamespaceTable, FingerprintsThatClientsChooseAreFoundAsFastAsOthers) {
  constexpr uint32_t kModels = 40'000;
  const auto processor_time = [](size_t first_byte) {
    NamespaceTable table;
    const std::clock_t start = std::clock();
    for (uint32_t i = 0; i < kModels; ++i) {
      Namespace space = Space(0);
      std::memcpy(&space.identity.model.bytes[first_byte], &i, sizeof(i));
      EXPECT_FALSE(table.Find(space.identity));
      EXPECT_TRUE(table.Add(std::move(space)));
    }
    return std::clock() - start;
  };
  const std::clock_t others = processor_time(0);
  EXPECT_LT(processor_time(16), 10 * others);
}

TEST(NamespaceTable, ARowIsSharedOnceASecondTenantIsInIt) {
  NamespaceTable table;
  (void)table.Add(Space(1, "a", TenantId(2)));
  (void)table.Add(Space(2, "a", TenantId(2)));
  (void)table.Add(Space(1, "b", TenantId(3)));
  EXPECT_FALSE(table.IsShared(TenantId(2)));
  (void)table.Add(Space(1, "c", TenantId(2)));
  EXPECT_TRUE(table.IsShared(TenantId(2)));
  EXPECT_FALSE(table.IsShared(TenantId(3)));
  EXPECT_FALSE(table.IsShared(TenantId(4)));
}

}  // namespace
}  // namespace kvtier
