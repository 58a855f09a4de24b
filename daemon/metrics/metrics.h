// SPDX-License-Identifier: Apache-2.0
// The one table of what can be counted and measured of the daemon: a row for each metric family,
// with its name, its help, where it stands in the JSON of `kvtierctl status` and of the live page,
// and how it is read. The page at /metrics, both JSON documents and docs/METRICS.md are made from
// it.
//
// All series exist from the start: labels take values of fixed lists only, the devices of the
// configuration, and tenants with quotas; never names of clients. Series of models and of other
// tenants begin with the first client that registers a model, and are limited in number
// (daemon/session/models.h, tiers/policy/usage_table.h).
#pragma once

#include <array>
#include <boost/json/fwd.hpp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "daemon/metrics/metrics_snapshot.h"
#include "daemon/metrics/metrics_text.h"
#include "daemon/runtime/process.h"

namespace kvtier {

// Facts that need no event loop, and so are known also while it hangs.
struct LoopFacts {
  double silent_seconds = 0;    // since the loop's last sign of life
  double watchdog_seconds = 0;  // after how long a supervisor ends the process; 0: no supervisor
};

// The source of all rows. Borrowed for one rendering.
struct MetricSource {
  const MetricsSnapshot& snapshot;
  const LoopFacts& loop;
  const ProcessFacts& process;
};

// One row of the table: one family on the page at /metrics, one or more members in JSON, or both.
// `read` adds the samples; it is pure, and must not depend on the order of rows.
struct MetricRow {
  MetricType type;
  std::string_view name;  // without the samples' suffixes; empty: in JSON only
  std::string_view help;  // one sentence
  // The samples' place in a JSON document, "stats.misses.{}"; empty: they have none. For each
  // sample, {} stands for the value of the next label, [] for its position in an array, and {a|b|c}
  // for the alternative that has its position; a sample whose alternative is empty is left out.
  std::string_view status;
  std::string_view live;
  void (*read)(const MetricSource& from, MetricFamily& family);
};

struct MetricSection {
  std::string_view title;  // in docs/METRICS.md
  std::span<const MetricRow> rows;
};

[[nodiscard]] std::span<const MetricSection> MetricSections();
// The rows of families that have sources of their own.
[[nodiscard]] std::span<const MetricRow> ColdMetricRows();
[[nodiscard]] std::span<const MetricRow> DiskMetricRows();
[[nodiscard]] std::span<const MetricRow> EventMetricRows();
[[nodiscard]] std::span<const MetricRow> ModelMetricRows();
[[nodiscard]] std::span<const MetricRow> RestartMetricRows();
// Blocks or tokens by the tier that had them; the cold store counts as one of its own.
void AddHits(MetricFamily& family, const CacheStats::Asked& asked);
// A limit that does not exist is infinite, not a large number: the ratio of use to limit is then 0.
[[nodiscard]] double OrInfinity(uint64_t value, bool limited);

// `read` of a row with one number, which the members lead to from the snapshot on.
template <auto... kMembers>
void Read(const MetricSource& from, MetricFamily& family) {
  const auto value = (from.snapshot.*....*kMembers);
  using Number = std::conditional_t<std::is_floating_point_v<decltype(value)>, double, uint64_t>;
  family.Add(Number{value});
}
template <auto... kMembers>
constexpr auto ReadStat = Read<&MetricsSnapshot::stats, kMembers...>;
template <auto... kMembers>
constexpr auto ReadGauge = Read<&MetricsSnapshot::gauges, kMembers...>;
template <auto kMember>
void ReadProcess(const MetricSource& from, MetricFamily& family) {
  family.Add(from.process.*kMember);
}

// One sample for each value of an enumeration, from `first` on, labelled with its name.
template <typename Enum, size_t kCount>
void AddByName(MetricFamily& family, std::string_view label, std::string_view (*name)(Enum),
               const std::array<uint64_t, kCount>& values, size_t first = 0) {
  for (size_t i = first; i < kCount; ++i) {
    family.Add({{label, std::string(name(static_cast<Enum>(i)))}}, values[i]);
  }
}

// The contents of the page at /metrics. Any thread.
[[nodiscard]] MetricFamilies MetricsOf(const MetricsSnapshot& snapshot, const LoopFacts& loop,
                                       const ProcessFacts& process);

// Adds every row that has a `place` (&MetricRow::status or &MetricRow::live) to `document`. Counts
// are integers, with UINT64_MAX for the lack of a limit. Any thread.
void AddMetrics(const MetricsSnapshot& snapshot, std::string_view MetricRow::*place,
                boost::json::object* document);

// The tables of docs/METRICS.md.
[[nodiscard]] std::string MetricsReferenceMarkdown();

}  // namespace kvtier
