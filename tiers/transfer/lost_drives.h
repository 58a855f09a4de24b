// SPDX-License-Identifier: Apache-2.0
// Drops the blocks of drives that were given up: they are misses from then on. Blocks on other
// drives stay, also those that follow them in their sequences, since a prefix finds these again
// once the others have been computed anew.
#pragma once

#include <cstdint>

#include "tiers/space/disk_slots.h"
#include "tiers/state/cache_state.h"

namespace kvtier {

// Event loop only.
class LostDrives {
 public:
  // Both are borrowed.
  LostDrives(CacheState* state, DiskSlots* disk) : state_(*state), disk_(*disk) {}

  // A bounded part of the work, if there is any; schedules the next.
  void GoOn();
  // Looks again for blocks that something moved.
  void Tick();

 private:
  void Drop(EntryIndex entry);

  CacheState& state_;
  DiskSlots& disk_;
  uint32_t seen_ = 0;  // drives whose blocks are being dropped, or have been
  bool going_ = false;
  bool waiting_ = false;  // for a tick
  uint64_t next_row_ = 0;
  uint64_t moving_ = 0;  // blocks met in this pass that something reads or writes
};

}  // namespace kvtier
