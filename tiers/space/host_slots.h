// SPDX-License-Identifier: Apache-2.0
// Space in the host arena: slots, and which block leaves to make space for another.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <unordered_set>
#include <vector>

#include "tiers/memory/slab_allocator.h"
#include "tiers/policy/tenant_orders.h"
#include "tiers/space/kept_slots.h"
#include "tiers/space/persist_queue.h"
#include "tiers/state/cache_state.h"

namespace kvtier {

// Host's recency is its own: a block is young here when host serves it, when it is read from disk,
// and when it is about to leave the pool; a use that the pool serves does not touch it. So blocks
// that live in the pool do not crowd out those that live only here. A block takes its place in the
// order when its arrival is decided, not when its bytes are there: the order in which copies and
// reads end does not matter. Event loop only.
class HostSlots {
 public:
  HostSlots(CacheState* state, PersistQueue* to_disk);

  // More of the arena is ready. Slots that an earlier daemon has left there wait in kept().
  void Grow();
  // The tier has so many bytes from now on, as far as the arena has them. Slabs beyond leave.
  void Resize(uint64_t bytes);
  [[nodiscard]] uint64_t capacity_bytes() const { return capacity_bytes_; }
  // See SlabAllocator.
  [[nodiscard]] std::optional<uint64_t> LastLeaving() { return allocator_.LastLeaving(); }
  // The address of a free slot to which the entry's bytes may be copied; it is no block's until
  // EndMove. REQUIRES: in host.
  [[nodiscard]] std::optional<uint64_t> BeginMove(EntryIndex entry);
  // If `moved`, the slot of BeginMove holds the entry's block, and becomes its slot; otherwise it
  // is free again. REQUIRES: nothing uses the entry's slot, if `moved`.
  void EndMove(EntryIndex entry, uint64_t to, bool moved);
  [[nodiscard]] KeptSlots& kept() { return kept_; }
  // The slot, which came from kept(), holds the entry's block: it is cached in host. It counts
  // against the tenant's cap, which the caller has looked at. REQUIRES: the entry has no slot, and
  // slots of this size.
  void Adopt(EntryIndex entry, uint64_t address);
  // The slot, which came from kept(), is empty.
  void FreeKept(uint64_t address);
  // The block was used before all others in host.
  void MakeColdest(EntryIndex entry) {
    order_.MakeColdest(state_.blocks.TenantOf(state_[entry]), entry);
  }

  enum class Outcome : uint8_t {
    kAllocated,  // entry.host_slot is set; not ready yet
    kWait,       // for a write to disk, or for copies in or out of the arena
    kFull,       // every slot is pinned
    kOverCap,    // every slot of the tenant is pinned, and it is at its cap
  };
  // The block is used in host, or will arrive there: it is the youngest as of now.
  void Touch(EntryIndex entry) { order_.Touch(state_.blocks.TenantOf(state_[entry]), entry); }
  // The same for a block that is in host and not used there just now (Orders::ReorderInHost).
  void Reorder(EntryIndex entry) {
    state_.orders.ReorderInHost(state_.blocks.TenantOf(state_[entry]), entry, state_[entry]);
  }
  // A slot for the expected entry; evicts the coldest if need be, that of its tenant if the tenant
  // is at its cap.
  [[nodiscard]] Outcome Allocate(EntryIndex entry);
  // Evicts what Allocate would for a slot like the entry's. kAllocated: something has left.
  [[nodiscard]] Outcome MakeRoomFor(EntryIndex entry);
  // The slot's header and payload are complete: the block is cached in host.
  void Ready(EntryIndex entry);
  // Frees a slot that was not Ready.
  void RollBack(EntryIndex entry);
  // REQUIRES: ready, no pins.
  void Drop(EntryIndex entry, DropReason reason);

  // Readies the coldest to be dropped at no cost, and evicts all blocks beyond a lowered cap, both
  // in parts.
  void Prepare();
  // Lets searches that found only blocks to wait for look at all of them again.
  void Tick() {
    ++changes_;
    if (kept_.Tick()) state_.SchedulePump();
  }

  [[nodiscard]] const SlabAllocator& allocator() const { return allocator_; }
  [[nodiscard]] uint64_t blocks() const { return ready_blocks_; }
  // In host or on its way there.
  [[nodiscard]] bool InOrder(EntryIndex entry) const {
    return order_.Contains(state_.blocks.TenantOf(state_.blocks.directory[entry]), entry);
  }
  [[nodiscard]] uint64_t memory_bytes() const {
    return allocator_.memory_bytes() + order_.memory_bytes();
  }

