// SPDX-License-Identifier: Apache-2.0
// The rows of the disk tier: its writes, its refusals, and the blocks that it had at the start.
#include <algorithm>
#include <string>
#include <string_view>

#include "daemon/metrics/metrics.h"

namespace kvtier {
namespace {

using enum MetricType;
using From = const MetricSource&;
using Family = MetricFamily&;

constexpr MetricRow kDiskRows[] = {
    {kGauge, "kvtier_write_budget_bytes", "Bytes that may be written to disk per UTC day.", "", "",
     [](From from, Family family) {
       const uint64_t bytes = from.snapshot.write_budget_bytes;
       family.Add(OrInfinity(bytes, bytes > 0));
     }},
    {kGauge, "kvtier_write_budget_left_bytes", "Bytes that may still be written to disk today.",
     "write_budget_left_bytes", "",
     [](From from, Family family) {
       family.Add(OrInfinity(from.snapshot.gauges.write_budget_left_bytes,
                             from.snapshot.write_budget_bytes > 0));
     }},
    {kGauge, "kvtier_write_budget_spent_bytes", "Bytes written to disk today (UTC).", "", "",
     ReadGauge<&CacheGauges::write_budget_spent_bytes>},
    {kGauge, "kvtier_host_return_seconds",
     "The time from the store of a block to its first use by the engine that stored it: three "
     "quarters of those within a minute are shorter; 3 s with several tenants. Blocks that wait "
     "for "
     "the disk for longer give way to an engine's store that finds host memory full.",
     "", "",
     [](From from, Family family) { family.Add(from.snapshot.gauges.host_return_ds / 10.0); }},
    {kCounter, "kvtier_disk_never_read_bytes",
     "Bytes of blocks that this process wrote and that left the disk without having been loaded "
     "from there, by the block's age.",
     "stats.disk_never_read_bytes.{}", "",
     [](From from, Family family) {
       const NeverRead& never_read = from.snapshot.stats.disk_never_read;
       for (size_t age = 0; age < NeverRead::kAges.size(); ++age) {
         family.Add({{"age", NeverRead::kAges[age].name}}, never_read.bytes[age]);
       }
     }},
    {kCounter, "kvtier_disk_errors", "Operations that the disk or the index refused.",
     "stats.{disk_read|disk_write|index}_errors", "",
     [](From from, Family family) {
       family.Add({{"operation", "read"}}, from.snapshot.stats.disk_read_errors)
           .Add({{"operation", "write"}}, from.snapshot.stats.disk_write_errors)
           .Add({{"operation", "index"}}, from.snapshot.stats.index_errors);
     }},
    {kCounter, "kvtier_disk_read_retries", "Blocks read a second time after a bad first.",
     "stats.disk_read_retries", "", ReadStat<&CacheStats::disk_read_retries>},
    {kCounter, "kvtier_repairs", "Damage that was dealt with, by how.",
     "stats.{disk_read_repaired|slots_quarantined|}", "",
     [](From from, Family family) {
       family.Add({{"repair", "second_read"}}, from.snapshot.stats.disk_read_repaired)
           .Add({{"repair", "slot_quarantined"}}, from.snapshot.stats.slots_quarantined)
           .Add({{"repair", "index_rebuilt"}}, uint64_t{from.snapshot.index_rebuilt});
     }},
    {kCounter, "kvtier_disk_headers_not_voided",
     "Slots of erased or evicted blocks whose headers the disk refused to void; an index rebuilt "
     "from the headers may find those that are not encrypted again.",
     "stats.headers_not_voided", "", ReadStat<&CacheStats::headers_not_voided>},
    {kCounter, "kvtier_restored_blocks", "Blocks found on disk at the start.",
     "stats.restored_blocks", "", ReadStat<&CacheStats::restored_blocks>},
    {kGauge, "kvtier_disk_drives",
     "Directories of the disk tier: those that serve, those given up since the start, and those "
     "that the start went without.",
     "", "",
     [](From from, Family family) {
       for (const std::string_view state : {"serving", "failed", "left_out"}) {
         family.Add({{"state", std::string(state)}},
                    static_cast<uint64_t>(
                        std::ranges::count(from.snapshot.drives, state, &DriveSnapshot::state)));
       }
     }},
    {kGauge, "kvtier_disk_degraded",
     "1 if the disk tier is smaller than configured, misses a drive or refuses writes, else 0.", "",
     "", Read<&MetricsSnapshot::disk_degraded>},
};

}  // namespace

std::span<const MetricRow> DiskMetricRows() { return kDiskRows; }

}  // namespace kvtier
