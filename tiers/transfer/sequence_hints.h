// SPDX-License-Identifier: Apache-2.0
// Clients' hints about their sequences: that one will not be used again, or when it will be.
//
// A hint changes where blocks stand in the orders of eviction, and nothing else that a client could
// see: cached blocks are served as before. Blocks that will not be used again leave pool and host
// before all others of their tenant, and are copied neither to host nor to disk, unless they are
// pinned; where they are, they stay until their space is needed. A block that others' sequences go
// on from keeps its place, and so do those before it: they are not this sequence's alone. A use
// takes the hint back, if it was not `once`.
//
// A block that is expected back is passed over when its turn to leave a pool comes, until that
// time. In host the same holds where the tenant shares its order with none: otherwise the hint of
// one would cost another's blocks.
//
// Hints are forgotten with the process.
#pragma once

#include <cstdint>
#include <span>

#include "tiers/space/host_slots.h"
#include "tiers/state/cache_state.h"

namespace kvtier {

// Event loop only.
class SequenceHints {
 public:
  SequenceHints(CacheState* state, HostSlots* host) : state_(*state), host_(*host) {}

  // The hashes are those of a sequence, or of a part of one whose deeper parts have been given
  // theirs; those that are not cached are passed over. Returns of how many blocks the hint was
  // taken. Looks at each hash once. REQUIRES: returns_in_ms >= 0.
  uint32_t Give(NamespaceId namespace_id, std::span<const BlockHash> hashes, SequenceHint hint,
                int64_t returns_in_ms);

 private:
  // Whether it was taken; the blocks that follow must have been given theirs.
  [[nodiscard]] bool EndUse(EntryIndex entry, SequenceHint hint);
  void Expect(EntryIndex entry, uint32_t until_s);
  // Other sequences go on from the block than the one whose blocks leave first.
  [[nodiscard]] bool FollowedByOthers(EntryIndex entry) const;

  CacheState& state_;
  HostSlots& host_;
};

}  // namespace kvtier
