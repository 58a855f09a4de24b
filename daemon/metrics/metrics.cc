// SPDX-License-Identifier: Apache-2.0
#include "daemon/metrics/metrics.h"

#include <array>
#include <limits>
#include <optional>

#include "base/result.h"
#include "daemon/runtime/version.h"

namespace kvtier {
namespace {

constexpr std::array<std::string_view, kTierCount> kTierNames = {"pool", "host", "disk"};

MetricLabels TierLabel(int tier) { return {{"tier", std::string(kTierNames[tier])}}; }

MetricLabels LaneLabel(int lane) {
  return {{"direction", std::string(CopyLaneName(static_cast<CopyLane>(lane)))}};
}

// One sample per tier.
template <typename Value>
void AddPerTier(MetricFamily& family, const std::array<Value, kTierCount>& values) {
  for (int tier = 0; tier < kTierCount; ++tier) family.Add(TierLabel(tier), values[tier]);
}

// One sample per direction of copies, in the order of CopyLane.
template <typename Value>
void AddPerLane(MetricFamily& family, const std::array<Value, kCopyLaneCount>& values) {
  for (int lane = 0; lane < kCopyLaneCount; ++lane) family.Add(LaneLabel(lane), values[lane]);
}

void AddHits(const CacheStats& stats, MetricFamilies* families) {
  families->Counter("kvtier_asked_blocks", "Blocks asked for: those hit and those missed.")
      .Add(stats.blocks.asked);
  AddPerTier(families->Counter("kvtier_hit_blocks", "Blocks asked for that a tier held."),
             stats.blocks.hit);
  MetricFamily& missed =
      families->Counter("kvtier_missed_blocks", "Blocks asked for that were not served, by why.");
  // The first is "none": not a miss.
  for (int i = 1; i < kMissReasonCount; ++i) {
    missed.Add({{"reason", std::string(MissReasonName(static_cast<MissReason>(i)))}},
               stats.misses_by_reason[i]);
  }
  families->Counter("kvtier_asked_tokens", "Tokens of the blocks asked for.")
      .Add(stats.tokens.asked);
  AddPerTier(families->Counter("kvtier_hit_tokens", "Tokens of the blocks that a tier held."),
             stats.tokens.hit);
  families->Counter("kvtier_missed_tokens", "Tokens of the blocks that were not served.")
      .Add(stats.tokens.miss);
}

void AddDrops(const CacheStats& stats, MetricFamilies* families) {
  MetricFamily& drops = families->Counter(
      "kvtier_dropped_blocks", "Copies of blocks that left a tier or never reached it, by why.");
  for (int tier = 0; tier < kTierCount; ++tier) {
    for (int i = 0; i < kDropReasonCount; ++i) {
      drops.Add({{"tier", std::string(kTierNames[tier])},
                 {"reason", std::string(DropReasonName(static_cast<DropReason>(i)))}},
                stats.drops[tier][i]);
    }
  }
}

MetricLabels TenantLabels(const TenantGauges& tenant, int tier) {
  return {{"tenant", tenant.quota.name}, {"tier", std::string(kTierNames[tier])}};
}

void AddTenants(const std::vector<TenantGauges>& tenants, MetricFamilies* families) {
  const auto add = [&](std::string name, std::string_view help, const auto& value) {
    MetricFamily& family = families->Gauge(std::move(name), help);
    for (const TenantGauges& tenant : tenants) {
      for (int tier = 0; tier < kTierCount; ++tier) {
        family.Add(TenantLabels(tenant, tier), value(tenant, static_cast<size_t>(tier)));
      }
    }
  };
  add("kvtier_tenant_used_bytes", "Bytes of a tier that a tenant with quotas has.",
      [](const TenantGauges& tenant, size_t tier) {
        return static_cast<double>(tenant.used_bytes[tier]);
      });
  add("kvtier_tenant_cap_bytes", "What a tenant may have of a tier; infinite without a cap.",
      [](const TenantGauges& tenant, size_t tier) {
        const uint64_t cap = tenant.quota.tiers[tier].max_bytes;
        return cap == 0 ? std::numeric_limits<double>::infinity() : static_cast<double>(cap);
      });
  add("kvtier_tenant_reserved_bytes", "What is kept of a tier for a tenant.",
      [](const TenantGauges& tenant, size_t tier) {
        return static_cast<double>(tenant.quota.tiers[tier].reserved_bytes);
      });
}

struct PoolTotals {
  uint64_t free = 0, private_blocks = 0, referenced = 0, cached = 0, loading = 0, quarantined = 0;
  uint64_t in_use = 0, in_use_bytes = 0;
};

// Of all devices if none is given.
PoolTotals TotalsOf(const std::vector<PoolGauges>& pools, std::optional<DeviceIndex> device = {}) {
  PoolTotals totals;
  for (const PoolGauges& pool : pools) {
    if (device && pool.device != *device) continue;
    totals.free += pool.free;
    totals.private_blocks += pool.private_blocks;
    totals.referenced += pool.referenced;
    totals.cached += pool.cached;
    totals.loading += pool.loading;
    totals.quarantined += pool.quarantined;
    totals.in_use += pool.blocks - pool.free;
    totals.in_use_bytes += (pool.blocks - pool.free) * pool.block_bytes;
  }
  return totals;
}

void AddPoolStates(const PoolTotals& totals, MetricFamilies* families) {
  families->Gauge("kvtier_pool_blocks", "Blocks of all pools, by state.")
      .Add({{"state", "free"}}, totals.free)
      .Add({{"state", "private"}}, totals.private_blocks)
      .Add({{"state", "referenced"}}, totals.referenced)
      .Add({{"state", "cached"}}, totals.cached)
      .Add({{"state", "loading"}}, totals.loading)
      .Add({{"state", "quarantined"}}, totals.quarantined);
}

// One series for each device, labelled with its position in the configuration.
void AddDevices(const MetricsSnapshot& snapshot, MetricFamilies* families) {
  MetricFamily& info = families->Info("kvtier_device", "The devices that have pools.");
  for (size_t i = 0; i < snapshot.devices.size(); ++i) {
    const MetricsSnapshot::Device& device = snapshot.devices[i];
    info.Add({{"device", std::to_string(i)},
              {"kind", device.kind},
              {"name", device.name},
              {"uuid", device.uuid}},
             1.0);
  }
  const std::vector<DeviceGauges>& devices = snapshot.gauges.devices;
  MetricFamily& capacity = families->Gauge("kvtier_device_pool_capacity_bytes",
                                           "What the pools of a device may take together.");
  for (size_t i = 0; i < devices.size(); ++i) {
    capacity.Add({{"device", std::to_string(i)}}, devices[i].pool_capacity_bytes);
  }
  MetricFamily& allocated = families->Gauge("kvtier_device_pool_allocated_bytes",
                                            "What the pools of a device have taken of it.");
  for (size_t i = 0; i < devices.size(); ++i) {
    allocated.Add({{"device", std::to_string(i)}}, devices[i].pool_used_bytes);
  }
  std::vector<PoolTotals> totals(devices.size());
  for (size_t i = 0; i < devices.size(); ++i) {
    totals[i] = TotalsOf(snapshot.gauges.pools, DeviceIndex(static_cast<uint32_t>(i)));
  }
  MetricFamily& used = families->Gauge("kvtier_device_pool_used_bytes",
                                       "Bytes of a device's pools that blocks are in.");
  for (size_t i = 0; i < devices.size(); ++i) {
    used.Add({{"device", std::to_string(i)}}, totals[i].in_use_bytes);
  }
  MetricFamily& blocks =
      families->Gauge("kvtier_device_pool_blocks", "Blocks that a device's pools hold.");
  for (size_t i = 0; i < devices.size(); ++i) {
    blocks.Add({{"device", std::to_string(i)}}, totals[i].in_use);
  }
}

// What is without limit is infinite, not a large number.
double OrInfinity(uint64_t value, bool limited) {
  return limited ? static_cast<double>(value) : std::numeric_limits<double>::infinity();
}

void AddWriteBudget(const MetricsSnapshot& snapshot, MetricFamilies* families) {
  const bool limited = snapshot.write_budget_bytes > 0;
  families->Gauge("kvtier_write_budget_bytes", "Bytes that may be written to disk per UTC day.")
      .Add(OrInfinity(snapshot.write_budget_bytes, limited));
  families
      ->Gauge("kvtier_write_budget_left_bytes", "Bytes that may still be written to disk today.")
      .Add(OrInfinity(snapshot.gauges.write_budget_left_bytes, limited));
  families->Gauge("kvtier_write_budget_spent_bytes", "Bytes written to disk today (UTC).")
      .Add(snapshot.gauges.write_budget_spent_bytes);
}

void AddQueues(const CacheGauges& gauges, MetricFamilies* families) {
  AddPerLane<uint64_t>(
      families->Gauge("kvtier_queued_blocks", "Blocks that wait for their copy to begin."),
      {gauges.offloads_queued, gauges.onload_copies_queued, gauges.disk_writes_queued,
       gauges.disk_reads_queued});
  families->Gauge("kvtier_waiting_acquires", "Acquires that wait for blocks to become free.")
      .Add(gauges.acquires_waiting);
  families->Gauge("kvtier_loading_blocks", "Blocks on their way to a pool, from host or from disk.")
      .Add(gauges.loads_in_flight);
}

void AddDiskHealth(const MetricsSnapshot& snapshot, MetricFamilies* families) {
  const CacheStats& stats = snapshot.stats;
  families->Counter("kvtier_disk_errors", "Operations that the disk or the index refused.")
      .Add({{"operation", "read"}}, stats.disk_read_errors)
      .Add({{"operation", "write"}}, stats.disk_write_errors)
      .Add({{"operation", "index"}}, stats.index_errors);
  families->Counter("kvtier_disk_read_retries", "Blocks read a second time after a bad first.")
      .Add(stats.disk_read_retries);
  families->Counter("kvtier_repairs", "Damage that was dealt with, by how.")
      .Add({{"repair", "second_read"}}, stats.disk_read_repaired)
      .Add({{"repair", "slot_quarantined"}}, stats.slots_quarantined)
      .Add({{"repair", "index_rebuilt"}}, uint64_t{snapshot.index_rebuilt});
  families->Counter("kvtier_index_batches", "Batches written to the index on disk.")
      .Add(stats.index_batches);
  families->Counter("kvtier_restored_blocks", "Blocks found on disk at the start.")
      .Add(stats.restored_blocks);
  families->Gauge("kvtier_index_load_seconds", "Time that reading the index took at the start.")
      .Add(snapshot.index_load_seconds);
  families
      ->Gauge("kvtier_disk_degraded",
              "1 if the disk tier is smaller than configured or refuses writes, else 0.")
      .Add(uint64_t{snapshot.disk_degraded});
}

void AddProcess(const ProcessFacts& process, MetricFamilies* families) {
  families->Counter("process_cpu_seconds", "CPU time of the process, user and system.")
      .Add(process.cpu_seconds);
  families->Gauge("process_resident_memory_bytes", "Resident memory, pools and arena included.")
      .Add(process.resident_bytes);
  families->Gauge("process_open_fds", "Open file descriptors.").Add(process.open_descriptors);
  families->Gauge("process_start_time_seconds", "Start of the process, Unix time.")
      .Add(process.start_time_seconds);
  families
      ->Counter("kvtier_storage_written_bytes",
                "Bytes that the process wrote to storage: blocks, headers, index and its "
                "compactions. The drive's own wear is a multiple of this.")
      .Add(process.written_bytes);
}

// One series for each device, labelled with its position in the configuration.
void AddAttentionPerDevice(const std::vector<AttentionReport>& devices, MetricFamilies* families) {
  const auto add = [&devices](MetricFamily& family, const auto& value) {
    for (size_t i = 0; i < devices.size(); ++i) {
      family.Add({{"device", std::to_string(i)}}, value(devices[i]));
    }
  };
  add(families->Gauge("kvtier_device_attention_ready", "1 if attention is computed on a device."),
      [](const AttentionReport& report) {
        return report.state == AttentionState::kReady ? 1.0 : 0.0;
      });
  add(families->Counter("kvtier_device_attention_calls",
                        "Calls of attention computed on a device."),
      [](const AttentionReport& report) { return report.calls; });
  add(families->Counter("kvtier_device_attention_busy_seconds", "What computing them took."),
      [](const AttentionReport& report) { return static_cast<double>(report.busy_ns) / 1e9; });
}

}  // namespace

void AddRequestMetrics(const MetricsSnapshot& snapshot, MetricFamilies* families) {
  const CacheStats& stats = snapshot.stats;
  AddHits(stats, families);
  families
      ->Counter("kvtier_endless_missed_blocks",
                "Estimate of the blocks asked for that even a cache without bounds would have "
                "missed.")
      .Add(snapshot.gauges.infinite_missed_blocks);
  families->Counter("kvtier_acquires", "Acquires received.").Add(stats.acquires);
  families->Counter("kvtier_refused_acquires", "Acquires refused: pool exhausted or over a limit.")
      .Add(stats.acquires_refused);
  families
      ->Counter("kvtier_delayed_acquires", "Acquires that had to wait for blocks to become free.")
      .Add(stats.acquires_waited);
  families
      ->Counter("kvtier_load_counting_fallbacks",
                "Counting that took a slower way: loads told by events alone because all counters "
                "of their session were in use, and sessions' counter pages that a device cannot "
                "write to, for which a thread counts.")
      .Add({{"reason", "no_free_counter"}}, stats.loads_without_counter)
      .Add({{"reason", "page_unreachable"}}, snapshot.unreachable_counter_pages);
  families->Counter("kvtier_allocated_blocks", "Private blocks handed out.").Add(stats.allocated);
  families->Counter("kvtier_committed_blocks", "Blocks committed, duplicates not counted.")
      .Add(stats.commits);
  families->Counter("kvtier_duplicate_commits", "Commits of a block that was there already.")
      .Add(stats.commit_duplicates);
}

void AddTierMetrics(const MetricsSnapshot& snapshot, MetricFamilies* families) {
  const CacheGauges& gauges = snapshot.gauges;
  const PoolTotals pools = TotalsOf(gauges.pools);
  AddPerTier<uint64_t>(
      families->Gauge("kvtier_tier_capacity_bytes", "Size of a tier: a hard cap."),
      {gauges.pool_capacity_bytes, gauges.host_capacity_bytes, gauges.disk_capacity_bytes});
  AddPerTier<uint64_t>(families->Gauge("kvtier_tier_used_bytes", "Bytes of a tier that are taken."),
                       {pools.in_use_bytes, gauges.host_used_bytes, gauges.disk_used_bytes});
  AddPerTier<uint64_t>(families->Gauge("kvtier_tier_blocks", "Blocks that a tier holds."),
                       {pools.in_use, gauges.host_blocks, gauges.disk_blocks});
  AddPoolStates(pools, families);
  families->Gauge("kvtier_pools", "Pools: tenants and models in use, by device.")
      .Add(uint64_t{gauges.pools.size()});
  AddDevices(snapshot, families);
  families->Gauge("kvtier_host_ready_bytes", "Host memory that is allocated and usable.")
      .Add(gauges.host_ready_bytes);
  families->Gauge("kvtier_persisted_blocks", "Blocks that would survive a crash now.")
      .Add(gauges.disk_persisted);
  families->Gauge("kvtier_unpersisted_blocks", "Extended blocks that are not on disk yet.")
      .Add(gauges.unpersisted_blocks);
  AddPerTier<uint64_t>(
      families->Gauge("kvtier_unusable_blocks",
                      "Blocks right behind one that no tier holds: they cannot be hit, and are "
                      "dropped with all that follows unless it comes back soon."),
      gauges.unusable_blocks);
  families->Gauge("kvtier_pinned_blocks", "Blocks pinned.").Add(gauges.pinned_blocks);
  families->Gauge("kvtier_known_blocks", "Blocks in the directory, in whatever tier.")
      .Add(gauges.entries);
  families->Gauge("kvtier_directory_bytes", "Memory of the directory and its orders.")
      .Add(gauges.entry_bytes);
  AddTenants(gauges.tenants, families);
  AddDrops(snapshot.stats, families);
  MetricFamily& residence = families->Histogram(
      "kvtier_residence_seconds",
      "How long blocks were in a tier when they left it; on disk, since their commit.");
  for (int tier = 0; tier < kTierCount; ++tier) {
    const BlockAgeHistogram& ages = snapshot.stats.residence[tier];
    residence.AddHistogram(TierLabel(tier), ages.bounds_us(), ages.counts(), ages.sum_us());
  }
  const BlockAgeHistogram& gaps = snapshot.stats.reuse_gap;
  families->Histogram("kvtier_reuse_gap_seconds", "Time between one use of a block and the next.")
      .AddHistogram({}, gaps.bounds_us(), gaps.counts(), gaps.sum_us());
}

void AddAttentionMetrics(const MetricsSnapshot& snapshot, MetricFamilies* families) {
  const AttentionReport report = snapshot.attention.All();
  families
      ->Gauge("kvtier_attention_ready",
              "1 if attention is computed for clients on every device: the kernels passed their "
              "test at the start.")
      .Add(report.state == AttentionState::kReady ? 1.0 : 0.0);
  families->Counter("kvtier_attention_calls", "Calls of attention computed for clients.")
      .Add(report.calls);
  families->Counter("kvtier_attention_tokens", "Query tokens of those calls.")
      .Add(report.query_tokens);
  families->Counter("kvtier_attention_failures", "Calls given up: cancelled, or the device failed.")
      .Add(report.failures);
  families->Counter("kvtier_attention_busy_seconds", "What computing them took.")
      .Add(static_cast<double>(report.busy_ns) / 1e9);
  families->Gauge("kvtier_attention_waiting_calls", "Calls that wait or are being computed.")
      .Add(report.in_flight);
  families->Gauge("kvtier_workspace_bytes", "Memory shared with clients for queries and results.")
      .Add(snapshot.attention.workspace_bytes);
  AddAttentionPerDevice(snapshot.attention.devices, families);
}

void AddMovementMetrics(const MetricsSnapshot& snapshot, MetricFamilies* families) {
  const CacheStats& stats = snapshot.stats;
  AddPerLane<uint64_t>(
      families->Counter("kvtier_copied_blocks", "Blocks copied between tiers."),
      {stats.offload_blocks, stats.onload_blocks, stats.disk_write_blocks, stats.disk_read_blocks});
  AddPerLane<uint64_t>(
      families->Counter("kvtier_copied_bytes",
                        "Bytes copied between tiers; the disk's with headers."),
      {stats.offload_bytes, stats.onload_bytes, stats.disk_write_bytes, stats.disk_read_bytes});
  MetricFamily& seconds = families->Counter(
      "kvtier_copying_seconds",
      "Time in which any such copy was under way: bytes by seconds is the throughput reached.");
  for (int lane = 0; lane < kCopyLaneCount; ++lane) {
    seconds.Add(LaneLabel(lane), static_cast<double>(stats.lanes[lane].busy_ms()) / 1e3);
  }
  AddQueues(snapshot.gauges, families);
  AddWriteBudget(snapshot, families);
  AddDiskHealth(snapshot, families);
}

void AddDaemonMetrics(const MetricsSnapshot& snapshot, const LoopFacts& loop,
                      const ProcessFacts& process, MetricFamilies* families) {
  families->Info("kvtier_build", "The version that runs.")
      .Add({{"version", std::string(Version())}}, 1.0);
  families->Gauge("kvtier_draining", "1 while the daemon is ending, else 0.")
      .Add(uint64_t{snapshot.draining});
  families->Gauge("kvtier_sessions", "Sessions open.").Add(uint64_t{snapshot.session_count});
  families
      ->Gauge("kvtier_quarantined_sessions",
              "Ended sessions whose processes live on and keep private blocks from use.")
      .Add(uint64_t{snapshot.quarantined_sessions});
  families->Gauge("kvtier_references", "References that sessions hold to blocks.")
      .Add(snapshot.gauges.references);
  families->Counter("kvtier_connections", "Connections to the clients' socket.")
      .Add(snapshot.server.connections);
  families->Counter("kvtier_opened_sessions", "Connections that said hello.")
      .Add(snapshot.server.sessions);
  families->Counter("kvtier_requests", "Requests of clients.").Add(snapshot.server.requests);
  MetricFamily& refusals =
      families->Counter("kvtier_refusals", "Connections and requests refused, by kind of error.");
  for (size_t i = 0; i < kErrorCodeCount; ++i) {
    const auto code = static_cast<ErrorCode>(i + 1);
    refusals.Add({{"code", std::string(ErrorCodeName(code))}}, snapshot.server.refusals_by_code[i]);
  }
  const LoopDelayHistogram& delays = snapshot.loop_delays;
  families
      ->Histogram("kvtier_loop_delay_seconds",
                  "How late the event loop's timer of 100 ms was: what one event may have cost.")
      .AddHistogram({}, delays.bounds_us(), delays.counts(), delays.sum_us());
  const LoopDelayHistogram& events = snapshot.event_times;
  families
      ->Histogram("kvtier_loop_event_seconds",
                  "How long the event loop spent on one event; meanwhile nobody else is served.")
      .AddHistogram({}, events.bounds_us(), events.counts(), events.sum_us());
  families
      ->Gauge("kvtier_loop_silence_seconds",
              "Time since the event loop's last sign of life; told also while it hangs.")
      .Add(loop.silent_seconds);
  families
      ->Gauge("kvtier_watchdog_seconds",
              "Silence after which the supervisor ends the daemon; 0 without supervisor.")
      .Add(loop.watchdog_seconds);
  families->Gauge("kvtier_snapshot_seconds", "Time that this page took of the event loop.")
      .Add(static_cast<double>(snapshot.taken_in_us) / 1e6);
  AddProcess(process, families);
}

MetricFamilies MetricsOf(const MetricsSnapshot& snapshot, const LoopFacts& loop,
                         const ProcessFacts& process) {
  MetricFamilies families;
  AddRequestMetrics(snapshot, &families);
  AddTierMetrics(snapshot, &families);
  AddMovementMetrics(snapshot, &families);
  AddAttentionMetrics(snapshot, &families);
  AddDaemonMetrics(snapshot, loop, process, &families);
  return families;
}

}  // namespace kvtier
