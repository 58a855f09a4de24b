// SPDX-License-Identifier: Apache-2.0
// Which blocks of a sequence the cache can serve.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "tiers/state/cache_state.h"
#include "tiers/types/cache_requests.h"

namespace kvtier {

// The blocks found for an acquire's hashes. None of them is held: entries may go with any later
// event.
struct FoundPrefix {
  std::vector<EntryIndex> hits;
  // Which of the request's partial_blocks hit; it is then the last of `hits`.
  std::optional<uint32_t> partial_block;
  uint32_t to_load = 0;    // hits without a block in the pool
  uint32_t to_arrive = 0;  // those, and hits on their way to the pool
  MissReason miss = MissReason::kNone;

  // The last hits, which LoadPlanner has left out. `declined` counts full blocks.
  LoadForecast forecast;
  uint32_t declined = 0;
  MissReason declined_for = MissReason::kNone;
  bool ends_declined = false;  // what follows the hits was left out
};

// Event loop only.
class PrefixFinder {
 public:
  explicit PrefixFinder(CacheState* state) : state_(*state) {}

  [[nodiscard]] FoundPrefix Find(const CachePool& pool, const AcquireRequest& request);
  // The block if some tier can serve it, else kNoEntry and why not. `before` is the block before it
  // in the sequence, or kNoEntry.
  [[nodiscard]] EntryIndex Servable(EntryIndex before, const BlockKey& key, MissReason* miss);
  // The same for the hit at `position` of a prefix found in an earlier event.
  [[nodiscard]] EntryIndex FindAgain(const CachePool& pool, const AcquireRequest& request,
                                     const FoundPrefix& found, size_t position, MissReason* miss);

 private:
  // The reason for a block in no tier: as far as it is remembered, whether it was erased.
  [[nodiscard]] MissReason WhyUnknown(const BlockKey& key) const;

  CacheState& state_;
};

}  // namespace kvtier
