// SPDX-License-Identifier: Apache-2.0
// The uses of prefixes of which a region's transfers name the end only.
//
// An engine with a region keeps the blocks that it uses in its own memory, and the cache hears of a
// sequence when blocks behind it are stored or loaded: all blocks before them are used as well.
// They become the youngest in each order of eviction, the first of the sequence last, so that a
// sequence that is idle loses its end before its start, and one that is worked on loses neither.
//
// The blocks are walked in parts, since a sequence may have hundreds of thousands, and only so many
// of them from one tick to the next: a client names a long walk with a short message. Tenants take
// turns, so that one that names very many delays its own. Event loop only.
#pragma once

#include <cstdint>
#include <deque>
#include <set>

#include "tiers/policy/tenant_queues.h"
#include "tiers/space/host_slots.h"
#include "tiers/state/cache_state.h"

namespace kvtier {

class PrefixTouches {
 public:
  PrefixTouches(CacheState* state, HostSlots* host);

  // The block is the youngest, wherever it is, unless its time has passed.
  void Touch(EntryIndex entry);
  // The same for this block and all before it in its sequence, in parts that follow. Does nothing
  // for kNoEntry.
  void TouchPrefix(EntryIndex last);
  // The next part.
  void GoOn();
  // More may be walked.
  void Tick();
  // Prefixes of which some blocks are still to be walked.
  [[nodiscard]] uint64_t waiting() const { return next_.size(); }

 private:
  // Walks `most` blocks of the first in the line at most. Returns how many it walked, or 1.
  uint32_t WalkSome(std::deque<EntryRef>* line, uint32_t most);

  CacheState& state_;
  HostSlots& host_;
  TenantQueues<EntryRef> walks_;  // of each, the block that is next
  std::set<EntryRef> next_;       // the same; no two walks go on from one block
  uint32_t left_until_tick_;
};

}  // namespace kvtier
