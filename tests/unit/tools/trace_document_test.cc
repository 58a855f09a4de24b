// SPDX-License-Identifier: Apache-2.0
#include "tools/kvtierctl/trace_document.h"

#include <gtest/gtest.h>

#include <map>

namespace kvtier {
namespace {

namespace json = boost::json;

// Events as the daemon tells them, and the document that comes of them.
class TraceDocumentTest : public testing::Test {
 protected:
  void Add(std::string_view event) {
    const json::value value = json::parse(event);
    document_.Add(JsonView(&value));
  }
  // Also checks what holds for every document: it is JSON, records are in the order of time, and of
  // one id they nest.
  json::array Records(int64_t now_us = 1000) {
    const json::value document = json::parse(document_.Finish(now_us, 5, 0));
    EXPECT_EQ(document.at("schema"), "kvtier.trace_dump/1");
    json::array records;
    std::map<std::string, std::vector<std::string>> open;
    int64_t before_us = 0;
    for (const json::value& record : document.at("traceEvents").as_array()) {
      if (record.at("ph") == "M") continue;
      const auto us = record.at("ts").to_number<int64_t>();
      EXPECT_GE(us, before_us);
      before_us = us;
      records.push_back(record);
      if (record.at("ph") == "i") continue;
      auto& names = open[json::value_to<std::string>(record.at("id"))];
      const auto name = json::value_to<std::string>(record.at("name"));
      if (record.at("ph") == "b") {
        names.push_back(name);
      } else if (names.empty() || names.back() != name) {
        ADD_FAILURE() << name << " ends out of turn";
      } else {
        names.pop_back();
      }
    }
    for (const auto& [id, names] : open) EXPECT_TRUE(names.empty()) << id;
    return records;
  }

  TraceDocument document_;
};

TEST_F(TraceDocumentTest, RequestIsASpanOfItsSessionsProcess) {
  Add(R"({"us":10,"kind":"request","ph":"b","session":3,"request":7,"message":"acquire","n0":5})");
  Add(R"({"us":30,"kind":"request","ph":"e","session":3,"request":7,"message":"acquire",
          "n0":1,"n1":2,"id":9})");
  const json::array records = Records();
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].at("name"), "acquire");
  EXPECT_EQ(records[0].at("ts"), 10);
  EXPECT_EQ(records[0].at("pid"), 4);
  EXPECT_EQ(records[0].at("args").at("request"), 7);
  EXPECT_EQ(records[1].at("ts"), 30);
  EXPECT_EQ(records[1].at("args").at("pool_hits"), 1);
  EXPECT_EQ(records[1].at("args").at("host_hits"), 2);
  EXPECT_EQ(records[1].at("args").at("disk_hits"), 0);
  EXPECT_EQ(records[1].at("args").at("missed"), 2);
  EXPECT_EQ(records[1].at("args").at("load"), 9);
}

TEST_F(TraceDocumentTest, PartsOfABlocksLoadLieWithinItAndCarryItsRequest) {
  Add(R"({"us":1,"kind":"block_load","ph":"b","session":3,"request":7,"id":4,"tier":"disk"})");
  Add(R"({"us":2,"kind":"disk_read","ph":"b","id":4})");
  Add(R"({"us":5,"kind":"disk_read","ph":"e","id":4})");
  Add(R"({"us":5,"kind":"check","ph":"b","id":4})");
  Add(R"({"us":6,"kind":"check","ph":"e","id":4})");
  Add(R"({"us":6,"kind":"copy_up","ph":"b","id":4})");
  Add(R"({"us":9,"kind":"copy_up","ph":"e","id":4})");
  Add(R"({"us":9,"kind":"block_load","ph":"e","id":4})");
  const json::array records = Records();
  ASSERT_EQ(records.size(), 8u);
  EXPECT_EQ(records[0].at("name"), "block from disk");
  for (const json::value& record : records) {
    EXPECT_EQ(record.at("id"), records[0].at("id"));
    EXPECT_EQ(record.at("pid"), 4);
    if (record.at("ph") == "b") {
      EXPECT_EQ(record.at("args").at("request"), 7) << json::serialize(record);
      EXPECT_EQ(record.at("args").at("session"), 3);
    }
  }
}

TEST_F(TraceDocumentTest, WhatHasNoEndYetEndsNow) {
  Add(R"({"us":10,"kind":"request","ph":"b","session":1,"request":7,"message":"acquire"})");
  Add(R"({"us":11,"kind":"wait","ph":"b","session":1,"request":7})");
  const json::array records = Records(500);
  ASSERT_EQ(records.size(), 4u);
  EXPECT_EQ(records[2].at("name"), "wait for room");
  for (const size_t i : {2, 3}) {
    EXPECT_EQ(records[i].at("ts"), 500);
    EXPECT_EQ(records[i].at("args").at("unfinished"), true);
  }
}

