// SPDX-License-Identifier: Apache-2.0
// The rows of the events for routers.
#include "daemon/metrics/metrics.h"

namespace kvtier {
namespace {

using enum MetricType;
using From = const MetricSource&;
using Family = MetricFamily&;

constexpr MetricRow kEventRows[] = {
    {kCounter, "kvtier_event_blocks",
     "Blocks told of to routers, once for each tier, by whether the tier got or lost them.",
     "events.blocks.{}", "",
     [](From from, Family family) {
       family.Add({{"event", "stored"}}, from.snapshot.events.stream.stored)
           .Add({{"event", "removed"}}, from.snapshot.events.stream.removed);
     }},
    {kCounter, "kvtier_event_batches", "Batches of events published.", "events.batches", "",
     Read<&MetricsSnapshot::events, &EventReport::stream, &EventCounters::batches>},
    {kCounter, "kvtier_event_untold_models",
     "Groups of models that routers hear nothing of: their tenant has 64 topics already.",
     "events.untold_models", "",
     Read<&MetricsSnapshot::events, &EventReport::stream, &EventCounters::untold>},
    {kCounter, "kvtier_event_lost_batches",
     "Batches that a router was too slow for; a snapshot makes them good.", "events.lost_batches",
     "", Read<&MetricsSnapshot::events, &EventReport::peers, &EventPeerCounters::lost>},
    {kCounter, "kvtier_event_snapshots", "Snapshots of all that is cached, begun for a router.",
     "events.snapshots", "",
     Read<&MetricsSnapshot::events, &EventReport::peers, &EventPeerCounters::snapshots>},
    {kCounter, "kvtier_event_replays", "Requests of routers for batches that they missed.",
     "events.replays", "",
     Read<&MetricsSnapshot::events, &EventReport::peers, &EventPeerCounters::replays>},
    {kCounter, "kvtier_event_refusals",
     "Connections for events that were ended: too many, or a breach of the protocol.",
     "events.refusals", "",
     Read<&MetricsSnapshot::events, &EventReport::peers, &EventPeerCounters::refused>},
    {MetricType::kGauge, "kvtier_event_subscribers", "Routers that have subscribed.",
     "events.subscribers", "", Read<&MetricsSnapshot::events, &EventReport::subscribers>},
    {MetricType::kGauge, "kvtier_event_token_blocks", "Blocks whose token ids are known.",
     "events.token_blocks", "", ReadGauge<&CacheGauges::token_blocks>},
    {MetricType::kGauge, "kvtier_event_token_bytes", "Memory that token ids take.",
     "events.token_bytes", "", ReadGauge<&CacheGauges::token_bytes>},
    {kCounter, "kvtier_event_token_refusals",
     "Blocks whose token ids found no room in their tenant's share of `events.token_bytes`, and "
     "are told of without them.",
     "events.token_refusals", "", ReadStat<&CacheStats::token_ids_refused>},
};

}  // namespace

std::span<const MetricRow> EventMetricRows() { return kEventRows; }

}  // namespace kvtier
