// SPDX-License-Identifier: Apache-2.0
#include "daemon/metrics/metrics.h"

#include <array>
#include <bit>
#include <functional>
#include <limits>
#include <optional>

#include "base/result.h"

namespace kvtier {
namespace {

using enum MetricType;
using From = const MetricSource&;
using Family = MetricFamily&;

MetricLabels TierLabel(size_t tier) { return {{"tier", std::string(kTierNames[tier])}}; }

// One sample per tier.
template <typename Value>
void AddPerTier(Family family, const std::array<Value, kTierCount>& values) {
  for (size_t tier = 0; tier < kTierCount; ++tier) family.Add(TierLabel(tier), values[tier]);
}

// One sample per direction of copies, in the order of CopyLane.
template <typename Value>
void AddPerLane(Family family, const std::array<Value, kCopyLaneCount>& values) {
  for (int lane = 0; lane < kCopyLaneCount; ++lane) {
    family.Add({{"direction", std::string(CopyLaneName(static_cast<CopyLane>(lane)))}},
               values[lane]);
  }
}

// One sample per device, labelled with its position in the configuration.
template <typename Devices, typename ValueOf>
void AddPerDevice(Family family, const Devices& devices, const ValueOf& value_of) {
  for (size_t i = 0; i < devices.size(); ++i) {
    family.Add({{"device", std::to_string(i)}}, std::invoke(value_of, devices[i]));
  }
}

template <auto kMember>
void ReadPerDevice(From from, Family family) {
  AddPerDevice(family, from.snapshot.gauges.devices, kMember);
}

uint64_t CountNeighbours(const DeviceGauges& device) { return std::popcount(device.neighbours); }

// One sample per pair of devices.
void AddNeighbours(From from, Family family) {
  const std::vector<DeviceGauges>& devices = from.snapshot.gauges.devices;
  for (size_t pair = 0; pair < devices.size() * devices.size(); ++pair) {
    const size_t device = pair / devices.size(), other = pair % devices.size();
    if (device == other) continue;
    family.Add({{"device", std::to_string(device)}, {"neighbour", std::to_string(other)}},
               uint64_t{(devices[device].neighbours >> other) & 1});
  }
}

// One sample per tenant with quotas and tier.
template <typename ValueOf>
void AddPerTenant(Family family, From from, const ValueOf& value_of) {
  for (const TenantGauges& tenant : from.snapshot.gauges.tenants) {
    for (size_t tier = 0; tier < kTierCount; ++tier) {
      family.Add({{"tenant", tenant.quota.name}, {"tier", std::string(kTierNames[tier])}},
                 value_of(tenant, tier));
    }
  }
}

template <typename Histogram>
void AddHistogram(Family family, const MetricLabels& labels, const Histogram& histogram) {
  family.AddHistogram(labels, histogram.bounds_us(), histogram.counts(), histogram.sum_us());
}

struct PoolTotals {
  uint64_t free = 0, private_blocks = 0, referenced = 0, cached = 0, loading = 0, quarantined = 0;
  uint64_t in_use = 0, in_use_bytes = 0;
};

// Sums over the pools of one device, or of all devices if none is given.
PoolTotals TotalsOf(From from, std::optional<size_t> device = {}) {
  PoolTotals totals;
  for (const PoolGauges& pool : from.snapshot.gauges.pools) {
    if (device && pool.device.value != *device) continue;
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

// One sample per device, also for a device without any pool, so that the series exists from the
// start.
void AddPoolTotalPerDevice(Family family, From from, uint64_t PoolTotals::*total) {
  for (size_t i = 0; i < from.snapshot.gauges.devices.size(); ++i) {
    family.Add({{"device", std::to_string(i)}}, TotalsOf(from, i).*total);
  }
}

// Engines' memory on one device, or in host memory if none is given, that waits for an owner or has
// one.
uint64_t KeptBytes(From from, std::optional<size_t> device, bool waiting) {
  uint64_t bytes = 0;
  for (const KeptMemories::Entry& kept : from.snapshot.kept_memories) {
    const bool on_gpu = kept.memory == wire::RegionMemory::kVmm;
    const bool is_there = device ? on_gpu && kept.device == *device : !on_gpu;
    if (is_there && kept.waiting == waiting) bytes += kept.bytes;
  }
  return bytes;
}

void AddKeptBytes(Family family, From from, std::optional<size_t> device) {
  const std::string label = device ? std::to_string(*device) : "host";
  family.Add({{"device", label}, {"state", "owned"}}, KeptBytes(from, device, false))
      .Add({{"device", label}, {"state", "waiting"}}, KeptBytes(from, device, true));
}

double Seconds(uint64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e9; }

// A device that waits for its first pool lacks nothing.
uint64_t IsReady(const AttentionReport& report) {
  return report.state == AttentionState::kReady ||
         (report.state == AttentionState::kWaiting && !report.self_test.lacks_memory);
}

constexpr MetricRow kRequestRows[] = {
    {kCounter, "kvtier_asked_blocks",
     "Blocks asked for: those hit, those missed and those declined.", "stats.blocks.asked",
     "blocks.asked", ReadStat<&CacheStats::blocks, &CacheStats::Asked::asked>},
    {kCounter, "kvtier_hit_blocks", "Blocks asked for that a tier held.", "stats.blocks.{}",
     "blocks.{}", [](From from, Family family) { AddHits(family, from.snapshot.stats.blocks); }},
    {kCounter, "", "", "stats.blocks.miss", "blocks.missed",
     ReadStat<&CacheStats::blocks, &CacheStats::Asked::miss>},
    {kCounter, "kvtier_missed_blocks", "Blocks asked for that were not served, by why.",
     "stats.misses.{}", "",
     [](From from, Family family) {
       // The first, "none", is not a miss.
       AddByName(family, "reason", MissReasonName, from.snapshot.stats.misses_by_reason, 1);
     }},
    {kCounter, "kvtier_declined_blocks",
     "Cached blocks asked for that were not loaded, as the request wished, by why: no misses.",
     "stats.declined.{}", "",
     [](From from, Family family) {
       for (const MissReason reason :
            {MissReason::kSlowerThanComputing, MissReason::kAfterDeadline}) {
         family.Add({{"reason", std::string(MissReasonName(reason))}},
                    from.snapshot.stats.declined_by_reason[static_cast<size_t>(reason)]);
       }
     }},
    {kCounter, "kvtier_canary_blocks",
     "Cached blocks that were compared with the same blocks as an engine computed them, by what "
     "came of it.",
     "stats.canary.{}", "",
     [](From from, Family family) {
       AddByName(family, "outcome", CanaryOutcomeName, from.snapshot.stats.canaries);
     }},
    {kGauge, "kvtier_distrusted_identities",
     "Groups of models, by tenant, of which no block is served because engines differ over them.",
     "", "", [](From from, Family family) { family.Add(from.snapshot.gauges.distrusted.size()); }},
    {kCounter, "kvtier_declined_tokens", "Tokens of those blocks.", "", "tokens.declined",
     ReadStat<&CacheStats::tokens, &CacheStats::Asked::declined>},
    {kCounter, "kvtier_asked_tokens", "Tokens of the blocks asked for.", "", "tokens.asked",
     ReadStat<&CacheStats::tokens, &CacheStats::Asked::asked>},
    {kCounter, "kvtier_hit_tokens", "Tokens of the blocks that a tier held.", "", "tokens.{}",
     [](From from, Family family) { AddHits(family, from.snapshot.stats.tokens); }},
    {kCounter, "kvtier_missed_tokens", "Tokens of the blocks that were not served.", "",
     "tokens.missed", ReadStat<&CacheStats::tokens, &CacheStats::Asked::miss>},
    {kCounter, "kvtier_compulsory_missed_blocks",
     "Compulsory misses: estimate of the blocks asked for that even an infinite cache would have "
     "missed.",
     "", "compulsory_missed_blocks", ReadGauge<&CacheGauges::infinite_missed_blocks>},
    {kCounter, "kvtier_host_prefetched_blocks",
     "Blocks that were read from disk to host memory before an engine loaded them.",
     "stats.host_prefetched_blocks", "", ReadStat<&CacheStats::host_prefetched_blocks>},
    {kCounter, "kvtier_host_prefetched_bytes", "Bytes of these blocks' slots.",
     "stats.host_prefetched_bytes", "", ReadStat<&CacheStats::host_prefetched_bytes>},
    {kCounter, "kvtier_host_prefetched_unused_blocks",
     "Prefetched blocks that left host memory unused, or were not used within a minute.",
     "stats.host_prefetched_unused_blocks", "",
     ReadStat<&CacheStats::host_prefetched_unused_blocks>},
    {kCounter, "kvtier_cut_host_prefetches",
     "Requests to bring blocks to host memory that ended because none came for 5 s.",
     "stats.host_prefetches_cut", "", ReadStat<&CacheStats::host_prefetches_cut>},
    {kCounter, "kvtier_acquires", "Acquires received, one for each group of a model that is asked.",
     "stats.acquires", "", ReadStat<&CacheStats::acquires>},
    {kCounter, "kvtier_refused_acquires", "Acquires refused: pool exhausted or over a limit.",
     "stats.acquires_refused", "", ReadStat<&CacheStats::acquires_refused>},
    {kCounter, "kvtier_delayed_acquires", "Acquires that had to wait for blocks to become free.",
     "stats.acquires_waited", "", ReadStat<&CacheStats::acquires_waited>},
    {kCounter, "kvtier_load_counting_fallbacks",
     "Counting that took a slower way: loads told by events alone because all counters of their "
     "session were in use, and sessions' counter pages that a device cannot write to, for which a "
     "thread counts.",
     "stats.{loads_without_counter|unreachable_counter_pages}", "",
     [](From from, Family family) {
       family.Add({{"reason", "no_free_counter"}}, from.snapshot.stats.loads_without_counter)
           .Add({{"reason", "page_unreachable"}}, from.snapshot.unreachable_counter_pages);
     }},
    {kCounter, "kvtier_allocated_blocks", "Private blocks handed out.", "stats.allocated", "",
     ReadStat<&CacheStats::allocated>},
    {kCounter, "kvtier_committed_blocks", "Blocks committed, duplicates not counted.",
     "stats.commits", "", ReadStat<&CacheStats::commits>},
    {kCounter, "kvtier_duplicate_commits", "Commits of a block that was there already.",
     "stats.commit_duplicates", "", ReadStat<&CacheStats::commit_duplicates>},
};

constexpr MetricRow kTierRows[] = {
    {kGauge, "kvtier_tier_capacity_bytes", "Size of a tier: a hard cap.", "tiers.{}.capacity_bytes",
     "tiers.[].capacity_bytes",
     [](From from, Family family) {
       const CacheGauges& gauges = from.snapshot.gauges;
       AddPerTier<uint64_t>(family, {gauges.pool_capacity_bytes, gauges.host_capacity_bytes,
                                     gauges.disk_capacity_bytes});
     }},
    {kGauge, "kvtier_tier_used_bytes", "Bytes of a tier that are taken.", "tiers.{}.used_bytes",
     "tiers.[].used_bytes",
     [](From from, Family family) {
       const CacheGauges& gauges = from.snapshot.gauges;
       AddPerTier<uint64_t>(
           family, {TotalsOf(from).in_use_bytes, gauges.host_used_bytes, gauges.disk_used_bytes});
     }},
    // The pools' share of their devices' memory, with or without blocks in it.
    {kGauge, "", "", "tiers.pool.allocated_bytes", "", ReadGauge<&CacheGauges::pool_used_bytes>},
    {kGauge, "kvtier_tier_blocks", "Blocks that a tier holds.", "tiers.{}.blocks",
     "tiers.[].blocks",
     [](From from, Family family) {
       const CacheGauges& gauges = from.snapshot.gauges;
       AddPerTier<uint64_t>(family,
                            {TotalsOf(from).in_use, gauges.host_blocks, gauges.disk_blocks});
     }},
    {kGauge, "kvtier_pool_blocks", "Blocks of all pools, by state.", "", "",
     [](From from, Family family) {
       const PoolTotals totals = TotalsOf(from);
       family.Add({{"state", "free"}}, totals.free)
           .Add({{"state", "private"}}, totals.private_blocks)
           .Add({{"state", "referenced"}}, totals.referenced)
           .Add({{"state", "cached"}}, totals.cached)
           .Add({{"state", "loading"}}, totals.loading)
           .Add({{"state", "quarantined"}}, totals.quarantined);
     }},
    {kInfo, "kvtier_device", "The devices that have pools.", "", "",
     [](From from, Family family) {
       for (size_t i = 0; i < from.snapshot.devices.size(); ++i) {
         const MetricsSnapshot::Device& device = from.snapshot.devices[i];
         family.Add({{"device", std::to_string(i)},
                     {"kind", device.kind},
                     {"name", device.name},
                     {"uuid", device.uuid}},
                    1.0);
       }
     }},
    {kGauge, "kvtier_device_reads_neighbour",
     "1 if the device can read the other's memory, as the driver says; 0: blocks go by host.", "",
     "", AddNeighbours},
    {kGauge, "kvtier_device_neighbours", "How many other devices' memory a device can read.",
     "devices.[].neighbours", "", ReadPerDevice<&CountNeighbours>},
    {kGauge, "kvtier_device_pool_capacity_bytes",
     "The bytes that the pools of a device may take together.", "devices.[].pool_capacity_bytes",
     "devices.[].capacity_bytes", ReadPerDevice<&DeviceGauges::pool_capacity_bytes>},
    {kGauge, "kvtier_device_pool_allocated_bytes",
     "The bytes that the pools of a device have taken of it.", "devices.[].pool_used_bytes", "",
     ReadPerDevice<&DeviceGauges::pool_used_bytes>},
    {kGauge, "kvtier_device_pool_used_bytes", "Bytes of a device's pools that blocks are in.",
     "devices.[].used_bytes", "devices.[].used_bytes",
     [](From from, Family family) {
       AddPoolTotalPerDevice(family, from, &PoolTotals::in_use_bytes);
     }},
    {kGauge, "kvtier_device_pool_blocks", "Blocks that a device's pools hold.", "devices.[].blocks",
     "devices.[].blocks",
     [](From from, Family family) { AddPoolTotalPerDevice(family, from, &PoolTotals::in_use); }},
    {kGauge, "kvtier_host_ready_bytes", "Host memory that is allocated and usable.",
     "tiers.host.ready_bytes", "", ReadGauge<&CacheGauges::host_ready_bytes>},
    {kGauge, "kvtier_persisted_blocks", "Blocks that would survive a crash now.",
     "tiers.disk.persisted_blocks", "", ReadGauge<&CacheGauges::disk_persisted>},
    {kGauge, "kvtier_unpersisted_blocks", "Extended blocks that are not on disk yet.",
     "unpersisted_blocks", "", ReadGauge<&CacheGauges::unpersisted_blocks>},
    {kGauge, "kvtier_unusable_blocks",
     "Blocks right behind one that no tier holds: they cannot be hit, and are dropped with all "
     "that follows unless it comes back soon.",
     "unusable_blocks.{}", "",
     [](From from, Family family) { AddPerTier(family, from.snapshot.gauges.unusable_blocks); }},
    {kGauge, "kvtier_pinned_blocks", "Blocks pinned.", "pinned_blocks", "",
     ReadGauge<&CacheGauges::pinned_blocks>},
    {kCounter, "kvtier_pins_ended_for_space",
     "Blocks whose pins ended early: pins held more than half of a tier's slabs, and blocks of "
     "another size needed room.",
     "stats.pins_ended_for_space", "", ReadStat<&CacheStats::pins_ended_for_space>},
    {kGauge, "kvtier_known_blocks", "Blocks in the directory, in whatever tier.", "index.entries",
     "", ReadGauge<&CacheGauges::entries>},
    {kGauge, "kvtier_directory_bytes", "Memory of the directory and its orders.",
     "index.entry_bytes", "", ReadGauge<&CacheGauges::entry_bytes>},
    {kGauge, "kvtier_tenant_used_bytes", "Bytes of a tier that a tenant with quotas has.", "", "",
     [](From from, Family family) {
       AddPerTenant(family, from, [](const TenantGauges& tenant, size_t tier) {
         return tenant.used_bytes[tier];
       });
     }},
    {kGauge, "kvtier_tenant_cap_bytes",
     "The bytes that a tenant may have of a tier; infinite without a cap.", "", "",
     [](From from, Family family) {
       AddPerTenant(family, from, [](const TenantGauges& tenant, size_t tier) {
         const uint64_t cap = tenant.quota.tiers[tier].max_bytes;
         return OrInfinity(cap, cap > 0);
       });
     }},
    {kGauge, "kvtier_tenant_reserved_bytes", "The bytes of a tier that are kept for a tenant.", "",
     "",
     [](From from, Family family) {
       AddPerTenant(family, from, [](const TenantGauges& tenant, size_t tier) {
         return tenant.quota.tiers[tier].reserved_bytes;
       });
     }},
    {kCounter, "kvtier_tenant_byte_seconds",
     "Bytes of a tier that a tenant has had, times the seconds that it had them.", "", "",
     [](From from, Family family) {
       for (const TenantUsage& usage : from.snapshot.gauges.usage) {
         for (size_t tier = 0; tier < kTierCount; ++tier) {
           family.Add({{"tenant", usage.tenant}, {"tier", std::string(kTierNames[tier])}},
                      usage.byte_seconds[tier]);
         }
       }
     }},
    {kGauge, "kvtier_tenant_pinned_bytes", "Bytes of a tenant's pinned blocks, each counted once.",
     "", "",
     [](From from, Family family) {
       for (const TenantUsage& usage : from.snapshot.gauges.usage) {
         family.Add({{"tenant", usage.tenant}}, usage.pinned_bytes);
       }
     }},
    {kCounter, "kvtier_tenant_pins", "Blocks that a tenant asked to be pinned, by the answer.", "",
     "",
     [](From from, Family family) {
       for (const TenantUsage& usage : from.snapshot.gauges.usage) {
         for (int i = 0; i < kPinOutcomeCount; ++i) {
           family.Add({{"tenant", usage.tenant},
                       {"outcome", std::string(PinOutcomeName(static_cast<PinOutcome>(i)))}},
                      usage.pins[i]);
         }
       }
     }},
    {kCounter, "kvtier_dropped_blocks",
     "Copies of blocks that left a tier or never reached it, by why.", "stats.drops.{}.{}", "",
     [](From from, Family family) {
       for (size_t tier = 0; tier < kTierCount; ++tier) {
         for (int i = 0; i < kDropReasonCount; ++i) {
           family.Add({{"tier", std::string(kTierNames[tier])},
                       {"reason", std::string(DropReasonName(static_cast<DropReason>(i)))}},
                      from.snapshot.stats.drops[tier][i]);
         }
       }
     }},
    {kHistogram, "kvtier_residence_seconds",
     "How long blocks were in a tier when they left it; on disk, since their commit.", "", "",
     [](From from, Family family) {
       for (size_t tier = 0; tier < kTierCount; ++tier) {
         AddHistogram(family, TierLabel(tier), from.snapshot.stats.residence[tier]);
       }
     }},
    {kHistogram, "kvtier_reuse_gap_seconds", "Time between one use of a block and the next.", "",
     "", [](From from, Family family) { AddHistogram(family, {}, from.snapshot.stats.reuse_gap); }},
};

constexpr MetricRow kMovementRows[] = {
    {kCounter, "kvtier_copied_blocks", "Blocks copied between tiers, pools and regions.",
     "stats.{offload|onload|disk_write|disk_read|neighbour}_blocks", "",
     [](From from, Family family) {
       const CacheSums& stats = from.snapshot.stats;
       AddPerLane<uint64_t>(family,
                            {stats.offload_blocks, stats.onload_blocks, stats.disk_write_blocks,
                             stats.disk_read_blocks, stats.neighbour_blocks});
     }},
    {kCounter, "kvtier_copied_bytes", "Bytes copied between tiers, pools; the disk's with headers.",
     "stats.{offload|onload|disk_write|disk_read|neighbour}_bytes", "",
     [](From from, Family family) {
       const CacheSums& stats = from.snapshot.stats;
       AddPerLane<uint64_t>(family,
                            {stats.offload_bytes, stats.onload_bytes, stats.disk_write_bytes,
                             stats.disk_read_bytes, stats.neighbour_bytes});
     }},
    {kCounter, "kvtier_copying_seconds",
     "Time in which any such copy was under way: bytes by seconds is the throughput reached.", "",
     "",
     [](From from, Family family) {
       std::array<double, kCopyLaneCount> seconds{};
       for (int lane = 0; lane < kCopyLaneCount; ++lane) {
         seconds[lane] = static_cast<double>(from.snapshot.stats.lanes[lane].busy_ms()) / 1e3;
       }
       AddPerLane(family, seconds);
     }},
    {kGauge, "kvtier_queued_blocks", "Blocks that wait for their copy to begin.", "", "",
     [](From from, Family family) {
       const CacheGauges& gauges = from.snapshot.gauges;
       AddPerLane<uint64_t>(
           family, {gauges.offloads_queued, gauges.onload_copies_queued, gauges.disk_writes_queued,
                    gauges.disk_reads_queued, gauges.neighbour_copies_queued});
     }},
    {kGauge, "kvtier_load_bytes_per_second",
     "The rate of reads from disk and from the cold store, as last measured; 0 before.", "", "",
     [](From from, Family family) {
       const CacheGauges& gauges = from.snapshot.gauges;
       family.Add({{"tier", "disk"}}, gauges.disk_read_bytes_per_s)
           .Add({{"tier", "cold"}}, gauges.cold_read_bytes_per_s);
     }},
    {kGauge, "kvtier_device_load_bytes_per_second",
     "The rate of copies from host memory to a device's pools, as last measured; 0 before.", "", "",
     ReadPerDevice<&DeviceGauges::load_bytes_per_s>},
    {kCounter, "kvtier_neighbour_fallbacks",
     "Blocks that did not come from another pool or engine, as begun, but by host or not at all.",
     "stats.neighbour_fallbacks", "", ReadStat<&CacheStats::neighbour_fallbacks>},
    {kGauge, "kvtier_waiting_acquires", "Acquires that wait for blocks to become free.",
     "in_flight.acquires_waiting", "", ReadGauge<&CacheGauges::acquires_waiting>},
    {kGauge, "kvtier_regions", "Memory that engines lend to the daemon and manage themselves.",
     "regions.open", "", ReadGauge<&CacheGauges::regions>},
    {kGauge, "kvtier_loading_blocks", "Blocks on their way to a pool, from host or from disk.",
     "in_flight.loads", "", ReadGauge<&CacheGauges::loads_in_flight>},
    // Operations that have begun, by direction; loads are counted as a whole above.
    {kGauge, "", "", "in_flight.{offloads||disk_writes|disk_reads|}", "",
     [](From from, Family family) {
       const CacheGauges& gauges = from.snapshot.gauges;
       AddPerLane<uint64_t>(family, {gauges.offloads_in_flight, 0, gauges.disk_writes_in_flight,
                                     gauges.disk_reads_in_flight, 0});
     }},
};

constexpr MetricRow kAttentionRows[] = {
    {kGauge, "kvtier_attention_ready",
     "1 if attention is computed for clients on every device: the kernels passed their test, or "
     "the device waits for its first pool.",
     "", "", [](From from, Family family) { family.Add(IsReady(from.snapshot.attention.All())); }},
    {kCounter, "kvtier_attention_calls", "Calls of attention computed for clients.",
     "kernels.calls", "",
     [](From from, Family family) { family.Add(from.snapshot.attention.All().calls); }},
    {kCounter, "kvtier_attention_tokens", "Query tokens of those calls.", "kernels.query_tokens",
     "", [](From from, Family family) { family.Add(from.snapshot.attention.All().query_tokens); }},
    {kCounter, "kvtier_attention_failures", "Calls given up: cancelled, or the device failed.",
     "kernels.failures", "",
     [](From from, Family family) { family.Add(from.snapshot.attention.All().failures); }},
    {kGauge, "kvtier_attention_waiting_calls", "Calls that wait or are being computed.",
     "kernels.in_flight", "",
     [](From from, Family family) { family.Add(from.snapshot.attention.All().in_flight); }},
    {kGauge, "kvtier_workspace_bytes", "Memory shared with clients for queries and results.",
     "kernels.workspace_bytes", "",
     Read<&MetricsSnapshot::attention, &AttentionReports::workspace_bytes>},
    {kGauge, "kvtier_device_attention_ready", "1 if attention is computed on a device.", "", "",
     [](From from, Family family) {
       AddPerDevice(family, from.snapshot.attention.devices, IsReady);
     }},
    {kCounter, "kvtier_device_attention_calls", "Calls of attention computed on a device.",
     "kernels.devices.[].calls", "",
     [](From from, Family family) {
       AddPerDevice(family, from.snapshot.attention.devices, &AttentionReport::calls);
     }},
    {kCounter, "kvtier_device_attention_busy_seconds", "The time to compute them.",
     "kernels.devices.[].busy_seconds", "",
     [](From from, Family family) {
       AddPerDevice(family, from.snapshot.attention.devices,
                    [](const AttentionReport& report) { return Seconds(report.busy_ns); });
     }},
};

constexpr MetricRow kDaemonRows[] = {
    {kInfo, "kvtier_build", "The version that runs.", "", "",
     [](From, Family family) {
       family.Add({{"version", std::string(Version())}}, 1.0);
     }},
    {kGauge, "kvtier_draining", "1 while the daemon is ending, else 0.", "", "",
     Read<&MetricsSnapshot::draining>},
    {kGauge, "kvtier_sessions", "Sessions open.", "sessions.count", "sessions.count",
     Read<&MetricsSnapshot::session_count>},
    {kGauge, "kvtier_quarantined_sessions",
     "Ended sessions whose processes live on and keep private blocks from use.",
     "sessions.quarantined", "", Read<&MetricsSnapshot::quarantined_sessions>},
    {kGauge, "kvtier_kept_memory_bytes",
     "Memory of engines that outlives them, by whether an engine uses it or it waits for one.", "",
     "",
     [](From from, Family family) {
       AddKeptBytes(family, from, std::nullopt);
       for (size_t i = 0; i < from.snapshot.devices.size(); ++i) {
         if (from.snapshot.devices[i].kind == "cuda") AddKeptBytes(family, from, i);
       }
     }},
    {kCounter, "kvtier_kept_memory",
     "The fate of the memory of engines: kept for one, taken over by the next, given back "
     "because none came in time or on request; and requests that were refused.",
     "kept_memory.events.{}", "",
     [](From from, Family family) {
       const KeptMemories::Counters& events = from.snapshot.kept_memory_events;
       family.Add({{"event", "kept"}}, events.kept)
           .Add({{"event", "adopted"}}, events.adopted)
           .Add({{"event", "expired"}}, events.expired)
           .Add({{"event", "released"}}, events.released)
           .Add({{"event", "refused"}}, events.refused);
     }},
    {kGauge, "kvtier_references", "References that sessions hold to blocks.", "references", "",
     ReadGauge<&CacheGauges::references>},
    {kCounter, "kvtier_connections", "Connections to the clients' socket.",
     "stats.server.connections", "", Read<&MetricsSnapshot::server, &ServerCounters::connections>},
    {kCounter, "kvtier_opened_sessions", "Connections that said hello.", "stats.server.sessions",
     "", Read<&MetricsSnapshot::server, &ServerCounters::sessions>},
    {kCounter, "kvtier_requests", "Requests of clients.", "stats.server.requests", "",
     Read<&MetricsSnapshot::server, &ServerCounters::requests>},
    {kCounter, "kvtier_refusals", "Connections and requests refused, by kind of error.", "", "",
     [](From from, Family family) {
       for (size_t i = 0; i < kErrorCodeCount; ++i) {
         family.Add({{"code", std::string(ErrorCodeName(static_cast<ErrorCode>(i + 1)))}},
                    from.snapshot.server.refusals_by_code[i]);
       }
     }},
    {kHistogram, "kvtier_loop_delay_seconds",
     "How late the event loop's timer of 100 ms was: what one event may have cost.", "", "",
     [](From from, Family family) { AddHistogram(family, {}, from.snapshot.loop_delays); }},
    {kHistogram, "kvtier_loop_event_seconds",
     "How long the event loop spent on one event; no other client is served meanwhile.", "", "",
     [](From from, Family family) { AddHistogram(family, {}, from.snapshot.event_times); }},
    {kGauge, "kvtier_loop_silence_seconds",
     "Time since the event loop's last sign of life; told also while it hangs.", "", "",
     [](From from, Family family) { family.Add(from.loop.silent_seconds); }},
    {kGauge, "kvtier_watchdog_seconds",
     "Silence after which the supervisor ends the daemon; 0 without supervisor.", "", "",
     [](From from, Family family) { family.Add(from.loop.watchdog_seconds); }},
    {kGauge, "kvtier_snapshot_seconds", "Time that this page took of the event loop.", "", "",
     [](From from, Family family) {
       family.Add(static_cast<double>(from.snapshot.taken_in_us) / 1e6);
     }},
    {kCounter, "process_cpu_seconds", "CPU time of the process, user and system.", "", "",
     ReadProcess<&ProcessFacts::cpu_seconds>},
    {kGauge, "process_resident_memory_bytes", "Resident memory, pools and arena included.", "", "",
     ReadProcess<&ProcessFacts::resident_bytes>},
    {kGauge, "process_open_fds", "Open file descriptors.", "", "",
     ReadProcess<&ProcessFacts::open_descriptors>},
    {kGauge, "process_start_time_seconds", "Start of the process, Unix time.", "", "",
     ReadProcess<&ProcessFacts::start_time_seconds>},
    {kCounter, "kvtier_storage_written_bytes",
     "Bytes that the process wrote to storage: blocks, headers, index and its compactions. The "
     "drive's own wear is a multiple of this.",
     "", "", ReadProcess<&ProcessFacts::written_bytes>},
};

}  // namespace

double OrInfinity(uint64_t value, bool limited) {
  return limited ? static_cast<double>(value) : std::numeric_limits<double>::infinity();
}

std::span<const MetricSection> MetricSections() {
  static const std::array kSections = {
      MetricSection{"Requests", kRequestRows},
      MetricSection{"Models", ModelMetricRows()},
      MetricSection{"Tiers", kTierRows},
      MetricSection{"Movement", kMovementRows},
      MetricSection{"The disk", DiskMetricRows()},
      MetricSection{"Attention", kAttentionRows},
      MetricSection{"Events", EventMetricRows()},
      MetricSection{"The cold tier", ColdMetricRows()},
      MetricSection{"Restarts", RestartMetricRows()},
      MetricSection{"The daemon", kDaemonRows},
  };
  return kSections;
}

MetricFamilies MetricsOf(const MetricsSnapshot& snapshot, const LoopFacts& loop,
                         const ProcessFacts& process) {
  const MetricSource source{snapshot, loop, process};
  MetricFamilies families;
  for (const MetricSection& section : MetricSections()) {
    for (const MetricRow& row : section.rows) {
      if (!row.name.empty()) row.read(source, families.Make(row.name, row.type, row.help));
    }
  }
  return families;
}

}  // namespace kvtier
