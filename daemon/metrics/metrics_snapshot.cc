// SPDX-License-Identifier: Apache-2.0
#include "daemon/metrics/metrics_snapshot.h"

#include <chrono>

#include "base/clock.h"
#include "daemon/config/config.h"
#include "daemon/resources/device_opening.h"
#include "daemon/resources/disk_tier.h"
#include "daemon/session/former_clients.h"
#include "daemon/session/server.h"
#include "tiers/cache.h"

namespace kvtier {

MetricsSnapshot TakeMetricsSnapshot(const ServiceContext& context) {
  const auto begun = std::chrono::steady_clock::now();
  MetricsSnapshot snapshot;
  snapshot.draining = context.server->draining();
  snapshot.uptime_ms = context.clock->MonotonicMs() - context.started_ms;
  snapshot.stats = context.cache->stats();
  snapshot.gauges = context.cache->Gauges();
  for (const PoolGauges& pool : snapshot.gauges.pools) {
    snapshot.model_names.push_back(context.models->NameOf(pool.tenant, pool.model_hex));
  }
  snapshot.models = ModelUses(*context.models, *context.cache, snapshot.gauges);
  for (const OpenedDevice& opened : *context.devices) {
    const DeviceInfo info = opened.device->info();
    snapshot.devices.push_back({info.kind, info.name, DeviceUuidText(info)});
  }
  snapshot.unreachable_counter_pages = UnreachableCounterPages(*context.devices);
  snapshot.server = *context.counters;
  if (context.events != nullptr) snapshot.events = context.events->Report();
  if (context.attention != nullptr) snapshot.attention = context.attention->Report();
  snapshot.session_count = context.server->session_count();
  snapshot.quarantined_sessions = context.server->quarantined_sessions();
  snapshot.sessions = context.server->Sessions(MetricsSnapshot::kMaxSessionsListed);
  snapshot.kept_memories = context.kept_memories->entries();
  snapshot.kept_memory_events = context.kept_memories->counters();
  if (context.descriptors != nullptr) {
    snapshot.holder = context.descriptors->holder();
    snapshot.held = context.descriptors->entries();
  }
  if (context.host_adoption != nullptr) snapshot.host_adoption = *context.host_adoption;
  if (context.kept_pools != nullptr) snapshot.pool_adoptions = context.kept_pools->outcomes();
  if (context.former_clients != nullptr) {
    snapshot.former_clients = context.former_clients->waiting();
  }
  snapshot.disk_enabled = context.disk->enabled;
  snapshot.disk_degraded = context.disk->degraded || snapshot.gauges.disk_degraded;
  snapshot.index_rebuilt = context.disk->index_rebuilt;
  snapshot.index_load_seconds = context.disk->index_seconds;
  snapshot.write_budget_bytes = context.config->cache.disk_write_budget_bytes_per_day;
  snapshot.loop_delays = context.loop_lag->delays();
  snapshot.event_times = context.loop->event_times();
  snapshot.history = *context.history;
  // The snapshot counts its own cost, since every scrape takes this from the clients' time.
  const auto taken = std::chrono::steady_clock::now() - begun;
  snapshot.taken_in_us = std::chrono::duration_cast<std::chrono::microseconds>(taken).count();
  return snapshot;
}

}  // namespace kvtier
