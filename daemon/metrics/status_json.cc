// SPDX-License-Identifier: Apache-2.0
// Figures come from the table of metrics where it has them; this file adds names, states, reasons
// and lists. A member that was once told keeps its name and meaning.
#include "daemon/metrics/status_json.h"

#include <unistd.h>

#include <boost/json.hpp>
#include <charconv>
#include <cmath>
#include <map>
#include <string_view>
#include <utility>

#include "daemon/config/config_schema.h"
#include "daemon/metrics/metrics.h"
#include "daemon/resources/device_opening.h"
#include "daemon/resources/disk_tier.h"
#include "daemon/runtime/process.h"

namespace kvtier {
namespace {

namespace json = boost::json;

json::array Strings(const std::vector<std::string>& texts) {
  json::array array;
  for (const std::string& text : texts) array.emplace_back(text);
  return array;
}

// The table of metrics adds the figures to these, devices by position.
json::array DevicesStatus(const std::vector<OpenedDevice>& devices) {
  json::array list;
  for (const OpenedDevice& opened : devices) {
    const DeviceInfo device = opened.device->info();
    list.push_back({{"kind", device.kind},
                    {"name", device.name},
                    {"ordinal", device.ordinal},
                    {"uuid", DeviceUuidText(device)},
                    {"total_bytes", device.total_bytes},
                    {"configured", DeviceChoiceName(opened.asked)},
                    {"reason", opened.reason}});
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
            {"worst_error", report.self_test.worst_error}}}};
}

// The attention of all devices together, and of each.
json::object KernelsStatus(const AttentionReports& reports) {
  json::object status = KernelsStatus(reports.All());
  status["start_seconds"] = reports.start_seconds;
  json::array devices;
  for (const AttentionReport& report : reports.devices) devices.push_back(KernelsStatus(report));
  status["devices"] = std::move(devices);
  return status;
}

json::array DrivesStatus(const std::vector<DriveSnapshot>& drives) {
  json::array status;
  for (const DriveSnapshot& drive : drives) {
    status.push_back({{"directory", drive.directory},
                      {"number", drive.number ? json::value(*drive.number) : json::value(nullptr)},
                      {"state", drive.state},
                      {"why", drive.why},
                      {"capacity_bytes", drive.capacity_bytes},
                      {"used_bytes", drive.used_bytes}});
  }
  return status;
}

json::object DiskStatus(const DiskStartFacts& disk, const CacheGauges& gauges,
                        const std::vector<DriveSnapshot>& drives) {
  json::object status{{"enabled", disk.enabled}};
  if (!disk.enabled) return status;
  status["directory"] = disk.directory;
  status["drives"] = DrivesStatus(drives);
  status["drives_away"] = disk.drives_away;
  status["engines"] = Strings(gauges.disk_engines);
  status["degraded"] = disk.degraded || gauges.disk_degraded;
  status["notes"] = Strings(disk.notes);
  status["index"] = {{"found", disk.index_found},
                     {"rebuilt", disk.index_rebuilt},
                     {"start_seconds", disk.index_seconds}};
  return status;
}

