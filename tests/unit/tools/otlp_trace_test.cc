// SPDX-License-Identifier: Apache-2.0
#include "tools/kvtierctl/otlp_trace.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <initializer_list>
#include <map>
#include <set>
#include <string>

#include "tools/kvtierctl/trace_document.h"

namespace kvtier {
namespace {

namespace json = boost::json;

constexpr int64_t kNowUs = 1000;
constexpr int64_t kWallMs = 1'700'000'000'000;

// The spans of these events, by name.
std::map<std::string, json::object> SpansOf(std::initializer_list<std::string_view> events) {
  TraceDocument document;
  for (const std::string_view event : events) {
    const json::value value = json::parse(event);
    document.Add(JsonView(&value));
  }
  const Result<std::string> text = ToOtlp(document.Finish(kNowUs, kWallMs, 0), 0x1234);
  EXPECT_TRUE(text) << text.error().ToString();
  EXPECT_EQ(text->find('\n'), text->size() - 1) << "a collector reads a request a line";
  const json::value request = json::parse(*text);
  const json::value& resource = request.at("resourceSpans").at(0);
  EXPECT_EQ(resource.at("resource").at("attributes").at(0).at("value").at("stringValue"),
            "kvtierd");
  std::map<std::string, json::object> spans;
  for (const json::value& span : resource.at("scopeSpans").at(0).at("spans").as_array()) {
    EXPECT_EQ(span.at("traceId").as_string().size(), 32u);
    EXPECT_EQ(span.at("spanId").as_string().size(), 16u);
    spans[json::value_to<std::string>(span.at("name"))] = span.as_object();
  }
  return spans;
}

json::value AttributeOf(const json::object& span, std::string_view key) {
  for (const json::value& attribute : span.at("attributes").as_array()) {
    if (json::value_to<std::string>(attribute.at("key")) == key) return attribute.at("value");
  }
  return nullptr;
}

TEST(OtlpTrace, ARequestAndItsLoadAreOneTraceAtUnixTimes) {
  const auto spans = SpansOf(
      {R"({"us":10,"kind":"request","ph":"b","session":3,"request":7,"message":"acquire","n0":5})",
       R"({"us":20,"kind":"load","ph":"b","session":3,"request":7,"id":9,"n0":5})",
       R"({"us":30,"kind":"request","ph":"e","session":3,"request":7,"message":"acquire","n1":2})",
       R"({"us":90,"kind":"load","ph":"e","session":3,"request":7,"id":9,"n0":5})",
       R"({"us":95,"kind":"request","ph":"b","session":3,"request":8,"message":"commit"})",
       R"({"us":99,"kind":"request","ph":"e","session":3,"request":8,"message":"commit"})"});
  ASSERT_EQ(spans.size(), 3u);
  const json::object& acquire = spans.at("acquire");
  EXPECT_EQ(acquire.at("startTimeUnixNano"), "1699999999999010000");
  EXPECT_EQ(acquire.at("endTimeUnixNano"), "1699999999999030000");
  EXPECT_EQ(AttributeOf(acquire, "kvtier.host_hits"), (json::value{{"intValue", "2"}}));
  EXPECT_EQ(acquire.at("traceId"), spans.at("load").at("traceId"));
  EXPECT_NE(acquire.at("traceId"), spans.at("commit").at("traceId"));
}

TEST(OtlpTrace, PartsHaveTheirWholeAsParentAndAFailureIsAnError) {
  const auto spans = SpansOf(
      {R"({"us":1,"kind":"block_load","ph":"b","session":3,"request":7,"id":4,"tier":"disk"})",
       R"({"us":2,"kind":"disk_read","ph":"b","id":4})",
       R"({"us":5,"kind":"disk_read","ph":"e","id":4,"failed":1})",
       R"({"us":9,"kind":"block_load","ph":"e","id":4})"});
  const json::object& whole = spans.at("block from disk");
  const json::object& part = spans.at("disk read");
  EXPECT_EQ(part.at("parentSpanId"), whole.at("spanId"));
  EXPECT_EQ(part.at("traceId"), whole.at("traceId"));
  EXPECT_EQ(part.at("status").at("code"), 2);
  EXPECT_FALSE(whole.contains("parentSpanId"));
}

TEST(OtlpTrace, WorkOfNoRequestIsATraceByItself) {
  const auto spans = SpansOf({R"({"us":1,"kind":"offload","ph":"b","id":1})",
                              R"({"us":2,"kind":"disk_write","ph":"b","id":2})",
                              R"({"us":5,"kind":"offload","ph":"e","id":1})",
                              R"({"us":6,"kind":"disk_write","ph":"e","id":2})"});
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_NE(spans.at("copy to host").at("traceId"), spans.at("disk write").at("traceId"));
}

TEST(OtlpTrace, RefusesWhatIsNoTrace) {
  EXPECT_FALSE(ToOtlp("{}", 1));
  EXPECT_FALSE(ToOtlp("nothing", 1));
}

}  // namespace
}  // namespace kvtier
