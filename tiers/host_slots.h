// Space in the host arena: slots, and which block leaves to make room for another.
#pragma once

#include <cstdint>

#include "tiers/cache_state.h"
#include "tiers/persister.h"
#include "tiers/slab_allocator.h"
#include "tiers/victim_queue.h"

namespace kvtier {

// Host's recency is its own: a block is young here when it arrives, when host serves it, and when it
// is about to leave the pool; a use that the pool serves does not touch it. So blocks that live in
// the pool do not crowd out those that live only here. Event loop only.
class HostSlots {
 public:
  HostSlots(CacheState* state, Persister* persister);

  // More of the arena is ready.
  void Grow();

  enum class Outcome : uint8_t {
    kAllocated,  // entry.host_slot is set; not ready yet
    kWait,       // for a write to disk, or for copies in or out of the arena
    kFull,       // every slot is pinned
  };
  // A slot for the entry; evicts the coldest if need be.
  [[nodiscard]] Outcome Allocate(EntryIndex entry);
  // The slot's header and payload are complete: the block is cached in host.
  void Ready(EntryIndex entry);
  // Frees a slot that was not Ready.
  void Abandon(EntryIndex entry);
  // REQUIRES: ready, no pins.
  void Drop(EntryIndex entry, DropReason reason);
  // The block counts as used in host. REQUIRES: ready.
  void Freshen(EntryIndex entry) { victims_.Touch(entry, state_[entry].facts()); }

  // Readies the coldest to be dropped at no cost.
  void Prepare();

  [[nodiscard]] const SlabAllocator& slab() const { return slab_; }
  [[nodiscard]] uint64_t blocks() const { return victims_.size(); }
  [[nodiscard]] uint64_t memory_bytes() const {
    return slab_.memory_bytes() + victims_.memory_bytes();
  }

 private:
  [[nodiscard]] bool TakeFreeSlot(EntryIndex entry, uint64_t slot_bytes);
  // Makes room by evicting from the front, in order. kAllocated: there is room now.
  [[nodiscard]] Outcome EvictFor(uint64_t slot_bytes);
  [[nodiscard]] bool EvictChunk(EntryIndex coldest);
  [[nodiscard]] bool MoreToCome() const;
  [[nodiscard]] bool Evictable(const BlockEntry& entry) const;
  // The block is in use, or pinned and nowhere else: not the coldest after all.
  [[nodiscard]] bool Wanted(const BlockEntry& entry) const;
  [[nodiscard]] DropReason ReasonFor(const BlockEntry& entry) const;
  void PrepareOne(EntryIndex entry);

  CacheState& state_;
  Persister& persister_;
  SlabAllocator slab_;
  VictimQueue victims_;
  uint64_t last_slot_bytes_ = 0;  // the size last asked for: preparation is measured in it
};

}  // namespace kvtier
