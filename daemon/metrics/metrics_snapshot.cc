// SPDX-License-Identifier: Apache-2.0
#include "daemon/metrics/metrics_snapshot.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>

#include "base/clock.h"
#include "daemon/config/config.h"
#include "daemon/resources/device_opening.h"
#include "daemon/resources/disk_tier.h"
#include "daemon/session/former_clients.h"
#include "daemon/session/server.h"
#include "tiers/cache.h"
#include "tiers/memory/mapped_arena.h"

namespace kvtier {

namespace {

std::vector<DriveSnapshot> DrivesOf(const DiskStartFacts& disk, const CacheGauges& gauges) {
  std::vector<DriveSnapshot> drives;
  for (const DriveFacts& facts : disk.drives) {
    DriveSnapshot drive{.directory = facts.directory,
                        .number = facts.number,
                        .state = "left_out",
                        .why = facts.why};
    const auto found = std::ranges::find_if(
        gauges.drives, [&](const DriveGauges& gauge) { return gauge.number == facts.number; });
    if (found != gauges.drives.end()) {
      drive.state = found->failed ? "failed" : "serving";
      drive.capacity_bytes = found->capacity_bytes;
      drive.used_bytes = found->used_bytes;
    }
    drives.push_back(std::move(drive));
  }
  return drives;
}

// A tenant's unused pools hide no other tenant's pool that holds something.
std::vector<MetricsSnapshot::Pool> PoolsListed(const MetricsSources& sources,
                                               std::vector<PoolGauges> pools) {
  if (pools.size() > MetricsSnapshot::kMaxListed) {
    const auto end = pools.begin() + MetricsSnapshot::kMaxListed;
    std::ranges::nth_element(pools, end, std::greater(), [](const PoolGauges& pool) {
      return std::pair((pool.blocks - pool.free) * pool.block_bytes, ~pool.id.value);
    });
    pools.erase(end, pools.end());
    std::ranges::sort(pools, {}, &PoolGauges::id);
  }
  std::vector<MetricsSnapshot::Pool> listed;
  for (const PoolGauges& pool : pools) {
    const NamespaceIdentity& identity = sources.cache->IdentityOf(pool.namespace_id);
    std::string model = identity.model.Hex();
    std::string name = sources.models->NameOf(identity.tenant, model);
    listed.push_back({pool, identity.tenant, std::move(model), std::move(name)});
  }
  return listed;
}

}  // namespace

MetricsSnapshot TakeMetricsSnapshot(const MetricsSources& sources) {
  const auto begun = std::chrono::steady_clock::now();
  MetricsSnapshot snapshot;
  snapshot.draining = sources.server->draining();
  snapshot.uptime_ms = sources.clock->MonotonicMs() - sources.started_ms;
  snapshot.stats = sources.cache->stats();
  snapshot.gauges = sources.cache->Gauges();
  snapshot.pools = PoolsListed(sources, snapshot.gauges.pools);
  snapshot.models = ModelUses(*sources.models, *sources.cache, snapshot.gauges);
  for (const OpenedDevice& opened : *sources.devices) {
    const DeviceInfo info = opened.device->info();
    snapshot.devices.push_back({info.kind, info.name, DeviceUuidText(info)});
  }
  snapshot.unreachable_counter_pages = UnreachableCounterPages(*sources.devices);
  snapshot.server = *sources.counters;
  if (sources.events != nullptr) snapshot.events = sources.events->Report();
  if (sources.attention != nullptr) snapshot.attention = sources.attention->Report();
  snapshot.session_count = sources.server->session_count();
  snapshot.quarantined_sessions = sources.server->quarantined_sessions();
  snapshot.sessions = sources.server->Sessions(MetricsSnapshot::kMaxListed);
  snapshot.kept_memories = sources.kept_memories->entries();
  snapshot.kept_memory_events = sources.kept_memories->counters();
  snapshot.holder = sources.descriptors->holder();
  snapshot.held = sources.descriptors->entries();
  snapshot.host_adoption = sources.arena->adoption();
  snapshot.pool_adoptions = sources.kept_pools->outcomes();
  snapshot.former_clients = sources.former_clients->waiting();
  snapshot.disk_enabled = sources.disk->enabled;
  snapshot.disk_degraded = sources.disk->degraded || snapshot.gauges.disk_degraded;
  snapshot.drives = DrivesOf(*sources.disk, snapshot.gauges);
  snapshot.index_rebuilt = sources.disk->index_rebuilt;
  snapshot.write_budget_bytes = sources.config->cache.disk_write_budget_bytes_per_day;
  snapshot.loop_delays = sources.loop_lag->delays();
  snapshot.event_times = sources.loop->event_times();
  snapshot.history = *sources.history;
  // The snapshot counts its own cost, since every scrape takes this from the clients' time.
  const auto taken = std::chrono::steady_clock::now() - begun;
  snapshot.taken_in_us = std::chrono::duration_cast<std::chrono::microseconds>(taken).count();
  return snapshot;
}

}  // namespace kvtier