TEST_F(TraceDocumentTest, WhatBeganBeforeTheTraceIsLeftOut) {
  Add(R"({"us":10,"kind":"request","ph":"e","session":1,"request":7,"message":"commit"})");
  Add(R"({"us":11,"kind":"disk_read","ph":"e","id":1})");
  EXPECT_TRUE(Records().empty());
  EXPECT_EQ(document_.ends_without_begin(), 2u);
}

TEST_F(TraceDocumentTest, LoadsOfASessionEndWithIt) {
  Add(R"({"us":1,"kind":"session","ph":"b","session":2})");
  Add(R"({"us":2,"kind":"load","ph":"b","session":2,"request":1,"id":8,"n0":3})");
  Add(R"({"us":4,"kind":"session","ph":"e","session":2})");
  const json::array records = Records(900);
  ASSERT_EQ(records.size(), 4u);
  EXPECT_EQ(records[2].at("name"), "load");
  EXPECT_EQ(records[2].at("ts"), 4);
}

TEST_F(TraceDocumentTest, BlocksOnTheirWayOutliveTheSession) {
  Add(R"({"us":1,"kind":"session","ph":"b","session":2})");
  Add(R"({"us":2,"kind":"block_load","ph":"b","session":2,"request":1,"id":0,"tier":"host"})");
  Add(R"({"us":4,"kind":"session","ph":"e","session":2})");
  Add(R"({"us":6,"kind":"block_load","ph":"e","id":0})");
  const json::array records = Records();
  ASSERT_EQ(records.size(), 4u);
  EXPECT_EQ(records[3].at("ts"), 6);
  EXPECT_FALSE(records[3].at("args").as_object().contains("unfinished"));
}

TEST_F(TraceDocumentTest, RequestNumberUsedAgainIsAnotherSpan) {
  for (const char* us : {"1", "3"}) {
    Add(std::string(
            R"({"kind":"request","ph":"b","session":1,"request":7,"message":"ping","us":)") +
        us + "}");
  }
  Add(R"({"us":5,"kind":"request","ph":"e","session":1,"request":7,"message":"ping"})");
  EXPECT_EQ(Records().size(), 4u);
  EXPECT_EQ(document_.spans(), 2u);
}

TEST_F(TraceDocumentTest, RequestNumbersKeepAllTheirBits) {
  Add(R"({"us":1,"kind":"request","ph":"b","session":1,"request":18446744073709551615,
          "message":"ping"})");
  Add(R"({"us":2,"kind":"request","ph":"e","session":1,"request":18446744073709551614,
          "message":"ping"})");
  EXPECT_EQ(document_.ends_without_begin(), 1u);
  EXPECT_EQ(Records()[0].at("args").at("request"), UINT64_MAX);
}

TEST_F(TraceDocumentTest, EvictionsAreInstantsInTheirTiersRow) {
  Add(R"({"us":1,"kind":"evict","ph":"i","tier":"host","reason":"lru","hash":"ab"})");
  const json::array records = Records();
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].at("ph"), "i");
  EXPECT_EQ(records[0].at("tid"), 2);
  EXPECT_EQ(records[0].at("args").at("reason"), "lru");
}

TEST_F(TraceDocumentTest, WhatIsNotUnderstoodIsIgnored) {
  for (const char* event : {"{}", "[]", "7", R"({"ph":"b"})", R"({"ph":"x","kind":"load"})",
                            R"({"ph":"b","kind":"surprise","us":1})",
                            R"({"ph":"b","kind":"load","us":"soon","id":-4})"}) {
    Add(event);
  }
  EXPECT_LE(Records().size(), 2u);
}

TEST_F(TraceDocumentTest, SessionsAreNamed) {
  const json::value session = json::parse(R"({"id":3,"tenant":"t","client":"engine","pid":42})");
  document_.NameSession(JsonView(&session));
  const json::value document = json::parse(document_.Finish(1, 1, 0));
  bool named = false;
  for (const json::value& record : document.at("traceEvents").as_array()) {
    if (record.at("pid") != 4) continue;
    named = true;
    EXPECT_EQ(record.at("args").at("name"), "session 3: t engine (pid 42)");
  }
  EXPECT_TRUE(named);
}

}  // namespace
}  // namespace kvtier
