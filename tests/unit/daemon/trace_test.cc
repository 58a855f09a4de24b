// SPDX-License-Identifier: Apache-2.0
// The ring of trace events, and the admin socket's reports of it.
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "daemon/admin/trace_ring.h"
#include "tests/fakes/temporary_directory.h"
#include "tests/unit/daemon/daemon_under_test.h"
#include "tests/unit/daemon/verbs.h"
#include "tests/unit/daemon/wire_client.h"

namespace kvtier {
namespace {

namespace json = boost::json;

TraceEvent EventWithId(uint64_t id) { return {.id = id}; }

TEST(TraceRing, KeepsTheLatestEvents) {
  TraceRing ring(4);
  for (uint64_t id = 0; id < 10; ++id) ring.Record(EventWithId(id));
  EXPECT_EQ(ring.first(), 6u);
  EXPECT_EQ(ring.end(), 10u);
  for (uint64_t number = 6; number < 10; ++number) EXPECT_EQ(ring[number].id, number);
}

TEST(TraceRing, EmptyRingHasNoEvents) {
  const TraceRing ring(4);
  EXPECT_EQ(ring.first(), 0u);
  EXPECT_EQ(ring.end(), 0u);
  EXPECT_EQ(ring.FirstSince(0), 0u);
}

TEST(TraceRing, EventsAreFoundByTime) {
  TraceRing ring(8);
  for (uint64_t id = 0; id < 20; ++id) ring.Record(EventWithId(id));
  EXPECT_EQ(ring.FirstSince(0), ring.first());
  EXPECT_EQ(ring.FirstSince(TraceRing::ClockUs() + 1'000'000), ring.end());
  const int64_t time_us = ring[15].time_us;
  const uint64_t found = ring.FirstSince(time_us);
  EXPECT_LE(found, 15u);
  EXPECT_EQ(ring[found].time_us, time_us);
  EXPECT_TRUE(found == ring.first() || ring[found - 1].time_us < time_us);
}

class TraceOperation : public testing::Test {
 protected:
  void Start(uint32_t events) {
    daemon_.emplace(directory_.path(), [events](Config* config) { config->trace.events = events; });
    ASSERT_TRUE(daemon_->status()) << daemon_->status().error().ToString();
  }
  json::value Ask(const std::string& request) {
    WireClient admin(daemon_->admin_socket());
    admin.Send(wire::AdminRequest{request});
    const auto received = admin.Receive();
    if (!received || !received->Is(wire::MessageType::kAdminReply)) {
      ADD_FAILURE() << "no reply to " << request;
      return {};
    }
    return json::parse(wire::Decode<wire::AdminReply>(received->payload).value().json);
  }
  // The events of one kind and phase.
  static std::vector<json::object> Of(const json::value& reply, const char* kind,
                                      const char* phase) {
    std::vector<json::object> found;
    for (const json::value& event : reply.at("events").as_array()) {
      if (event.at("kind") == kind && event.at("ph") == phase) found.push_back(event.as_object());
    }
    return found;
  }

  TestDirectory directory_;
  std::optional<DaemonUnderTest> daemon_;
};

TEST_F(TraceOperation, RequestsAreToldWithSessionNumberAndHits) {
  Start(1000);
  WireClient client(daemon_->socket());
  const PoolId pool = client.Attach().pool;
  (void)Fill(&client, pool, Hashes(0, 3));
  (void)Acquire(&client, pool, Hashes(0, 5), 2);
  const json::value reply = Ask(R"({"op":"trace"})");
  EXPECT_EQ(reply.at("schema"), "kvtier.trace/1");
  EXPECT_EQ(reply.at("lost"), 0);
  ASSERT_EQ(reply.at("sessions").as_array().size(), 1u);
  EXPECT_EQ(reply.at("sessions").at(0).at("pid"), ::getpid());
  const auto begins = Of(reply, "request", "b");
  const auto ends = Of(reply, "request", "e");
  ASSERT_GE(begins.size(), 5u);
  EXPECT_EQ(begins.size(), ends.size());
  const json::object& begin = begins.back();
  const json::object& end = ends.back();
  EXPECT_EQ(begin.at("message"), "acquire");
  EXPECT_EQ(begin.at("n0"), 5);
  EXPECT_EQ(begin.at("n1"), 2);
  EXPECT_EQ(json::value_to<std::string>(begin.at("hash")), Hashes(0, 5).back().Hex().substr(0, 16));
  EXPECT_EQ(begin.at("session"), reply.at("sessions").at(0).at("id"));
  EXPECT_EQ(end.at("request"), begin.at("request"));
  EXPECT_EQ(end.at("n0"), 3) << "hits in the pool";
  EXPECT_EQ(end.at("miss"), "unknown");
}

TEST_F(TraceOperation, RefusedRequestEndsAsFailed) {
  Start(1000);
  WireClient client(daemon_->socket());
  const PoolId pool = client.Attach().pool;
  EXPECT_EQ(client.ErrorOf(wire::Acquire{.parts = {{.pool = pool}}}), "empty_request");
  EXPECT_EQ(client.ErrorOf(wire::Acquire{.parts = {{.pool = pool, .new_blocks = 1000}}}),
            "pool_full");
  const json::value reply = Ask(R"({"op":"trace"})");
  const auto ends = Of(reply, "request", "e");
  ASSERT_GE(ends.size(), 2u);
  for (size_t i = ends.size() - 2; i < ends.size(); ++i) EXPECT_EQ(ends[i].at("failed"), 1);
}

TEST_F(TraceOperation, PortionsGoOnWhereTheCursorPoints) {
  Start(1000);
  WireClient client(daemon_->socket());
  (void)Fill(&client, client.Attach().pool, Hashes(0, 20));
  const uint64_t end = Ask(R"({"op":"trace","limit":1})").at("end").to_number<uint64_t>();
  uint64_t cursor = 0;
  uint64_t seen = 0;
  int64_t before_us = 0;
  while (cursor < end) {
    const json::value reply =
        Ask(R"({"op":"trace","limit":3,"cursor":)" + std::to_string(cursor) + "}");
    EXPECT_LE(reply.at("events").as_array().size(), 3u);
    ASSERT_FALSE(reply.at("events").as_array().empty());
    for (const json::value& event : reply.at("events").as_array()) {
      const auto us = event.at("us").to_number<int64_t>();
      EXPECT_GE(us, before_us);
      before_us = us;
      ++seen;
    }
    cursor = reply.at("cursor").to_number<uint64_t>();
  }
  EXPECT_EQ(seen, cursor);
}

TEST_F(TraceOperation, WhatWasOverwrittenIsCounted) {
  Start(4);
  WireClient client(daemon_->socket());
  const PoolId pool = client.Attach().pool;
  const uint64_t cursor = Ask(R"({"op":"trace"})").at("end").to_number<uint64_t>();
  (void)Fill(&client, pool, Hashes(0, 20));
  const json::value reply = Ask(R"({"op":"trace","cursor":)" + std::to_string(cursor) + "}");
  EXPECT_EQ(reply.at("events").as_array().size(), 4u);
  EXPECT_EQ(reply.at("lost").to_number<uint64_t>() + 4,
            reply.at("end").to_number<uint64_t>() - cursor);
}

TEST_F(TraceOperation, CursorBeyondTheEndYieldsNothing) {
  Start(4);
  const json::value reply = Ask(R"({"op":"trace","cursor":9223372036854775807})");
  EXPECT_TRUE(reply.at("events").as_array().empty());
  EXPECT_EQ(reply.at("cursor"), reply.at("end"));
}

}  // namespace
}  // namespace kvtier
