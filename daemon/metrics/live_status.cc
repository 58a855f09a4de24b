// SPDX-License-Identifier: Apache-2.0
#include "daemon/metrics/live_status.h"

#include <boost/json.hpp>

#include "daemon/runtime/version.h"

namespace kvtier {
namespace {

namespace json = boost::json;

json::array TiersOf(const CacheGauges& gauges) {
  uint64_t pool_blocks = 0, pool_bytes = 0;
  for (const PoolGauges& pool : gauges.pools) {
    pool_blocks += pool.blocks - pool.free;
    pool_bytes += (pool.blocks - pool.free) * pool.block_bytes;
  }
  const auto tier = [](std::string_view name, uint64_t blocks, uint64_t used, uint64_t capacity) {
    return json::object{
        {"name", name}, {"blocks", blocks}, {"used_bytes", used}, {"capacity_bytes", capacity}};
  };
  return {tier("pool", pool_blocks, pool_bytes, gauges.pool_capacity_bytes),
          tier("host", gauges.host_blocks, gauges.host_used_bytes, gauges.host_capacity_bytes),
          tier("disk", gauges.disk_blocks, gauges.disk_used_bytes, gauges.disk_capacity_bytes)};
}

// A row for each device.
json::array DevicesOf(const MetricsSnapshot& snapshot) {
  json::array devices;
  for (size_t i = 0; i < snapshot.devices.size(); ++i) {
    uint64_t blocks = 0, used_bytes = 0;
    for (const PoolGauges& pool : snapshot.gauges.pools) {
      if (pool.device.value != i) continue;
      blocks += pool.blocks - pool.free;
      used_bytes += (pool.blocks - pool.free) * pool.block_bytes;
    }
    const bool told = i < snapshot.attention.devices.size();
    const AttentionState attention =
        told ? snapshot.attention.devices[i].state : AttentionState::kOff;
    devices.push_back({{"name", snapshot.devices[i].name},
                       {"blocks", blocks},
                       {"used_bytes", used_bytes},
                       {"capacity_bytes", snapshot.gauges.devices[i].pool_capacity_bytes},
                       {"attention", AttentionStateName(attention)}});
  }
  return devices;
}

json::object AskedOf(const CacheStats::Asked& asked) {
  return {{"asked", asked.asked},
          {"pool", asked.hit[static_cast<size_t>(Tier::kPool)]},
          {"host", asked.hit[static_cast<size_t>(Tier::kHost)]},
          {"disk", asked.hit[static_cast<size_t>(Tier::kDisk)]},
          {"missed", asked.miss}};
}

json::object HistoryOf(const HitHistory& history) {
  json::array points;
  for (const HitHistory::Point& point : history.points()) {
    points.push_back(
        {point.hit_blocks[0], point.hit_blocks[1], point.hit_blocks[2], point.missed_blocks});
  }
  return {{"interval_s", static_cast<double>(HitHistory::kIntervalMs) / 1000},
          {"columns", {"pool", "host", "disk", "missed"}},
          {"blocks", std::move(points)}};
}

// Those of the last minutes, and all since the start; reasons that never occurred are left out.
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
    misses.push_back({{"reason", MissReasonName(static_cast<MissReason>(i))},
                      {"recent_blocks", recent[i]},
                      {"blocks", all}});
  }
  return misses;
}

json::array ModelsOf(const MetricsSnapshot& snapshot) {
  json::array models;
  for (size_t i = 0; i < snapshot.gauges.pools.size(); ++i) {
    const PoolGauges& pool = snapshot.gauges.pools[i];
    models.push_back({{"name", snapshot.model_names[i]},
                      {"tenant", pool.tenant},
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
  static constexpr std::string_view kTierNames[kTierCount] = {"pool", "host", "disk"};
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
  return {{"count", snapshot.session_count}, {"list", std::move(list)}};
}

// In the last interval.
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

}  // namespace

std::string LiveStatusJson(const MetricsSnapshot& snapshot, double loop_silent_seconds) {
  const CacheGauges& gauges = snapshot.gauges;
  return json::serialize(json::object{
      {"schema", kLiveSchema},
      {"version", Version()},
      {"state", snapshot.draining ? "draining" : "serving"},
      {"uptime_s", static_cast<double>(snapshot.uptime_ms) / 1000},
      {"loop_silent_s", loop_silent_seconds},
      {"disk_degraded", snapshot.disk_degraded},
      {"tiers", TiersOf(gauges)},
      {"devices", DevicesOf(snapshot)},
      {"blocks", AskedOf(snapshot.stats.blocks)},
      {"tokens", AskedOf(snapshot.stats.tokens)},
      {"endless_missed_blocks", gauges.infinite_missed_blocks},
      {"history", HistoryOf(snapshot.history)},
      {"misses", MissesOf(snapshot)},
      {"models", ModelsOf(snapshot)},
      {"tenants", TenantsOf(gauges)},
      {"sessions", SessionsOf(snapshot)},
      {"copied_bytes_per_s", CopiedOf(snapshot.history)},
  });
}

}  // namespace kvtier
