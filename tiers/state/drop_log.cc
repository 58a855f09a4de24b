// SPDX-License-Identifier: Apache-2.0
#include "tiers/state/drop_log.h"

#include "tiers/state/cache_state.h"

namespace kvtier {

void DropLog::Count(const BlockKey& key, Tier tier, DropReason reason) {
  state_.stats.CountDrops(tier, reason, 1);
  state_.history.NoteDrop(key, {state_.clock.ToWallS(state_.clock.NowS()), tier, reason});
  state_.trace.Evict(key, tier, reason);
}

void DropLog::Count(EntryIndex entry, Tier tier, DropReason reason) {
  Count({state_[entry].namespace_id, state_[entry].hash}, tier, reason);
}

void DropLog::CountResidence(Tier tier, uint32_t since_ds) {
  state_.stats.residence[static_cast<size_t>(tier)].ObserveMs(
      int64_t{state_.clock.NowDs() - since_ds} * 100);
}

}  // namespace kvtier
