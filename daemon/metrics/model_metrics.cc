// SPDX-License-Identifier: Apache-2.0
#include "daemon/metrics/model_metrics.h"

#include "daemon/metrics/metrics.h"
#include "daemon/session/models.h"
#include "tiers/cache.h"

namespace kvtier {
namespace {

using enum MetricType;
using From = const MetricSource&;
using Family = MetricFamily&;

// Prometheus drops a label without a value: models without a label of their own differ from every
// model that has one, whatever names clients choose.
MetricLabels LabelsOf(const ModelUse& use) {
  return {{"tenant", use.label.tenant}, {"model", use.label.name}};
}

// One sample per model, which the members lead to.
template <auto... kMembers>
void ReadPerModel(From from, Family family) {
  for (const ModelUse& use : from.snapshot.models) {
    family.Add(LabelsOf(use), (use.*....*kMembers));
  }
}

// Blocks or tokens, per model and tier.
void AddHitsPerModel(Family family, From from, CacheStats::Asked CacheStats::AskedOf::*counted) {
  for (const ModelUse& use : from.snapshot.models) {
    MetricFamily hits;
    AddHits(hits, use.asked.*counted);
    for (const MetricSample& hit : hits.samples) {
      MetricLabels labels = LabelsOf(use);
      labels.insert(labels.end(), hit.labels.begin(), hit.labels.end());
      family.Add(std::move(labels), hit.value);
    }
  }
}

constexpr MetricRow kModelRows[] = {
    {kCounter, "kvtier_model_asked_blocks", "Blocks asked for, by model.", "", "",
     ReadPerModel<&ModelUse::asked, &CacheStats::AskedOf::blocks, &CacheStats::Asked::asked>},
    {kCounter, "kvtier_model_hit_blocks", "Blocks asked for that a tier held, by model.", "", "",
     [](From from, Family family) { AddHitsPerModel(family, from, &CacheStats::AskedOf::blocks); }},
    {kCounter, "kvtier_model_missed_blocks", "Blocks asked for that were not served, by model.", "",
     "", ReadPerModel<&ModelUse::asked, &CacheStats::AskedOf::blocks, &CacheStats::Asked::miss>},
    {kCounter, "kvtier_model_asked_tokens", "Tokens of the blocks asked for, by model.", "", "",
     ReadPerModel<&ModelUse::asked, &CacheStats::AskedOf::tokens, &CacheStats::Asked::asked>},
    {kCounter, "kvtier_model_hit_tokens", "Tokens of the blocks that a tier held, by model.", "",
     "",
     [](From from, Family family) { AddHitsPerModel(family, from, &CacheStats::AskedOf::tokens); }},
    {kCounter, "kvtier_model_missed_tokens", "Tokens of the blocks that were not served, by model.",
     "", "",
     ReadPerModel<&ModelUse::asked, &CacheStats::AskedOf::tokens, &CacheStats::Asked::miss>},
    {kGauge, "kvtier_model_pool_used_bytes", "Bytes of all pools that a model's blocks are in.", "",
     "", ReadPerModel<&ModelUse::pool_used_bytes>},
};

}  // namespace

std::span<const MetricRow> ModelMetricRows() { return kModelRows; }

std::vector<ModelUse> ModelUses(const ModelRegistry& models, const Cache& cache,
                                const CacheGauges& gauges) {
  std::vector<ModelUse> uses;
  for (const ModelLabel& label : models.labels()) uses.push_back({.label = label});
  const auto use_of = [&](NamespaceId id) -> ModelUse* {
    const std::optional<uint32_t> label = models.LabelOf(id);
    return label ? &uses[*label] : nullptr;
  };
  const std::vector<CacheStats::AskedOf>& asked = cache.stats().of_namespaces;
  for (uint32_t i = 0; i < asked.size(); ++i) {
    if (asked[i].blocks.asked == 0) continue;
    if (ModelUse* const use = use_of(NamespaceId(i))) {
      use->asked.blocks.Add(asked[i].blocks);
      use->asked.tokens.Add(asked[i].tokens);
    }
  }
  for (const PoolGauges& pool : gauges.pools) {
    // A pool that an earlier daemon left has no model before its engine is back.
    if (ModelUse* const use = use_of(pool.namespace_id)) {
      use->pool_used_bytes += (pool.blocks - pool.free) * pool.block_bytes;
    }
  }
  return uses;
}

}  // namespace kvtier
