// SPDX-License-Identifier: Apache-2.0
// Requests for each model, and its share of the pools, by the labels that metrics give models.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/session/models.h"
#include "tiers/types/cache_stats.h"

namespace kvtier {

class Cache;
class ModelRegistry;

struct ModelUse {
  ModelLabel label;
  CacheStats::AskedOf asked;
  uint64_t pool_used_bytes = 0;  // that blocks are in
};

// By the positions of the registry's labels. Event loop only. Takes time in the number of
// namespaces and pools, not of blocks.
[[nodiscard]] std::vector<ModelUse> ModelUses(const ModelRegistry& models, const Cache& cache,
                                              const CacheGauges& gauges);

}  // namespace kvtier
