// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/tenant_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

namespace kvtier {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::ElementsAre;

constexpr steady_clock::time_point kNow{milliseconds(1000)};

struct TestCall {
  std::string tenant;
  std::string name;
  steady_clock::time_point deadline = kNow + milliseconds(1);
};

std::vector<std::string> TakeAll(TenantLine<TestCall>* line) {
  std::vector<std::string> names;
  while (!line->empty()) names.push_back(line->TakeFirst().name);
  return names;
}

TEST(TenantLineTest, TenantsTakeTurnsAndKeepTheOrderOfTheirCalls) {
  TenantLine<TestCall> line;
  for (const char* const name : {"a1", "a2", "a3", "a4"}) line.Add({"a", name});
  line.Add({"c", "c1"});
  line.Add({"b", "b1"});
  line.Add({"b", "b2"});
  EXPECT_EQ(line.size(), 7u);
  EXPECT_TRUE(line.HasOthersThan("a"));
  EXPECT_THAT(TakeAll(&line), ElementsAre("a1", "b1", "c1", "a2", "b2", "a3", "a4"));
  EXPECT_EQ(line.size(), 0u);
}

TEST(TenantLineTest, AFloodHoldsUpATenantThatComesLaterForOneCall) {
  TenantLine<TestCall> line;
  for (int i = 0; i < 1000; ++i) line.Add({"flood", std::to_string(i)});
  EXPECT_FALSE(line.HasOthersThan("flood"));
  EXPECT_TRUE(line.HasOthersThan("other"));
  EXPECT_EQ(line.TakeFirst().name, "0");
  line.Add({"other", "other"});
  EXPECT_EQ(line.first().name, "other");
  EXPECT_EQ(line.TakeFirst().name, "other");
  EXPECT_EQ(line.TakeFirst().name, "1");
  line.Add({"another", "another"});
  EXPECT_EQ(line.TakeFirst().name, "another") << "the turn goes round";
}

TEST(TenantLineTest, ACallThatIsTriedAgainIsTheNextOfItsTenant) {
  TenantLine<TestCall> line;
  for (const char* const name : {"a1", "a2"}) line.Add({"a", name});
  line.Add({"b", "b1"});
  TestCall call = line.TakeFirst();
  line.AddFirst(std::move(call));
  EXPECT_THAT(TakeAll(&line), ElementsAre("b1", "a1", "a2"));
}

TEST(TenantLineTest, LateCallsAreTakenFromEachTenantsFront) {
  TenantLine<TestCall> line;
  line.Add({"a", "late", kNow});
  line.Add({"a", "in time"});
  line.Add({"b", "late, too", kNow - milliseconds(1)});
  EXPECT_EQ(line.FirstDeadline(), kNow - milliseconds(1));
  std::vector<std::string> late;
  for (const TestCall& call : line.TakeLate(kNow)) late.push_back(call.name);
  EXPECT_THAT(late, ElementsAre("late", "late, too"));
  EXPECT_EQ(line.size(), 1u);
  EXPECT_THAT(TakeAll(&line), ElementsAre("in time"));
}

TEST(TenantLineTest, ACallTooManyIsOneOfTheTenantThatHasTheMost) {
  TenantLine<TestCall> line;
  for (const char* const name : {"b1", "b2", "b3"}) line.Add({"b", name});
  line.Add({"a", "a1"});
  line.Add({"c", "c1"});
  EXPECT_EQ(line.TakeLast().name, "b3");
  EXPECT_THAT(TakeAll(&line), ElementsAre("a1", "b1", "c1", "b2"));
}

TEST(TenantLineTest, ANameTellsItsTenant) {
  EXPECT_EQ(TenantOf("kvtier/1/alice/model-4096/hash"), "kvtier/1/alice");
  EXPECT_EQ(TenantOf("kvtier/1/alice/"), "kvtier/1/alice");
  EXPECT_EQ(TenantOf("kvtier/1//model-4096/hash"), "kvtier/1/");
  EXPECT_EQ(TenantOf("kvtier/probe"), "kvtier/probe");
  EXPECT_EQ(TenantOf(""), "");
}

}  // namespace
}  // namespace kvtier
