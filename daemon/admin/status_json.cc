// SPDX-License-Identifier: Apache-2.0
#include "daemon/admin/status_json.h"

#include <unistd.h>

#include <boost/json.hpp>

#include "daemon/config/config_schema.h"
#include "daemon/config/config_value.h"
#include "daemon/config/device_choice_name.h"
#include "daemon/resources/device_opening.h"
#include "daemon/resources/disk_tier.h"
#include "daemon/runtime/version.h"
#include "daemon/session/server.h"

namespace kvtier {
namespace {

namespace json = boost::json;

json::array Strings(const std::vector<std::string>& texts) {
  json::array array;
  for (const std::string& text : texts) array.emplace_back(text);
  return array;
}

json::object DeviceStatus(const OpenedDevice& opened, const DeviceGauges& gauges) {
  const DeviceInfo device = opened.device->info();
  return {{"kind", device.kind},
          {"name", device.name},
          {"ordinal", device.ordinal},
          {"uuid", DeviceUuidText(device)},
          {"total_bytes", device.total_bytes},
          {"configured", DeviceChoiceName(opened.asked)},
          {"reason", opened.reason},
          {"pool_capacity_bytes", gauges.pool_capacity_bytes},
          {"pool_used_bytes", gauges.pool_used_bytes}};
}

// By DeviceIndex.
json::array DevicesStatus(const std::vector<OpenedDevice>& devices, const CacheGauges& gauges) {
  json::array list;
  for (size_t i = 0; i < devices.size(); ++i) {
    list.push_back(DeviceStatus(devices[i], gauges.devices[i]));
  }
  return list;
}

json::object KernelsStatus(const AttentionReport& report) {
  return {{"state", AttentionStateName(report.state)},
          {"reason", report.reason},
          {"engine", report.engine},
          {"library", report.library},
          {"library_version", report.library_version},
          {"self_test",
           {{"cases", report.self_test.cases},
            {"failure", report.self_test.failure},
            {"worst_error", report.self_test.worst_error}}},
          {"calls", report.calls},
          {"query_tokens", report.query_tokens},
          {"failures", report.failures},
          {"busy_seconds", static_cast<double>(report.busy_ns) / 1e9},
          {"in_flight", report.in_flight}};
}

// Of all devices together, and of each.
json::object KernelsStatus(const AttentionReports& reports) {
  json::object status = KernelsStatus(reports.All());
  status["start_seconds"] = reports.start_seconds;
  status["workspace_bytes"] = reports.workspace_bytes;
  json::array devices;
  for (const AttentionReport& report : reports.devices) devices.push_back(KernelsStatus(report));
  status["devices"] = std::move(devices);
  return status;
}

json::object DiskStatus(const DiskStartFacts& disk, const CacheGauges& gauges) {
  json::object status{{"enabled", disk.enabled}};
  if (!disk.enabled) return status;
  status["directory"] = disk.directory;
  status["engines"] = Strings(gauges.disk_engines);
  status["degraded"] = disk.degraded || gauges.disk_degraded;
  status["notes"] = Strings(disk.notes);
  status["index"] = {{"found", disk.index_found},
                     {"rebuilt", disk.index_rebuilt},
                     {"start_seconds", disk.index_seconds}};
  return status;
}

uint64_t PoolBlocksInUse(const CacheGauges& gauges) {
  uint64_t blocks = 0;
  for (const PoolGauges& pool : gauges.pools) blocks += pool.blocks - pool.free;
  return blocks;
}

json::object TierStatus(const CacheGauges& gauges) {
  return {{"pool",
           {{"capacity_bytes", gauges.pool_capacity_bytes},
            {"used_bytes", gauges.pool_used_bytes},
            {"blocks", PoolBlocksInUse(gauges)}}},
          {"host",
           {{"capacity_bytes", gauges.host_capacity_bytes},
            {"ready_bytes", gauges.host_ready_bytes},
            {"used_bytes", gauges.host_used_bytes},
            {"blocks", gauges.host_blocks}}},
          {"disk",
           {{"capacity_bytes", gauges.disk_capacity_bytes},
            {"used_bytes", gauges.disk_used_bytes},
            {"blocks", gauges.disk_blocks},
            {"persisted_blocks", gauges.disk_persisted}}}};
}

json::array PoolsStatus(const CacheGauges& gauges, const ModelRegistry& models) {
  json::array pools;
  for (const PoolGauges& pool : gauges.pools) {
    pools.push_back({{"id", pool.id.value},
                     {"device", pool.device.value},
                     {"tenant", pool.tenant},
                     {"model", pool.model_hex},
                     {"model_name", models.NameOf(pool.tenant, pool.model_hex)},
                     {"block_bytes", pool.block_bytes},
                     {"blocks", pool.blocks},
                     {"free", pool.free},
                     {"private", pool.private_blocks},
                     {"referenced", pool.referenced},
                     {"cached", pool.cached},
                     {"loading", pool.loading},
                     {"quarantined", pool.quarantined}});
  }
  return pools;
}

json::array TenantsStatus(const CacheGauges& gauges) {
  static constexpr std::string_view kTierNames[kTierCount] = {"pool", "host", "disk"};
  json::array tenants;
  for (const TenantGauges& tenant : gauges.tenants) {
    json::object status{{"name", tenant.quota.name},
                        {"memory_ttl_ms", tenant.quota.memory_ttl_ms},
                        {"extended_ttl_ms", tenant.quota.extended_ttl_ms},
                        {"max_age_ms", tenant.quota.max_age_ms}};
    for (size_t tier = 0; tier < kTierCount; ++tier) {
      status[kTierNames[tier]] = {{"used_bytes", tenant.used_bytes[tier]},
                                  {"max_bytes", tenant.quota.tiers[tier].max_bytes},
                                  {"reserved_bytes", tenant.quota.tiers[tier].reserved_bytes},
                                  {"own_slab_bytes", tenant.own_slab_bytes[tier]}};
    }
    tenants.push_back(std::move(status));
  }
  return tenants;
}

json::object SessionsStatus(const Server& server) {
  json::array list;
  for (const Session::Summary& session : server.Sessions()) {
    list.push_back({{"id", session.id.value},
                    {"tenant", session.tenant},
                    {"client", session.client_name},
                    {"pid", session.pid},
                    {"uid", session.uid},
                    {"references", session.references}});
  }
  const size_t count = list.size();
  return {
      {"count", count}, {"quarantined", server.quarantined_sessions()}, {"list", std::move(list)}};
}

json::object AskedStatus(const CacheStats::Asked& asked) {
  return {{"asked", asked.asked},
          {"pool", asked.hit[static_cast<size_t>(Tier::kPool)]},
          {"host", asked.hit[static_cast<size_t>(Tier::kHost)]},
          {"disk", asked.hit[static_cast<size_t>(Tier::kDisk)]},
          {"miss", asked.miss}};
}

json::object MissesStatus(const CacheStats& stats) {
  json::object misses;
  // The first is "none": not a miss.
  for (int i = 1; i < kMissReasonCount; ++i) {
    misses[MissReasonName(static_cast<MissReason>(i))] = stats.misses_by_reason[i];
  }
  return misses;
}

json::object DropsStatus(const CacheStats& stats) {
  static constexpr std::string_view kTierNames[kTierCount] = {"pool", "host", "disk"};
  json::object drops;
  for (int tier = 0; tier < kTierCount; ++tier) {
    json::object reasons;
    for (int i = 0; i < kDropReasonCount; ++i) {
      reasons[DropReasonName(static_cast<DropReason>(i))] = stats.drops[tier][i];
    }
    drops[kTierNames[tier]] = std::move(reasons);
  }
  return drops;
}

json::object ServerStatus(const ServerCounters& counters) {
  json::object refusals;
  for (const auto& [reason, count] : counters.refusals) refusals[reason] = count;
  return {{"connections", counters.connections},
          {"sessions", counters.sessions},
          {"requests", counters.requests},
          {"refusals", std::move(refusals)}};
}

json::object StatsStatus(const ServiceContext& context) {
  const CacheStats& stats = context.cache->stats();
  return {{"blocks", AskedStatus(stats.blocks)},
          {"acquires", stats.acquires},
          {"acquires_refused", stats.acquires_refused},
          {"acquires_waited", stats.acquires_waited},
          {"loads_without_counter", stats.loads_without_counter},
          {"unreachable_counter_pages", UnreachableCounterPages(*context.devices)},
          {"misses", MissesStatus(stats)},
          {"drops", DropsStatus(stats)},
          {"commits", stats.commits},
          {"commit_duplicates", stats.commit_duplicates},
          {"allocated", stats.allocated},
          {"offload_blocks", stats.offload_blocks},
          {"offload_bytes", stats.offload_bytes},
          {"onload_blocks", stats.onload_blocks},
          {"onload_bytes", stats.onload_bytes},
          {"disk_write_blocks", stats.disk_write_blocks},
          {"disk_write_bytes", stats.disk_write_bytes},
          {"disk_write_errors", stats.disk_write_errors},
          {"disk_read_blocks", stats.disk_read_blocks},
          {"disk_read_bytes", stats.disk_read_bytes},
          {"disk_read_errors", stats.disk_read_errors},
          {"disk_read_retries", stats.disk_read_retries},
          {"disk_read_repaired", stats.disk_read_repaired},
          {"index_batches", stats.index_batches},
          {"index_errors", stats.index_errors},
          {"slots_quarantined", stats.slots_quarantined},
          {"restored_blocks", stats.restored_blocks},
          {"server", ServerStatus(*context.counters)}};
}

json::object InFlightStatus(const CacheGauges& gauges) {
  return {{"loads", gauges.loads_in_flight},
          {"offloads", gauges.offloads_in_flight},
          {"disk_reads", gauges.disk_reads_in_flight},
          {"disk_writes", gauges.disk_writes_in_flight},
          {"acquires_waiting", gauges.acquires_waiting}};
}

// The value as JSON: numbers and booleans as such, sizes and durations as the texts they are.
json::value ConfigValueJson(const ConfigKey& key, const Config& config) {
  const std::string text = FormatConfigValue(key, config);
  boost::system::error_code error;
  json::value value = json::parse(text, error);
  return error ? json::value(text) : value;
}

}  // namespace

std::string StatusJson(const ServiceContext& context) {
  const CacheGauges gauges = context.cache->Gauges();
  json::object status{
      {"schema", kStatusSchema},
      {"version", Version()},
      {"pid", ::getpid()},
      {"uptime_s", static_cast<double>((context.clock->MonotonicMs() - context.started_ms)) / 1000},
      {"state", context.server->draining() ? "draining" : "serving"},
      {"socket", context.config->server.socket},
      {"device", DeviceStatus(context.devices->front(), gauges.devices.front())},
      {"devices", DevicesStatus(*context.devices, gauges)},
      {"kernels", KernelsStatus(context.attention->Report())},
      {"disk", DiskStatus(*context.disk, gauges)},
      {"tiers", TierStatus(gauges)},
      {"pools", PoolsStatus(gauges, *context.models)},
      {"tenants", TenantsStatus(gauges)},
      {"sessions", SessionsStatus(*context.server)},
      {"references", gauges.references},
      {"in_flight", InFlightStatus(gauges)},
      {"index", {{"entries", gauges.entries}, {"entry_bytes", gauges.entry_bytes}}},
      {"unpersisted_blocks", gauges.unpersisted_blocks},
      {"pinned_blocks", gauges.pinned_blocks},
      {"unusable_blocks",
       {{"pool", gauges.unusable_blocks[0]},
        {"host", gauges.unusable_blocks[1]},
        {"disk", gauges.unusable_blocks[2]}}},
      {"write_budget_left_bytes", gauges.write_budget_left_bytes},
      {"stats", StatsStatus(context)},
  };
  return json::serialize(status);
}

std::string StatsJson(const ServiceContext& context) {
  return json::serialize(
      json::object{{"schema", "kvtier.stats/1"}, {"stats", StatsStatus(context)}});
}

std::string ConfigJson(const Config& config) {
  json::object document{{"schema", "kvtier.config/1"}};
  const auto section_of = [](const ConfigSection& section, const Config& values) {
    json::object keys;
    for (const ConfigKey& key : ConfigKeys()) {
      if (key.section == section.name) keys[key.name] = ConfigValueJson(key, values);
    }
    return keys;
  };
  for (const ConfigSection& section : ConfigSections()) {
    if (!section.repeated) {
      document[section.name] = section_of(section, config);
      continue;
    }
    json::array tenants;
    for (const TenantConfig& tenant : config.tenants) {
      // The schema's accessors look at the last tenant.
      Config only;
      only.tenants = {tenant};
      tenants.push_back(section_of(section, only));
    }
    document[section.name] = std::move(tenants);
  }
  return json::serialize(document);
}

}  // namespace kvtier
