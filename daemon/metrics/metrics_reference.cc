// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/metrics/metrics.h"

namespace kvtier {
namespace {

constexpr std::string_view kIntroduction = R"(# Metrics

With `metrics.listen = "127.0.0.1:9400"` in the configuration, `kvtierd` answers these requests
there, to processes on this machine only:

| request | answer |
|---|---|
| `GET /metrics` | OpenMetrics 1.0 where the client accepts it, else the Prometheus text format 0.0.4 |
| `GET /` | a page for people: tiers, hits, misses, models, sessions, renewed every two seconds |
| `GET /status.json` | that page's data, schema `kvtier.live/1` |
| `GET /healthz` | for probes: 200 `ok`, or 503 if the event loop does not answer within a second |

```yaml
# prometheus.yml of the agent on each host, which sends on its samples
global:
  external_labels: {host: gpu-17}  # this host's name: every daemon is instance 127.0.0.1:9400
rule_files: [kvtier.rules.yml]
scrape_configs:
  - job_name: kvtier
    static_configs: [{targets: ["127.0.0.1:9400"]}]
```

A Prometheus that scrapes the hosts itself needs an address that it can reach, which has to be allowed
twice: in the configuration, and in the unit (`systemctl edit kvtierd`). Other machines get `/metrics` and
`/healthz` alone, without a password; `instance` then tells the hosts apart.

```toml
[server]
listen_beyond_loopback = true

[metrics]
listen = "0.0.0.0:9400"
```

```ini
[Service]
IPAddressAllow=10.0.0.0/8
```

```yaml
scrape_configs:
  - job_name: kvtier
    static_configs: [{targets: ["gpu-17:9400", "gpu-18:9400"]}]
```

`tools/monitoring/` (`/usr/share/doc/kvtierd/monitoring` where the package is installed) holds the alert rules
(what to do about each stands [below](#alerts)) and a dashboard for Grafana (`kvtier-dashboard.json`:
Dashboards, Import).

All series exist from the start, but for those of [models](#models) and of tenants without quotas, which begin
with a model's registration. Labels take values of fixed lists, and tenants; clients do not appear. The first
16 models of each tenant have series of their own, by name, which all ranks and revisions share; the rest is
one series without the label `model`. Readers of the page learn these names. Hits and misses sum up, in blocks
and in tokens: `asked` is `hit` over all tiers plus `missed` and `declined`. In the tables below a name that ends
in `_total` is a counter's, and the rest are gauges unless the name says otherwise; a label without values has
those of the last row that lists its values. The last column says where the
same figure stands in the JSON of `kvtierctl status`: {} is a label, [] a position, and of {a,b} each has its
own. Blocks of an acquire that has to load are counted when the load ends. A scrape copies counters and sizes
on the event loop and walks no blocks; the page is rendered on another thread, which goes on answering, with
old figures and a growing `kvtier_loop_silence_seconds`, should the loop hang.

Two counters say whether more space would help: the blocks missed, and the compulsory misses
(`kvtier_compulsory_missed_blocks_total`), which even an infinite cache would have had; what lies between them
are capacity misses: blocks that were here and are gone. The estimate samples hashes in the manner of
[SHARDS](https://www.usenix.org/conference/fast15/technical-sessions/presentation/waldspurger) and is exact
below 65,536 blocks.

This page is written by `kvtierd --print-metrics-reference`.
)";

constexpr std::string_view kAlerts = R"(
## Alerts

`tools/monitoring/kvtier.rules.yml`. The job is expected to be named `kvtier`.

### KvtierDown
Prometheus gets no answer. `systemctl status kvtierd` and the log's last lines say whether it ended,
and why; engines go on without a cache. Exit code 78 is the configuration's.

### KvtierHitRateFell
Half as many tokens hit as a day ago, under load. Look at the misses by reason: `unknown` without as
many `kvtier_compulsory_missed_blocks_total` means that blocks are forgotten too early (tiers too small,
time to live too short); with as many, that the requests or the cache salt have changed; anything else
names its own trouble.

### KvtierChecksumMismatch
A block's bytes differed from the written ones. Nothing wrong was served. On disk: run `kvtierctl verify`,
look at the drive's own health; a slot that failed is not used again before a restart.
`client_wrote_committed`: an engine writes to blocks that it has committed; find it by its tenant.

### KvtierDiskErrors
Reads, writes or the index failed. Writing pauses for ten seconds after each failure; blocks that
cannot be written live in memory only. Look at the kernel's log and at free space.

### KvtierDiskDegraded
For five minutes the disk tier has been smaller than configured, or has refused writes. Blocks committed
meanwhile live in memory only. The log says why: `disk.degraded`, `disk.unavailable`, `disk.writes_paused`.

### KvtierDriveLost
A drive of the disk tier failed, or the start went without its directory. Its blocks are misses; the other drives go on.
`kvtierctl status` names it, and the log says why: `disk.drive_failed`, `disk.drive_left_out`. Look at the
kernel's log and the mount, then restart: blocks on the drive are found again, unless it failed while the daemon ran.

### KvtierDistrusted
Engines computed different KV for the same blocks of a tenant and model, so that none of its blocks is served:
[canaries](IDENTITY.md#canaries). `canary.differs` in the log names the engines.

### KvtierAttentionLost
Attention was computed for clients within the last day and is not any more: `kernels.failed` in the log says
why, `kvtierctl status` names the case. A GPU that fails needs `dmesg` (Xid errors); clients with kernels of
their own, and the cache, are not touched by it.

### KvtierRestarts
The daemon has started more than three times within an hour. Pools and host memory are there again as a rule
(`host.not_adopted` and `pool.not_adopted` tell where not). The journal says how it ended: a watchdog, a lost GPU, want
of memory.

### KvtierPoolExhausted
Acquires are refused, or unsaved blocks dropped, for want of pool blocks. Either too many are held
(`kvtier_pool_blocks`, states `referenced`, `private`, `quarantined`) and the pool is too small for the
engines' concurrency, or offloading is too slow: raise `cache.pool_clean_fraction`.

### KvtierEvictionThrash
A fifth of the blocks asked for was here before and has been evicted. Give the tiers more space, beginning
with the one whose `kvtier_residence_seconds` is shortest.

### KvtierWriteBudgetSpent
`disk.write_budget_per_day` is used up to 90 %. Blocks that find none left are not kept on disk until
00:00 UTC. Raise the budget if the drive's endurance allows, or `retention.persist_after`.

### KvtierColdAway
The store that hosts share has not been asked for five minutes, for it was late or did not answer, while blocks
were asked for that it might have. `cold.away` in the log has the error; look at the store and the network.

### KvtierWatchdogNear
The event loop was silent for half of the time after which systemd ends the daemon, or for more than
five seconds. The log names its last work; a stack of all threads helps (`gdb -p`).
)";

// A snapshot with one of everything that rows make a series for: the rows add samples to it as to
// any other, and so the document shows every label.
MetricsSnapshot OneOfEach() {
  MetricsSnapshot snapshot;
  snapshot.devices = {{.kind = "host"}};
  snapshot.gauges.devices.resize(2);  // a pair
  snapshot.attention.devices.emplace_back();
  // For its labels.
  snapshot.gauges.tenants.push_back({.quota = {.name = "its name"}});
  snapshot.gauges.usage.push_back({.tenant = "its name"});
  snapshot.models.push_back({.label = {"its name", "its name, or none"}});
  return snapshot;
}

// Their values are those of the machine's devices.
constexpr std::array<std::string_view, 5> kLabelsOfTheMachine = {"device", "kind", "name",
                                                                 "neighbour", "uuid"};

// By label, as the last row that has it lists them.
using LabelValues = std::map<std::string_view, std::vector<std::string>>;

// "`tier`: pool, host, disk; `reason`: ...". Leaves out values that `listed` has, and adds to it.
std::string LabelsOf(const MetricFamily& family, LabelValues* listed) {
  std::vector<std::pair<std::string_view, std::vector<std::string>>> labels;
  for (const MetricSample& sample : family.samples) {
    for (const auto& [name, value] : sample.labels) {
      if (name == "le" || name == "version") continue;
      auto found = std::ranges::find(labels, name, [](const auto& label) { return label.first; });
      if (found == labels.end()) found = labels.insert(labels.end(), {name, {}});
      if (std::ranges::find(kLabelsOfTheMachine, name) != kLabelsOfTheMachine.end()) continue;
      if (std::ranges::find(found->second, value) == found->second.end()) {
        found->second.push_back(value);
      }
    }
  }
  std::string text;
  for (auto& [name, values] : labels) {
    text += fmt::format("{}`{}`", text.empty() ? "" : "; ", name);
    if ((*listed)[name] == values) continue;
    text += fmt::format(": {}", fmt::join(values, ", "));
    (*listed)[name] = std::move(values);
  }
  return text;
}

// "`stats.misses.{}`"; the bars of its alternatives would end the table's cell.
std::string StatusPlace(std::string_view place) {
  if (place.empty()) return "";
  std::string text;
  for (const char c : place) text += c == '|' ? "," : std::string(1, c);
  return fmt::format("`{}`", text);
}

}  // namespace

std::string MetricsReferenceMarkdown() {
  const MetricsSnapshot snapshot = OneOfEach();
  const LoopFacts loop;
  const ProcessFacts process;
  std::string text(kIntroduction);
  LabelValues listed;
  for (const MetricSection& section : MetricSections()) {
    text += fmt::format(
        "\n## {}\n\n| metric | labels | meaning | in `kvtierctl status` |\n|---|---|---|---|\n",
        section.title);
    for (const MetricRow& row : section.rows) {
      if (row.name.empty()) continue;
      MetricFamilies one;
      MetricFamily& family = one.Make(row.name, row.type, row.help);
      row.read({snapshot, loop, process}, family);
      const bool named = family.type == MetricType::kCounter || family.type == MetricType::kGauge;
      text += fmt::format("| `{}{}`{} | {} | {} | {} |\n", family.name, family.Suffix(),
                          named ? "" : fmt::format(" ({})", MetricTypeName(family.type)),
                          LabelsOf(family, &listed), family.help, StatusPlace(row.status));
    }
  }
  text += kAlerts;
  return text;
}

}  // namespace kvtier
