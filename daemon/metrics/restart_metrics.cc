// SPDX-License-Identifier: Apache-2.0
// The rows of what outlives the daemon.
#include "daemon/metrics/metrics.h"

namespace kvtier {
namespace {

using enum MetricType;
using From = const MetricSource&;
using Family = MetricFamily&;

constexpr MetricRow kRestartRows[] = {
    {kGauge, "kvtier_restart_kept_bytes",
     "Memory that outlives the daemon for the next one, by who holds it; 0: it does not.",
     "restart.bytes.{}", "",
     [](From from, Family family) {
       uint64_t bytes = 0;
       for (const DescriptorStore::Entry& held : from.snapshot.held) bytes += held.bytes;
       for (const char* holder : {"systemd", "kvtier-keeper"}) {
         family.Add({{"holder", holder}}, from.snapshot.holder.name == holder ? bytes : 0);
       }
     }},
    {kCounter, "kvtier_adopted_blocks",
     "Blocks that an earlier daemon left in host memory, and that were verified and taken over.",
     "restart.adopted.blocks", "", ReadStat<&CacheStats::adopted_blocks>},
    {kCounter, "kvtier_adopted_bytes", "The same in bytes.", "restart.adopted.bytes", "",
     ReadStat<&CacheStats::adopted_bytes>},
    {kCounter, "kvtier_adoption_drops",
     "Slots that an earlier daemon left in host memory and that were not taken over.",
     "restart.adopted.drops.{}", "",
     [](From from, Family family) {
       AddByName(family, "reason", AdoptionDropName, from.snapshot.stats.adoption_drops);
     }},
    {kCounter, "kvtier_adopted_pool_blocks",
     "Blocks that an earlier daemon left in pools, and that were taken over.",
     "restart.adopted.pool_blocks", "", ReadStat<&CacheStats::adopted_pool_blocks>},
    {kCounter, "kvtier_adopted_pool_bytes", "The same in bytes.", "restart.adopted.pool_bytes", "",
     ReadStat<&CacheStats::adopted_pool_bytes>},
    {kCounter, "kvtier_pool_adoption_drops",
     "Blocks that an earlier daemon left in pools and that were not taken over.",
     "restart.adopted.pool_drops.{}", "",
     [](From from, Family family) {
       AddByName(family, "reason", AdoptionDropName, from.snapshot.stats.pool_adoption_drops);
     }},
    {kCounter, "kvtier_resumed_blocks",
     "Blocks that clients held in an earlier daemon's life and hold again.",
     "restart.resumed_blocks", "", ReadStat<&CacheStats::resumed_blocks>},
    {kCounter, "kvtier_resume_lost_blocks",
     "Blocks that they named and were not given: being loaded at the time, or evicted since.",
     "restart.resume_lost_blocks", "", ReadStat<&CacheStats::resume_lost_blocks>},
    {kGauge, "kvtier_former_clients",
     "Sessions of an earlier daemon's life, once for each pool, that have neither been resumed nor "
     "lost their process: their private blocks stay out of use.",
     "restart.former_clients", "", Read<&MetricsSnapshot::former_clients>},
    {kGauge, "kvtier_adoption_waiting_slots",
     "Slots that an earlier daemon left in host memory and that are still to be verified, also in "
     "memory that is not ready.",
     "restart.adopted.waiting", "", ReadGauge<&CacheGauges::adoption_waiting>},
};

}  // namespace

std::span<const MetricRow> RestartMetricRows() { return kRestartRows; }

}  // namespace kvtier
