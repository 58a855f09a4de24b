// SPDX-License-Identifier: Apache-2.0
// Leaves blocks that are not worth loading now out of a prefix that was found: see load_plan.h for
// which blocks those are, and load_rates.h for the cost of loading.
#pragma once

#include <cstdint>
#include <span>

#include "tiers/policy/load_plan.h"
#include "tiers/state/cache_state.h"
#include "tiers/types/cache_requests.h"

namespace kvtier {

class Loader;
struct FoundPrefix;

// Event loop only.
class LoadPlanner {
 public:
  LoadPlanner(CacheState* state, Loader* loader) : state_(*state), loader_(*loader) {}

  // Leaves hits out as request.wish says, and touches them where they are: they were asked for.
  // True if any was. REQUIRES: the wish asks for something; nothing of `found` was taken or left
  // out.
  [[nodiscard]] bool Apply(const CachePool& pool, const AcquireRequest& request,
                           FoundPrefix* found);

 private:
  [[nodiscard]] BlockSource SourceOf(const CachePool& pool, EntryIndex entry) const;
  void LeaveOut(const CachePool& pool, const LoadAnswer& answer, FoundPrefix* found);
  void TouchDeclined(std::span<const EntryIndex> entries);

  CacheState& state_;
  Loader& loader_;
};

}  // namespace kvtier
