// SPDX-License-Identifier: Apache-2.0
#include "daemon/admin/admin_request.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

namespace kvtier {
namespace {

const std::string kHash(64, 'a');
const std::string kWhole =
    R"({"op":"ls","tier":"host","tenant":"t","model":"m","epoch":"e","prefix":"ab","cursor":7,"limit":9,)"
    R"("ttl_ms":11,"timeout_ms":13,"since_ms":17,"all":true,"hashes":[")" +
    kHash + "\"]}";

std::string ReasonOf(const std::string& json) {
  const auto request = ParseAdminRequest(json);
  return request ? "none" : request.error().reason;
}

TEST(AdminRequestTest, EveryMemberIsRead) {
  const auto request = ParseAdminRequest(kWhole);
  ASSERT_TRUE(request) << request.error().ToString();
  EXPECT_EQ(request->op, "ls");
  EXPECT_EQ(request->tier, Tier::kHost);
  EXPECT_EQ(request->tenant, "t");
  EXPECT_EQ(request->model, "m");
  EXPECT_EQ(request->epoch, "e");
  EXPECT_EQ(request->prefix, "ab");
  EXPECT_EQ(request->cursor, 7u);
  EXPECT_EQ(request->limit, 9u);
  EXPECT_EQ(request->ttl_ms, 11);
  EXPECT_EQ(request->timeout_ms, 13);
  EXPECT_EQ(request->since_ms, 17);
  EXPECT_TRUE(request->all);
  ASSERT_EQ(request->hashes.size(), 1u);
  EXPECT_EQ(request->hashes[0].Hex(), kHash);
}

TEST(AdminRequestTest, TheColdTierIsNoneOfThisHost) {
  const auto request = ParseAdminRequest(R"({"op":"ls","tier":"cold"})");
  ASSERT_TRUE(request) << request.error().ToString();
  EXPECT_TRUE(request->cold);
  EXPECT_FALSE(request->tier);
}

TEST(AdminRequestTest, ErrorsNameTheMember) {
  const auto request = ParseAdminRequest(R"({"op":"ls","limit":"many"})");
  ASSERT_FALSE(request);
  EXPECT_NE(request.error().context.find("\"limit\""), std::string::npos);
}

TEST(AdminRequestTest, RangesAreClosed) {
  EXPECT_EQ(ReasonOf(R"({"limit":8192})"), "none");
  EXPECT_EQ(ReasonOf(R"({"limit":8193})"), "bad_request");
  EXPECT_EQ(ReasonOf(R"({"cursor":9223372036854775807})"), "none");
  EXPECT_EQ(ReasonOf(R"({"cursor":9223372036854775808})"), "bad_request");
  EXPECT_EQ(ReasonOf(R"({"cursor":1.5})"), "bad_request");
  EXPECT_EQ(ReasonOf(R"({"ttl_ms":-1})"), "bad_request");
  EXPECT_EQ(ReasonOf(R"({"all":1})"), "bad_request");
}

TEST(AdminRequestTest, AnEmptyTextIsNotTakenForNone) {
  for (const char* member : {"tenant", "model", "epoch", "prefix"}) {
    EXPECT_EQ(ReasonOf(fmt::format(R"({{"op":"evict","{}":""}})", member)), "bad_request")
        << member;
  }
  EXPECT_FALSE(ParseAdminRequest(R"({"op":"erase"})")->before_ms);
  EXPECT_EQ(ParseAdminRequest(R"({"op":"erase","before_ms":0})")->before_ms, 0);
}

TEST(AdminRequestTest, NoPrefixOfARequestIsARequest) {
  for (size_t length = 0; length < kWhole.size(); ++length) {
    EXPECT_EQ(ReasonOf(kWhole.substr(0, length)), "bad_json") << length;
  }
}

TEST(AdminRequestTest, DamagedRequestsAreErrorsOrRequestsAndNothingElse) {
  std::mt19937 random(1);
  for (int i = 0; i < 20'000; ++i) {
    std::string damaged = kWhole;
    for (int j = 0; j < 3; ++j) damaged[random() % damaged.size()] = static_cast<char>(random());
    const auto request = ParseAdminRequest(damaged);
    if (!request) continue;
    EXPECT_LE(request->limit, kMaxListedBlocks);
    EXPECT_GE(request->ttl_ms.value_or(0), 0);
  }
}

TEST(AdminRequestTest, DepthIsBounded) {
  EXPECT_EQ(ReasonOf(R"({"hashes":)" + std::string(60'000, '[')), "bad_json");
}

}  // namespace
}  // namespace kvtier
