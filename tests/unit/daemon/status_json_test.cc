// SPDX-License-Identifier: Apache-2.0
// The live page's data, and the page's allowed content.
#include "daemon/metrics/status_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

namespace kvtier {
namespace {

namespace json = boost::json;

json::value Document(const MetricsSnapshot& snapshot) {
  return json::parse(LiveStatusJson(snapshot, 0.25));
}

TEST(LiveStatus, ShowsTiersHitsModelsAndSessions) {
  MetricsSnapshot snapshot;
  snapshot.gauges.pools.push_back(
      {.block_bytes = 1024, .blocks = 10, .free = 4, .referenced = 5, .cached = 1});
  snapshot.pools = {{snapshot.gauges.pools[0], "a", "", "model"}};
  snapshot.gauges.pool_capacity_bytes = 20 * 1024;
  snapshot.sessions = {{.id = SessionId(1),
                        .tenant = "a",
                        .client_name = "<b>",
                        .pid = 77,
                        .uid = 1000,
                        .references = 5}};
  snapshot.session_count = 1;
  CacheStats stats;
  stats.CountHit(NamespaceId(0), Tier::kHost, 16);
  stats.CountMisses(NamespaceId(0), MissReason::kExpired, 3, 16);
  snapshot.stats = stats;
  const json::value document = Document(snapshot);
  EXPECT_EQ(document.at("schema"), "kvtier.live/1");
  EXPECT_EQ(document.at("tiers").at(0).at("used_bytes"), 6 * 1024);
  EXPECT_EQ(document.at("tiers").at(0).at("blocks"), 6);
  EXPECT_EQ(document.at("models").at(0).at("name"), "model");
  EXPECT_EQ(document.at("sessions").at("list").at(0).at("client"), "<b>");
  EXPECT_EQ(document.at("tokens").at("host"), 16);
  EXPECT_EQ(document.at("tokens").at("missed"), 48);
  EXPECT_EQ(document.at("misses").as_array().size(), 1u);
  EXPECT_EQ(document.at("misses").at(0).at("reason"), "expired");
  EXPECT_EQ(document.at("misses").at(0).at("meaning"), "its time to live had passed");
}

TEST(LiveStatus, ShowsEachDeviceWithWhatItsPoolsHold) {
  MetricsSnapshot snapshot;
  snapshot.devices = {{.kind = "cuda", .name = "H200"}, {.kind = "cuda", .name = "other"}};
  snapshot.gauges.devices = {{.pool_capacity_bytes = 100}, {.pool_capacity_bytes = 200}};
  for (const uint32_t device : {1, 1, 0}) {
    snapshot.gauges.pools.push_back(
        {.device = DeviceIndex(device), .block_bytes = 10, .blocks = 5, .free = 2});
  }
  snapshot.attention.devices = {{.state = AttentionState::kReady},
                                {.state = AttentionState::kFailed}};
  const json::value document = Document(snapshot);
  const json::array& devices = document.at("devices").as_array();
  ASSERT_EQ(devices.size(), 2u);
  EXPECT_EQ(devices[0].at("name"), "H200");
  EXPECT_EQ(devices[0].at("blocks"), 3);
  EXPECT_EQ(devices[0].at("attention"), "ready");
  EXPECT_EQ(devices[1].at("blocks"), 6);
  EXPECT_EQ(devices[1].at("used_bytes"), 60);
  EXPECT_EQ(devices[1].at("capacity_bytes"), 200);
  EXPECT_EQ(devices[1].at("attention"), "failed");
}

TEST(LiveStatus, ShowsTenantsInTheTiersInWhichTheyHaveQuotas) {
  MetricsSnapshot snapshot;
  EXPECT_TRUE(Document(snapshot).at("tenants").as_array().empty());
  TenantGauges tenant{.quota = {.name = "a"}, .used_bytes = {0, 5, 0}};
  tenant.quota.tiers[2] = {.max_bytes = 9, .reserved_bytes = 1};
  snapshot.gauges.tenants = {tenant};
  const json::array rows = Document(snapshot).at("tenants").as_array();
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].at("tier"), "host");
  EXPECT_EQ(rows[0].at("used_bytes"), 5);
  EXPECT_EQ(rows[1].at("tier"), "disk");
  EXPECT_EQ(rows[1].at("max_bytes"), 9);
  EXPECT_EQ(rows[1].at("reserved_bytes"), 1);
}

// Every process of this machine may read it.
TEST(LiveStatus, KeepsProcessesAndUsersToItself) {
  MetricsSnapshot snapshot;
  snapshot.sessions = {{.id = SessionId(1), .pid = 77, .uid = 1000}};
  const json::object session = Document(snapshot).at("sessions").at("list").at(0).as_object();
  EXPECT_FALSE(session.contains("pid"));
  EXPECT_FALSE(session.contains("uid"));
}

TEST(HitHistory, KeepsWhatCameInEachInterval) {
  CacheStats stats;
  HitHistory history;
  int64_t now_ms = 1'000'000;
  history.Tick(stats, now_ms);
  stats.CountHit(NamespaceId(0), Tier::kPool, 16);
  stats.CountMisses(NamespaceId(0), MissReason::kUnknown, 2, 16);
  stats.CountHit(NamespaceId(0), Tier::kDisk, 16);
  stats.CountHit(NamespaceId(0), Tier::kDisk, 16, /*from_cold=*/true);
  stats.onload_bytes = 4096;
  history.Tick(stats, now_ms += HitHistory::kIntervalMs / 2);
  EXPECT_TRUE(history.points().empty());
  history.Tick(stats, now_ms += HitHistory::kIntervalMs);
  ASSERT_EQ(history.points().size(), 1u);
  EXPECT_EQ(history.points()[0].hit_blocks[0], 1u);
  EXPECT_EQ(history.points()[0].missed_blocks, 2u);
  EXPECT_EQ(history.points()[0].hit_blocks[2], 2u);
  EXPECT_EQ(history.points()[0].cold_blocks, 1u);
  EXPECT_EQ(history.points()[0].copied_bytes[static_cast<size_t>(CopyLane::kHostToPool)], 4096u);
  history.Tick(stats, now_ms += HitHistory::kIntervalMs);
  EXPECT_EQ(history.points()[1].missed_blocks, 0u);
}

TEST(HitHistory, ForgetsWhatIsTooLongAgo) {
  CacheStats stats;
  HitHistory history;
  int64_t now_ms = 1;
  for (size_t i = 0; i < 2 * HitHistory::kPoints; ++i) {
    history.Tick(stats, now_ms += HitHistory::kIntervalMs);
  }
  EXPECT_EQ(history.points().size(), HitHistory::kPoints);
}

TEST(LivePage, LoadsNothingFromElsewhere) {
  const std::string page(LivePageHtml());
  EXPECT_THAT(page, testing::StartsWith("<!DOCTYPE html>"));
  EXPECT_THAT(page, testing::EndsWith("</html>\n"));
  for (const char* outside : {"https://", " src=", "@import", "url("}) {
    EXPECT_THAT(page, testing::Not(testing::HasSubstr(outside)));
  }
  // Names that clients give themselves must not become markup.
  for (const char* markup : {"innerHTML", "insertAdjacentHTML", "document.write"}) {
    EXPECT_THAT(page, testing::Not(testing::HasSubstr(markup)));
  }
  EXPECT_THAT(page, testing::HasSubstr("width=device-width"));
}

}  // namespace
}  // namespace kvtier