 private:
  // The size of a request, and the tenants at whose cost.
  struct SpaceRequest {
    enum class From : uint8_t {
      kCommon,  // the coldest of all whose blocks may go
      kOthers,  // the tenant has less than is reserved for it: not its own
      kOwn,     // the tenant is at its cap
    };
    TenantId tenant;
    SlotClass slots;
    From from = From::kCommon;
  };
  // How far one kind of search for a victim has come: since it evicted a block, or all had been
  // looked at.
  struct Search {
    SlotClass slots;           // of the request; another class begins anew
    uint64_t passed_over = 0;  // could not leave
    std::unordered_set<uint64_t> blocked_slabs = {};
    bool passing = false;        // some of these will give their slots back soon
    bool spared = false;         // some could have left, but clients await them
    bool takes_awaited = false;  // it spares these no more
    bool goes_on = false;        // in the next event
    uint64_t waits_since = 0;    // `changes_` when all had been looked at and were to be waited for
  };
  // The tenant's requests of one kind, whose searches share a part of each event: one that finds
  // nothing left of it is the first in the next event, if it has not come to an end since something
  // changed. Otherwise requests for slots of several classes would search in turn without end.
  struct Asked {
    // How the search for one class has ended.
    struct End {
      SlotClass slots;
      Outcome outcome;
      uint64_t in;  // EventParts::pumps
    };
    EventPart part;
    std::optional<SlotClass> next;
    uint64_t next_since = 0;   // EventParts::pumps when that was known
    std::vector<End> ended;    // one of each class
    uint64_t ended_since = 0;  // since `changes_` was that

    // Another class is first in this event. REQUIRES: its requests, if any are left, come anew.
    [[nodiscard]] bool IsOthersTurn(const SlotClass& slots, uint64_t pumps) const {
      return next && *next != slots && next_since + 1 >= pumps;
    }
    void GoOnWith(const SlotClass& slots, uint64_t pumps);
    void NoteEnd(const End& end, uint64_t changes);
    [[nodiscard]] std::optional<End> EndOf(const SlotClass& slots, uint64_t changes) const;
  };
  // One tenant's share.
  struct Share {
    uint64_t slots = 0;
    uint64_t ready = 0;
    uint64_t slot_bytes = 0;  // last asked for
    // For the tenant; by SpaceRequest::From.
    std::array<Search, 3> searches;
    std::array<Asked, 3> asked;
  };

  [[nodiscard]] SpaceRequest RequestFor(const Namespace& name_space) const;
  [[nodiscard]] Outcome EvictFromOthersFirst(SpaceRequest request);
  // Evicts the tenant's own until `bytes` more keep it within its cap. Many may have to go after a
  // cap was lowered: kWait if a part of them has, and the next follows in an event of its own.
  [[nodiscard]] Outcome MakeSpaceUnderCap(TenantId tenant, uint64_t bytes);
  [[nodiscard]] bool TakeFreeSlot(EntryIndex entry, const SpaceRequest& request);
  // The slot of the allocator is the entry's.
  void GiveSlot(EntryIndex entry, uint64_t address);
  // The tenant's blocks may be evicted for others.
  [[nodiscard]] bool EvictableForOthers(TenantId tenant) const;
  [[nodiscard]] bool Admits(const SpaceRequest& request, TenantId tenant) const;
  // The coldest block that does not only pass through host, or kNoEntry if there is none among the
  // next `*steps`, from which it takes those that it looked at.
  [[nodiscard]] EntryIndex Coldest(const SpaceRequest& request, Search* search, uint64_t* steps);
  // Makes space by evicting from the front, in order. kAllocated: there is a slot now, or there are
  // bytes under the cap. In one event the requests of a tenant look at a part of the blocks; those
  // that are refused all the same, as many as ask, cost no second look.
  [[nodiscard]] Outcome EvictFor(const SpaceRequest& request);
  // The same within so many steps; a slab that it has begun to look through may be more.
  [[nodiscard]] Outcome EvictWithin(uint64_t part, const SpaceRequest& request);
  // No slot was found. more: there are blocks that were not looked at.
  [[nodiscard]] Outcome EndSearch(const SpaceRequest& request, bool more, Search* search);
  enum class SlabEviction : uint8_t {
    kDone,
    kWait,     // for writes to disk that have been asked for
    kBlocked,  // a block is pinned or in flight, for an unknown time: another slab has to go
  };
  // Counts all blocks of the slab as steps.
  [[nodiscard]] SlabEviction EvictSlab(EntryIndex coldest);
  // The block cannot leave now: it is looked at again after all others.
  void PassOver(EntryIndex entry, Search* search);
  [[nodiscard]] bool MoreToCome(const SpaceRequest& request, bool grows) const;
  void PrepareOne(EntryIndex entry);
  // The tenant's coldest, as far as it will have to evict its own: `*steps` at most, from which it
  // takes those that it prepared.
  void PrepareOwn(TenantId tenant, uint64_t* steps);

  CacheState& state_;
  TenantVictims& order_;  // CacheState::orders.host
  PersistQueue& to_disk_;
  SlabAllocator allocator_;
  KeptSlots kept_;
  uint64_t capacity_bytes_;
  uint64_t claimed_slabs_ = 0;  // of which kept_ has looked at the records
  std::vector<Share> shares_;
  uint64_t ready_blocks_ = 0;
  // Counts blocks that have come or gone, and ticks: a request that has to wait goes on waiting in
  // between.
  uint64_t changes_ = 1;
  SlotClass last_slots_;  // last asked for: it tells how much is free
};

}  // namespace kvtier
