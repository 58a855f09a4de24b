// SPDX-License-Identifier: Apache-2.0
// Slots of the host arena in which an earlier daemon has left something. Until each has been looked
// at it is taken, and no block's, so that nothing is written there.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tiers/memory/host_table.h"
#include "tiers/memory/slab_allocator.h"
#include "tiers/state/cache_state.h"

namespace kvtier {

// Event loop only.
class KeptSlots {
 public:
  // `allocator` is the host's.
  KeptSlots(CacheState* state, SlabAllocator* allocator);

  // These slabs have been added to the allocator, and no slot of theirs has been given out. Takes
  // slots that may be whole, and slots that were being filled for as long as a dead daemon's write
  // may still reach them; the rest is empty from now on. A walk over the records of the slabs'
  // slots.
  void Claim(uint64_t first_slab, uint64_t end_slab);

  struct Slot {
    uint64_t address = 0;
    uint32_t last_use_s = 0;  // as the table has it: any number
  };
  // The most recently used that is left, if there is one: the caller adopts it or frees it.
  [[nodiscard]] std::optional<Slot> Next();
  [[nodiscard]] uint64_t waiting() const { return waiting_; }
  // Slots of memory that was left and is still to come. Some may be empty.
  [[nodiscard]] uint64_t unready() const { return unready_; }
  // Some of the memory that was left is still to come.
  [[nodiscard]] bool MoreToCome() const;
  // Memory that comes from now on is new, though it was left.
  void ForgetRest();
  // The slot is empty. REQUIRES: taken by Claim, no block's.
  void Free(uint64_t address);
  // Frees what no late write can reach any more. True if anything was freed.
  [[nodiscard]] bool Tick();

 private:
  // As the table has the slab cut; 0 if it has no slots that can be.
  [[nodiscard]] uint64_t SlotsIn(uint64_t slab) const;
  void ClaimSlab(uint64_t slab, uint64_t slot_bytes, std::vector<Slot>* found);
  void ClaimUnfinished(uint64_t address, const SlotClass& slots);
  void ReportDamage();
  // The group that the slab belongs to: that of the first tenant who is found in it.
  [[nodiscard]] uint32_t GroupOf(uint64_t slab, uint64_t slot_bytes) const;

  CacheState& state_;
  SlabAllocator& allocator_;
  // The slots that each call of Claim has found, the most recently used last: sorting all of them
  // anew with each would take ever longer.
  std::vector<std::vector<Slot>> found_;
  uint64_t waiting_ = 0;
  uint64_t unready_ = 0;
  uint64_t left_slabs_ = 0;  // by the dead daemon, up to the last in which it had blocks
  // Until when writes of a dead daemon may still arrive, and the slots that they may reach.
  int64_t late_until_ms_ = 0;
  std::vector<uint64_t> unfinished_;
};

}  // namespace kvtier
