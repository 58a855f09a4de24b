// SPDX-License-Identifier: Apache-2.0
// The document leaves process numbers, users and hashes out, since every process of the machine may
// read it.
#include <unistd.h>

#include <array>
#include <boost/json.hpp>

#include "daemon/metrics/metrics.h"
#include "daemon/metrics/status_json.h"
#include "daemon/runtime/process.h"

namespace kvtier {
namespace {

namespace json = boost::json;

json::array DrivesOf(const MetricsSnapshot& snapshot) {
  json::array drives;
  for (const DriveSnapshot& drive : snapshot.drives) {
    drives.push_back({{"directory", drive.directory},
                      {"state", drive.state},
                      {"capacity_bytes", drive.capacity_bytes},
                      {"used_bytes", drive.used_bytes}});
  }
  return drives;
}

// Names and states; the table of metrics adds the figures, by position.
json::array TiersOf() { return {{{"name", "pool"}}, {{"name", "host"}}, {{"name", "disk"}}}; }

json::array DevicesOf(const MetricsSnapshot& snapshot) {
  json::array devices;
  for (size_t i = 0; i < snapshot.devices.size(); ++i) {
    const bool told = i < snapshot.attention.devices.size();
    const AttentionState attention =
        told ? snapshot.attention.devices[i].state : AttentionState::kOff;
    devices.push_back(
        {{"name", snapshot.devices[i].name}, {"attention", AttentionStateName(attention)}});
  }
  return devices;
}

json::object HistoryOf(const HitHistory& history) {
  json::array points;
  for (const HitHistory::Point& point : history.points()) {
    points.push_back({point.hit_blocks[0], point.hit_blocks[1],
                      point.hit_blocks[2] - point.cold_blocks, point.cold_blocks,
                      point.missed_blocks});
  }
  return {{"interval_s", static_cast<double>(HitHistory::kIntervalMs) / 1000},
          {"columns", {"pool", "host", "disk", "cold", "missed"}},
          {"blocks", std::move(points)}};
}

// Misses of the last minutes, and all since the start; reasons that never occurred are left out.
json::array MissesOf(const MetricsSnapshot& snapshot) {
  std::array<uint64_t, kMissReasonCount> recent{};
  for (const HitHistory::Point& point : snapshot.history.points()) {
    for (int i = 0; i < kMissReasonCount; ++i) recent[i] += point.misses_by_reason[i];
  }
  json::array misses;
  // The first is "none": not a miss.
  for (int i = 1; i < kMissReasonCount; ++i) {
    const uint64_t all = snapshot.stats.misses_by_reason[i];
    if (all == 0) continue;
    misses.push_back({{"reason", kMissReasonTexts[i].name},
                      {"meaning", kMissReasonTexts[i].meaning},
                      {"recent_blocks", recent[i]},
                      {"blocks", all}});
  }
  return misses;
}

json::array ModelsOf(const MetricsSnapshot& snapshot) {
  json::array models;
  for (const auto& [pool, tenant, model_hex, model_name] : snapshot.pools) {
    models.push_back({{"name", model_name},
                      {"tenant", tenant},
                      {"block_bytes", pool.block_bytes},
                      {"blocks", pool.blocks},
                      {"free", pool.free},
                      {"in_use", pool.referenced + pool.private_blocks + pool.loading},
                      {"cached", pool.cached},
                      {"quarantined", pool.quarantined}});
  }
  return models;
}

// A row for each tier in which a tenant with quotas has any, or anything.
json::array TenantsOf(const CacheGauges& gauges) {
  json::array rows;
  for (const TenantGauges& tenant : gauges.tenants) {
    for (size_t tier = 0; tier < kTierCount; ++tier) {
      const TierQuota& quota = tenant.quota.tiers[tier];
      if (tenant.used_bytes[tier] + quota.max_bytes + quota.reserved_bytes == 0) continue;
      rows.push_back({{"tenant", tenant.quota.name},
                      {"tier", kTierNames[tier]},
                      {"used_bytes", tenant.used_bytes[tier]},
                      {"max_bytes", quota.max_bytes},
                      {"reserved_bytes", quota.reserved_bytes}});
    }
  }
  return rows;
}

json::object SessionsOf(const MetricsSnapshot& snapshot) {
  json::array list;
  for (const Session::Summary& session : snapshot.sessions) {
    list.push_back({{"tenant", session.tenant},
                    {"client", session.client_name},
                    {"references", session.references}});
  }
  return {{"list", std::move(list)}};
}

// Bytes per second in the last interval that has ended.
json::object CopiedOf(const HitHistory& history) {
  const HitHistory::Point last =
      history.points().empty() ? HitHistory::Point() : history.points().back();
  json::object copied;
  for (int lane = 0; lane < kCopyLaneCount; ++lane) {
    copied[CopyLaneName(static_cast<CopyLane>(lane))] =
        last.copied_bytes[lane] * 1000 / uint64_t{HitHistory::kIntervalMs};
  }
  return copied;
}

// The page names its machine, so that pages of many machines can be told apart.
std::string MachineName() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "an unknown machine";
  return name.data();
}

}  // namespace

std::string LiveStatusJson(const MetricsSnapshot& snapshot, double loop_silent_seconds) {
  json::object document{
      {"schema", kLiveSchema},
      {"machine", MachineName()},
      {"version", Version()},
      {"state", snapshot.draining ? "draining" : "serving"},
      {"uptime_s", static_cast<double>(snapshot.uptime_ms) / 1000},
      {"loop_silent_s", loop_silent_seconds},
      {"disk_degraded", snapshot.disk_degraded},
      {"drives", DrivesOf(snapshot)},
      {"tiers", TiersOf()},
      {"devices", DevicesOf(snapshot)},
      {"history", HistoryOf(snapshot.history)},
      {"misses", MissesOf(snapshot)},
      {"models", ModelsOf(snapshot)},
      {"tenants", TenantsOf(snapshot.gauges)},
      {"sessions", SessionsOf(snapshot)},
      {"copied_bytes_per_s", CopiedOf(snapshot.history)},
  };
  AddMetrics(snapshot, &MetricRow::live, &document);
  return json::serialize(document);
}

}  // namespace kvtier
