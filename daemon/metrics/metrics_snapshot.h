// SPDX-License-Identifier: Apache-2.0
// All that the metrics page and the live page tell of the daemon, copied on the event loop in
// constant time (sizes and counters, no walk over blocks), to be rendered elsewhere.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/attention/attention_service.h"
#include "daemon/metrics/hit_history.h"
#include "daemon/runtime/loop_lag.h"
#include "daemon/runtime/service_context.h"
#include "daemon/session/server_counters.h"
#include "daemon/session/session.h"
#include "tiers/types/cache_stats.h"

namespace kvtier {

struct MetricsSnapshot {
  // Sessions beyond these are counted, not listed.
  static constexpr size_t kMaxSessionsListed = 64;

  bool draining = false;
  int64_t uptime_ms = 0;
  CacheStats stats;
  CacheGauges gauges;
  std::vector<std::string> model_names;  // of gauges.pools
  struct Device {
    std::string kind, name, uuid;
  };
  std::vector<Device> devices;             // of gauges.devices
  uint64_t unreachable_counter_pages = 0;  // of all devices
  ServerCounters server;
  AttentionReports attention;
  size_t session_count = 0;
  size_t quarantined_sessions = 0;
  std::vector<Session::Summary> sessions;
  bool disk_enabled = false;
  bool disk_degraded = false;
  bool index_rebuilt = false;
  double index_load_seconds = 0;
  uint64_t write_budget_bytes = 0;  // a day; 0: no limit
  LoopDelayHistogram loop_delays{&kLoopDelayBoundsUs};
  LoopDelayHistogram event_times{&kLoopDelayBoundsUs};
  HitHistory history;
  // The event loop's time that it cost to take this snapshot.
  int64_t taken_in_us = 0;
};

// Event loop only.
[[nodiscard]] MetricsSnapshot TakeMetricsSnapshot(const ServiceContext& context);

}  // namespace kvtier
