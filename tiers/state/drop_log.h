// SPDX-License-Identifier: Apache-2.0
// Counts copies of blocks that leave a tier, and remembers why.
#pragma once

#include <cstdint>

#include "tiers/directory/block_lifecycle.h"
#include "tiers/types/block_key.h"
#include "tiers/types/cache_stats.h"

namespace kvtier {

class CacheState;

// Part of CacheState. Event loop only.
class DropLog {
 public:
  // `state` is borrowed and outlives this.
  explicit DropLog(CacheState* state) : state_(*state) {}

  // A copy of the block has left the tier, or never reached it.
  void Count(const BlockKey& key, Tier tier, DropReason reason);
  void Count(EntryIndex entry, Tier tier, DropReason reason);
  // A block leaves the tier that it came to at `since_ds`.
  void CountResidence(Tier tier, uint32_t since_ds);

 private:
  CacheState& state_;
};

}  // namespace kvtier
