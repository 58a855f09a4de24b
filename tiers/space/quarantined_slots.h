// SPDX-License-Identifier: Apache-2.0
// Slots of the disk that are no block's and whose bytes or headers are not to be trusted: none is
// used again before a restart, unless its place is cut off the file.
#pragma once

#include <cstdint>
#include <unordered_set>

#include "tiers/memory/slab_allocator.h"
#include "tiers/space/drive_health.h"
#include "tiers/state/cache_state.h"

namespace kvtier {

// Event loop only.
class QuarantinedSlots {
 public:
  // All are borrowed.
  QuarantinedSlots(CacheState* state, SlabAllocator* allocator, const DriveHealth* health)
      : state_(*state), allocator_(*allocator), health_(*health) {}

  // REQUIRES: the slot is allocated, and has no owner.
  void Add(DiskLocation location) {
    ++state_.stats.slots_quarantined;
    if (!FreeIfLeaving(location)) offsets_.insert(location.offset);
  }
  // Slabs leave: theirs hold up no file that is to be cut.
  void FreeLeaving() {
    std::erase_if(offsets_,
                  [this](uint64_t offset) { return FreeIfLeaving(DiskLocation{offset}); });
  }

 private:
  bool FreeIfLeaving(DiskLocation location) {
    if (!allocator_.Leaving(location.offset) || health_.Failed(location)) return false;
    allocator_.Free(location.offset);
    return true;
  }

  CacheState& state_;
  SlabAllocator& allocator_;
  const DriveHealth& health_;
  std::unordered_set<uint64_t> offsets_;
};

}  // namespace kvtier
