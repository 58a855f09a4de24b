// SPDX-License-Identifier: Apache-2.0
// Which metrics there are: what docs/METRICS.md lists and the page at /metrics holds.
//
// All series exist from the start: labels take values of fixed lists only, and the devices of the
// configuration; never names of models or clients, and of tenants those alone that have quotas.
#pragma once

#include <cstdint>

#include "daemon/metrics/metric_family.h"
#include "daemon/metrics/metrics_snapshot.h"
#include "daemon/metrics/process_facts.h"

namespace kvtier {

// What is known without the event loop, and while it hangs.
struct LoopFacts {
  double silent_seconds = 0;    // since the loop's last sign of life
  double watchdog_seconds = 0;  // after how long a supervisor ends the process; 0: no supervisor
};

[[nodiscard]] MetricFamilies MetricsOf(const MetricsSnapshot& snapshot, const LoopFacts& loop,
                                       const ProcessFacts& process);
// Its shares, by subject.
void AddRequestMetrics(const MetricsSnapshot& snapshot, MetricFamilies* families);
void AddTierMetrics(const MetricsSnapshot& snapshot, MetricFamilies* families);
void AddMovementMetrics(const MetricsSnapshot& snapshot, MetricFamilies* families);
void AddAttentionMetrics(const MetricsSnapshot& snapshot, MetricFamilies* families);
void AddDaemonMetrics(const MetricsSnapshot& snapshot, const LoopFacts& loop,
                      const ProcessFacts& process, MetricFamilies* families);

}  // namespace kvtier
