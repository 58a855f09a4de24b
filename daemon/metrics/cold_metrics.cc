// SPDX-License-Identifier: Apache-2.0
// The rows of the cold tier.
#include "daemon/metrics/metrics.h"

namespace kvtier {
namespace {

using enum MetricType;
using From = const MetricSource&;
using Family = MetricFamily&;

const ColdStats& StatsOf(From from) { return from.snapshot.stats.cold; }

constexpr MetricRow kColdRows[] = {
    {kCounter, "kvtier_cold_lookups",
     "Acquires and lookups with blocks that this host misses, by the answer of the cold tier's "
     "store, one for each group of a model; "
     "skipped: it was not asked, because it has lately been late or away.",
     "cold.lookups.{}", "",
     [](From from, Family family) {
       AddByName(family, "answer", ColdAnswerName, StatsOf(from).lookups);
     }},
    {kCounter, "kvtier_cold_lookup_blocks", "Blocks that the store was asked about.",
     "cold.lookup_blocks", "", ReadStat<&CacheStats::cold, &ColdStats::lookup_blocks>},
    {kCounter, "kvtier_cold_read_blocks",
     "Blocks read from the store and found whole, whether or not an acquire still waited.",
     "cold.read_blocks", "", ReadStat<&CacheStats::cold, &ColdStats::read_blocks>},
    {kCounter, "kvtier_cold_read_bytes", "The same in bytes.", "cold.read_bytes", "",
     ReadStat<&CacheStats::cold, &ColdStats::read_bytes>},
    {kCounter, "kvtier_cold_failed_reads",
     "Blocks that the store named and that were misses nevertheless, by reason.",
     "cold.failed_reads.{}", "",
     [](From from, Family family) {
       for (const MissReason reason :
            {MissReason::kUnknown, MissReason::kExpired, MissReason::kReadError,
             MissReason::kChecksumMismatch, MissReason::kIdentityMismatch}) {
         family.Add({{"reason", std::string(MissReasonName(reason))}},
                    StatsOf(from).failed_reads[static_cast<size_t>(reason)]);
       }
     }},
    {kCounter, "kvtier_cold_write_blocks", "Blocks written to the store.", "cold.write_blocks", "",
     ReadStat<&CacheStats::cold, &ColdStats::write_blocks>},
    {kCounter, "kvtier_cold_write_bytes", "The same in bytes.", "cold.write_bytes", "",
     ReadStat<&CacheStats::cold, &ColdStats::write_bytes>},
    {kCounter, "kvtier_cold_write_errors",
     "Writes that the store did not take; they are tried again.", "cold.write_errors", "",
     ReadStat<&CacheStats::cold, &ColdStats::write_errors>},
    {kCounter, "kvtier_cold_unwritten_blocks",
     "Blocks that were worth writing to the store and that the disk evicted for space without, by "
     "reason. budget: `cold.write_bytes_per_s`, or what may be under way at once; away: the store "
     "has lately been late or away; early: evicted before their turn; failed: the store did not "
     "take them.",
     "cold.unwritten_blocks.{}", "",
     [](From from, Family family) {
       AddByName(family, "reason", ColdLossName, StatsOf(from).losses);
     }},
    {kGauge, "kvtier_cold_available",
     "1 while requests go to the store of the cold tier, 0 without one or while it is away.",
     "cold.available", "", ReadGauge<&CacheGauges::cold_available>},
};

}  // namespace

void AddHits(MetricFamily& family, const CacheStats::Asked& asked) {
  for (size_t tier = 0; tier < kTierCount; ++tier) {
    const bool disk = tier == static_cast<size_t>(Tier::kDisk);
    family.Add({{"tier", std::string(kTierNames[tier])}},
               asked.hit[tier] - (disk ? asked.cold : 0));
  }
  family.Add({{"tier", "cold"}}, asked.cold);
}

std::span<const MetricRow> ColdMetricRows() { return kColdRows; }

}  // namespace kvtier
