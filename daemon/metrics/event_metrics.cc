// SPDX-License-Identifier: Apache-2.0
// The rows of events for routers.
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
     [](From from, Family family) { family.Add(from.snapshot.events.stream.batches); }},
    {kCounter, "kvtier_event_sent_batches", "Batches sent, to all routers together.",
     "events.sent_batches", "",
     [](From from, Family family) { family.Add(from.snapshot.events.peers.sent); }},
    {kCounter, "kvtier_event_lost_batches",
     "Batches that a router was too slow for; a snapshot makes them good.",
     "events.lost_batches", "",
     [](From from, Family family) { family.Add(from.snapshot.events.peers.lost); }},
    {kCounter, "kvtier_event_snapshots", "Snapshots of all that is cached, begun for a router.",
     "events.snapshots", "",
     [](From from, Family family) { family.Add(from.snapshot.events.peers.snapshots); }},
    {kCounter, "kvtier_event_replays", "Requests of routers for batches that they missed.",
     "events.replays", "",
     [](From from, Family family) { family.Add(from.snapshot.events.peers.replays); }},
    {kCounter, "kvtier_event_refusals",
     "Connections for events that were ended: too many, or a breach of the protocol.",
     "events.refusals", "",
     [](From from, Family family) { family.Add(from.snapshot.events.peers.refused); }},
    {MetricType::kGauge, "kvtier_event_subscribers", "Routers that have subscribed.",
     "events.subscribers", "",
     [](From from, Family family) { family.Add(from.snapshot.events.subscribers); }},
    {MetricType::kGauge, "kvtier_event_token_blocks", "Blocks whose token ids are known.",
     "events.token_blocks", "",
     [](From from, Family family) { family.Add(from.snapshot.gauges.token_blocks); }},
    {MetricType::kGauge, "kvtier_event_token_bytes", "Memory that token ids take.",
     "events.token_bytes", "",
     [](From from, Family family) { family.Add(from.snapshot.gauges.token_bytes); }},
    {kCounter, "kvtier_event_token_refusals",
     "Blocks whose token ids found no room in their tenant's share of `events.token_bytes`, and "
     "are told of without them.",
     "events.token_refusals", "",
     [](From from, Family family) { family.Add(from.snapshot.stats.token_ids_refused); }},
};

}  // namespace

std::span<const MetricRow> EventMetricRows() { return kEventRows; }

}  // namespace kvtier
