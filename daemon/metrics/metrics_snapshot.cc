// SPDX-License-Identifier: Apache-2.0
#include "daemon/metrics/metrics_snapshot.h"

#include <chrono>

namespace kvtier {

MetricsSnapshot TakeMetricsSnapshot(const StatusSource& source, const EventLoop& loop,
                                    const LoopPulse& pulse, const HitHistory& history) {
  const auto begun = std::chrono::steady_clock::now();
  MetricsSnapshot snapshot;
  snapshot.draining = source.draining;
  snapshot.uptime_ms = source.uptime_ms;
  snapshot.stats = source.cache->stats();
  snapshot.gauges = source.cache->Gauges();
  for (const PoolGauges& pool : snapshot.gauges.pools) {
    snapshot.model_names.push_back(source.server->models().NameOf(pool.tenant, pool.model_hex));
  }
  for (const OpenedDevice& opened : *source.devices) {
    const DeviceInfo info = opened.device->info();
    snapshot.devices.push_back({info.kind, info.name, DeviceUuidText(info)});
  }
  snapshot.unreachable_counter_pages = UnreachableCounterPages(*source.devices);
  snapshot.server = source.server->counters();
  if (source.attention != nullptr) snapshot.attention = source.attention->Report();
  snapshot.session_count = source.server->session_count();
  snapshot.quarantined_sessions = source.server->quarantined_sessions();
  snapshot.sessions = source.server->Sessions(MetricsSnapshot::kMaxSessionsListed);
  snapshot.disk_enabled = source.disk->enabled;
  snapshot.disk_degraded = source.disk->degraded || snapshot.gauges.disk_degraded;
  snapshot.index_rebuilt = source.disk->index_rebuilt;
  snapshot.index_load_seconds = source.disk->index_seconds;
  snapshot.write_budget_bytes = source.config->cache.disk_write_budget_bytes_per_day;
  snapshot.loop_delays = pulse.delays();
  snapshot.event_times = loop.event_times();
  snapshot.history = history;
  const auto taken = std::chrono::steady_clock::now() - begun;
  snapshot.taken_in_us = std::chrono::duration_cast<std::chrono::microseconds>(taken).count();
  return snapshot;
}

}  // namespace kvtier