json::array PoolsStatus(const MetricsSnapshot& snapshot) {
  json::array pools;
  for (const auto& [pool, tenant, model_hex, model_name] : snapshot.pools) {
    pools.push_back({{"id", pool.id.value},
                     {"device", pool.device.value},
                     {"tenant", tenant},
                     {"model", model_hex},
                     {"model_name", model_name},
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

// A tenant can have many more of its own, which hide none of another's.
json::array DistrustedStatus(const CacheGauges& gauges, const MetricsSources& sources) {
  json::array distrusted;
  std::map<std::string_view, size_t> listed;  // by tenant
  for (const NamespaceId id : gauges.distrusted) {
    const NamespaceIdentity& identity = sources.cache->IdentityOf(id);
    if (++listed[identity.tenant] > MetricsSnapshot::kMaxListed) continue;
    const std::string model = identity.model.Hex();
    distrusted.push_back({{"tenant", identity.tenant},
                          {"model", model},
                          {"model_name", sources.models->NameOf(identity.tenant, model)}});
  }
  return distrusted;
}

json::array TenantsStatus(const CacheGauges& gauges) {
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

json::array UsageStatus(const CacheGauges& gauges) {
  json::array tenants;
  for (const TenantUsage& usage : gauges.usage) {
    json::object pins;
    for (int i = 0; i < kPinOutcomeCount; ++i) {
      pins[PinOutcomeName(static_cast<PinOutcome>(i))] = usage.pins[i];
    }
    json::object status{
        {"tenant", usage.tenant}, {"pinned_bytes", usage.pinned_bytes}, {"pins", std::move(pins)}};
    for (size_t tier = 0; tier < kTierCount; ++tier) {
      status[kTierNames[tier]] = {{"held_bytes", usage.held_bytes[tier]},
                                  {"byte_seconds", usage.byte_seconds[tier]}};
    }
    tenants.push_back(std::move(status));
  }
  return tenants;
}

json::object SessionsStatus(const MetricsSnapshot& snapshot) {
  json::array list;
  for (const Session::Summary& session : snapshot.sessions) {
    list.push_back({{"id", session.id.value},
                    {"tenant", session.tenant},
                    {"client", session.client_name},
                    {"pid", session.pid},
                    {"uid", session.uid},
                    {"references", session.references}});
  }
  return {{"list", std::move(list)}};
}

json::object KeptMemoryStatus(const MetricsSnapshot& snapshot, int64_t keep_for_ms) {
  json::array list;
  for (const KeptMemories::Entry& kept : snapshot.kept_memories) {
    const bool on_gpu = kept.memory == wire::RegionMemory::kVmm;
    list.push_back({{"tenant", kept.tenant},
                    {"name", Digest256{kept.name}.Hex()},
                    {"device", on_gpu ? json::value(kept.device) : json::value("host")},
                    {"bytes", kept.bytes},
                    {"waiting", kept.waiting},
                    {"owner_pid", kept.owner_pid},
                    {"waiting_ms", kept.waiting_ms}});
  }
  return {{"keep_for_ms", keep_for_ms}, {"list", std::move(list)}};
}

json::object EventsStatus(const EventReport& events) {
  return {{"endpoint", events.endpoint},
          {"replay_endpoint", events.replay_endpoint},
          {"next_sequence", events.next_sequence}};
}

// The memory that the next daemon will find, and who holds it meanwhile.
json::object RestartStatus(const MetricsSnapshot& snapshot) {
  json::array list;
  for (const DescriptorStore::Entry& held : snapshot.held) {
    list.push_back({{"name", held.name}, {"bytes", held.bytes}});
  }
  json::array pools;
  for (const KeptPools::Outcome& left : snapshot.pool_adoptions) {
    pools.push_back({{"tenant", left.tenant}, {"bytes", left.bytes}, {"adoption", left.adoption}});
  }
  return {{"holder", snapshot.holder.name}, {"pid", snapshot.holder.pid},
          {"until", snapshot.holder.until}, {"reason", snapshot.holder.reason},
          {"host", snapshot.host_adoption}, {"pools", std::move(pools)},
          {"list", std::move(list)}};
}

// By the errors' own reasons; metrics have only the kinds of errors, to keep their series few.
json::object RefusalsStatus(const ServerCounters& counters) {
  json::object refusals;
  for (const auto& [reason, count] : counters.refusals) refusals[reason] = count;
  return {{"refusals", std::move(refusals)}};
}

// A row's place with the sample's labels and position put in; empty if the sample is left out.
// REQUIRES: the place is well formed, as those of all rows are.
std::string PlaceOf(std::string_view place, const MetricSample& sample, size_t position) {
  std::string path;
  size_t label = 0;
  while (!place.empty()) {
    const size_t open = place.find_first_of("{[");
    path += place.substr(0, open);
    if (open == std::string_view::npos) break;
    const size_t close = place.find_first_of("}]", open);
    std::string_view choice = place.substr(open + 1, close - open - 1);
    if (place[open] == '[') {
      path += std::to_string(position);
    } else if (choice.empty()) {
      path += sample.labels.at(label++).second;
    } else {
      for (size_t i = 0; i < position; ++i) choice.remove_prefix(choice.find('|') + 1);
      if (choice.empty() || choice.front() == '|') return {};
      path += choice.substr(0, choice.find('|'));
    }
    place.remove_prefix(close + 1);
  }
  return path;
}

// Sets the member at a path such as "devices.0.calls". Objects and arrays on the way are made where
// they are missing; a path segment of digits is a position in an array.
void SetMember(json::object* document, std::string_view path, json::value value) {
  json::value* at = nullptr;
  for (bool first = true; first || !path.empty(); first = false) {
    const size_t dot = path.find('.');
    const std::string_view name = path.substr(0, dot);
    path = dot == std::string_view::npos ? "" : path.substr(dot + 1);
    const bool is_index = !path.empty() && path.front() >= '0' && path.front() <= '9';
    if (!first && at->is_array()) {
      size_t index = 0;
      std::from_chars(name.data(), name.data() + name.size(), index);
      json::array& array = at->as_array();
      if (index >= array.size()) array.resize(index + 1, json::object());
      at = &array[index];
    } else {
      at = &(first ? *document : at->as_object())[name];
    }
    if (at->is_null() && !path.empty())
      *at = is_index ? json::value(json::array()) : json::object();
  }
  *at = std::move(value);
}

// Counts are integers in JSON. A double holds them exactly up to 2^53; larger ones lose their last
// digits.
json::value JsonOf(const MetricFamily& family, double value) {
  if (family.unit == "seconds") return value;
  if (std::isinf(value)) return UINT64_MAX;
  return static_cast<uint64_t>(value);
}

}  // namespace

void AddMetrics(const MetricsSnapshot& snapshot, std::string_view MetricRow::*place,
                json::object* document) {
  // Neither document has facts that are known without the loop.
  const LoopFacts no_loop;
  const ProcessFacts no_process;
  const MetricSource source{snapshot, no_loop, no_process};
  for (const MetricSection& section : MetricSections()) {
    for (const MetricRow& row : section.rows) {
      if ((row.*place).empty()) continue;
      MetricFamilies one;
      MetricFamily& family = one.Make(row.name, row.type, row.help);
      row.read(source, family);
      for (size_t i = 0; i < family.samples.size(); ++i) {
        const std::string path = PlaceOf(row.*place, family.samples[i], i);
        if (!path.empty()) SetMember(document, path, JsonOf(family, family.samples[i].value));
      }
    }
  }
}

std::string StatusJson(const MetricsSources& sources) {
  const MetricsSnapshot snapshot = TakeMetricsSnapshot(sources);
  json::array distrusted = DistrustedStatus(snapshot.gauges, sources);
  const size_t distrusted_unlisted = snapshot.gauges.distrusted.size() - distrusted.size();
  json::object status{
      {"schema", kStatusSchema},
      {"version", Version()},
      {"pid", ::getpid()},
      {"uptime_s", static_cast<double>(snapshot.uptime_ms) / 1000},
      {"state", snapshot.draining ? "draining" : "serving"},
      {"socket", sources.config->server.socket},
      {"devices", DevicesStatus(*sources.devices)},
      {"kernels", KernelsStatus(snapshot.attention)},
      {"disk", DiskStatus(*sources.disk, snapshot.gauges, snapshot.drives)},
      {"pools", PoolsStatus(snapshot)},
      {"pools_unlisted", snapshot.gauges.pools.size() - snapshot.pools.size()},
      {"distrusted", std::move(distrusted)},
      {"distrusted_unlisted", distrusted_unlisted},
      {"tenants", TenantsStatus(snapshot.gauges)},
      {"usage", UsageStatus(snapshot.gauges)},
      {"sessions", SessionsStatus(snapshot)},
      {"events", EventsStatus(snapshot.events)},
      {"kept_memory", KeptMemoryStatus(snapshot, sources.config->kept_memory.keep_for_ms)},
      {"restart", RestartStatus(snapshot)},
      {"stats", {{"server", RefusalsStatus(snapshot.server)}}},
  };
  AddMetrics(snapshot, &MetricRow::status, &status);
  status["device"] = status["devices"].at(0);
  return json::serialize(status);
}

}  // namespace kvtier
