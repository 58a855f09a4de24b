// SPDX-License-Identifier: Apache-2.0
// kvtierctl trace of a real daemon's requests.
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "tests/integration/harness/daemon_test.h"

namespace kvtier {
namespace {

constexpr size_t kBlocks = 30;

class TraceTest : public DaemonTest {
 protected:
  static boost::json::array EventsIn(const std::string& text) {
    boost::json::error_code error;
    const boost::json::value document = boost::json::parse(text, error);
    EXPECT_FALSE(error) << text.substr(0, 200);
    return error ? boost::json::array() : document.at("traceEvents").as_array();
  }
  static std::string Text(const boost::json::value& record, const char* member) {
    return JsonView(&record)[member].Text();
  }
  // The begins of spans of this name.
  static std::vector<boost::json::value> Begins(const boost::json::array& events,
                                                std::string_view name) {
    std::vector<boost::json::value> found;
    for (const boost::json::value& event : events) {
      if (event.at("ph") == "b" && Text(event, "name") == name) found.push_back(event);
    }
    return found;
  }
};

TEST_F(TraceTest, BlockFromDiskIsShownUnderTheRequestThatAskedForIt) {
  StartDaemon({.pool_blocks = 64, .host_blocks = 96, .disk_blocks = 1024});
  (void)Play(Prompt("a", kBlocks));
  // Again, with pool and host memory empty.
  ASSERT_EQ(daemon().Terminate(), 0);
  ASSERT_TRUE(daemon().Restart());
  (void)Play(Prompt("a", kBlocks));
  const ProgramResult dump = Ctl({"trace", "dump"});
  ASSERT_EQ(dump.exit_code, 0) << dump.errors;
  const boost::json::array events = EventsIn(dump.output);

  std::set<uint64_t> acquires;
  for (const auto& acquire : Begins(events, "acquire")) {
    acquires.insert(acquire.at("args").at("request").to_number<uint64_t>());
  }
  const auto blocks = Begins(events, "block from disk");
  ASSERT_EQ(blocks.size(), kBlocks);
  std::set<std::string> ids;
  for (const auto& block : blocks) {
    EXPECT_TRUE(acquires.contains(block.at("args").at("request").to_number<uint64_t>()));
    EXPECT_EQ(Text(block.at("args"), "hash").size(), 16u);
    ids.insert(Text(block, "id"));
  }
  EXPECT_EQ(ids.size(), kBlocks) << "each has a track of its own";
  for (const char* part : {"disk read", "compare checksum", "copy to pool"}) {
    const auto parts = Begins(events, part);
    EXPECT_EQ(parts.size(), kBlocks) << part;
    for (const auto& span : parts) {
      EXPECT_TRUE(ids.contains(Text(span, "id"))) << part;
      EXPECT_TRUE(acquires.contains(span.at("args").at("request").to_number<uint64_t>())) << part;
    }
  }
  EXPECT_FALSE(Begins(events, "load").empty());
}

TEST_F(TraceTest, SpansNestAndEndAfterTheyBegin) {
  StartDaemon({.pool_blocks = 40, .host_blocks = 60, .disk_blocks = 1024});
  for (const char* name : {"a", "b", "c", "a", "b"}) (void)Play(Prompt(name, kBlocks));
  const boost::json::array events = EventsIn(Ctl({"trace", "dump"}).output);
  struct Span {
    std::string name;
    int64_t begin_us = 0;
  };
  std::map<std::string, std::vector<Span>> open;
  size_t ends = 0;
  for (const boost::json::value& event : events) {
    if (event.at("ph") == "M" || event.at("ph") == "i") continue;
    std::vector<Span>& spans = open[Text(event, "id")];
    const auto us = event.at("ts").to_number<int64_t>();
    if (event.at("ph") == "b") {
      spans.push_back({Text(event, "name"), us});
      continue;
    }
    ASSERT_FALSE(spans.empty());
    EXPECT_EQ(spans.back().name, Text(event, "name"));
    EXPECT_GE(us, spans.back().begin_us);
    spans.pop_back();
    ++ends;
  }
  EXPECT_GT(ends, 100u);
  for (const auto& [id, spans] : open) EXPECT_TRUE(spans.empty()) << id;
}

TEST_F(TraceTest, DumpGoesToAFileAndSaysSo) {
  StartDaemon();
  (void)Play(Prompt("a", kBlocks));
  const std::string path = directory() + "/trace.json";
  const ProgramResult dump = Ctl({"trace", "dump", "--output", path, "--json"});
  EXPECT_EQ(dump.exit_code, 0) << dump.errors;
  EXPECT_NE(dump.output.find("kvtier.trace_written/1"), std::string::npos) << dump.output;
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_FALSE(Begins(EventsIn(text.str()), "acquire").empty());
  const ProgramResult nowhere = Ctl({"trace", "dump", "--output", "/nonexistent/trace.json"});
  EXPECT_EQ(nowhere.exit_code, 1);
  EXPECT_NE(nowhere.errors.find("/nonexistent/trace.json"), std::string::npos) << nowhere.errors;
}

TEST_F(TraceTest, SinceLeavesOutWhatIsOlder) {
  StartDaemon();
  (void)Play(Prompt("a", kBlocks));
  EXPECT_TRUE(
      Begins(EventsIn(Ctl({"trace", "dump", "--since", "0.000001"}).output), "acquire").empty());
  EXPECT_FALSE(
      Begins(EventsIn(Ctl({"trace", "dump", "--since", "3600"}).output), "acquire").empty());
}

TEST_F(TraceTest, MoreEventsThanOneReplyHoldsAreFetched) {
  StartDaemon();
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  for (int i = 0; i < 4000; ++i) ASSERT_TRUE(client->Play(Prompt("a", 1)));
  const boost::json::array events = EventsIn(Ctl({"trace", "dump"}).output);
  EXPECT_GT(events.size(), 10'000u);
}

}  // namespace
}  // namespace kvtier
