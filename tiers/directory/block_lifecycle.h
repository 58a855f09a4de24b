// SPDX-License-Identifier: Apache-2.0
// The life of a block: every state that it can be in, in each tier and between them, and every
// event that takes it from one to the next, as the tables of block_transitions.h say.
//
// A block is known by one BlockEntry, however many tiers hold it, and by one PoolBlock for each
// pool that holds it or awaits it. Their states are private. All that changes them is Apply(event),
// which ends the process if the event is not allowed in the state that the block is in: a block of
// which the cache has lost track must not be served. The decisions that depend on several states
// (may this copy be forgotten? is anything in flight?) are queries beside them.
//
// Everything here belongs to the event loop.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/ids.h"
#include "tiers/directory/block_transitions.h"
#include "tiers/types/block_key.h"

namespace kvtier {

// Ends the process with a message that names the event and the states.
[[noreturn]] void FailPoolTransition(PoolEvent event, uint32_t bits);
[[noreturn]] void FailBlockTransition(BlockEvent event, uint32_t bits);

// One block of a pool. PoolBlocks applies the events, because it counts the states.
struct PoolBlock {
  EntryIndex entry = kNoEntry;  // kCommitted only
  uint32_t generation = 0;

 private:
  uint32_t references_ = 0;  // here, so that a block takes 40 bytes

 public:
  BlockIndex previous = kNoBlock, next = kNoBlock;
  uint32_t since_ds = 0;  // kCommitted: when its bytes came here (CacheState::NowDs)
  SessionId owner;        // kPrivate and kQuarantined
  PoolPlace elsewhere;    // kCommitted: the next of the pools that hold the entry

  [[nodiscard]] PoolBlockState state() const {
    constexpr uint32_t kStates = (1u << kPoolBlockStateCount) - 1;
    return static_cast<PoolBlockState>(std::countr_zero(bits_ & kStates));
  }
  [[nodiscard]] bool loading() const { return (bits_ & PoolBits::kLoading) != 0; }
  [[nodiscard]] bool prefetched() const { return (bits_ & PoolBits::kPrefetched) != 0; }
  // Over all sessions and operations.
  [[nodiscard]] uint32_t references() const { return references_; }
  [[nodiscard]] uint32_t pins() const { return pins_; }

  // --- queries ---
  // A committed block that nothing holds and whose bytes are here: it may be evicted.
  [[nodiscard]] bool cached() const {
    return state() == PoolBlockState::kCommitted && references_ == 0 && !loading();
  }
  // It was prefetched, and nothing has asked for it since: its load goes after all others.
  [[nodiscard]] bool CanWait() const { return prefetched() && references_ == 0; }
  // All that asked for it have gone: its load is cancelled.
  [[nodiscard]] bool Cancelled() const { return !prefetched() && references_ == 0; }

 private:
  friend class PoolBlocks;
  // The event, `times` in a row.
  void Apply(PoolEvent event, uint32_t times = 1) {
    const Transition& row = kPoolTransitions[static_cast<size_t>(event)];
    if ((bits_ & row.from) != row.from || (bits_ & row.unless) != 0 || !Allows(row.guard, times)) {
      FailPoolTransition(event, bits_);
    }
    bits_ = static_cast<uint8_t>((bits_ & ~row.clears) | row.sets);
    pins_ = static_cast<uint8_t>(pins_ + row.pins);
    references_ += static_cast<uint32_t>(row.references) * times;
  }
  [[nodiscard]] bool Allows(TransitionGuard guard, uint32_t times) const {
    switch (guard) {
      case TransitionGuard::kUnpinned:
        return pins_ == 0;
      case TransitionGuard::kPinned:
        return pins_ > 0;
      case TransitionGuard::kUnused:
        return pins_ == 0 && references_ == 0;
      case TransitionGuard::kReferenced:
        return references_ >= times;
      default:
        return true;
    }
  }

  uint8_t bits_ = PoolBits::kFree;
  uint8_t pins_ = 0;  // copies in flight
};
static_assert(sizeof(PoolBlock) <= 40);

// A slot's address in the host arena, in units of 4 KiB (so that an entry stays small; 16 TiB
// reach).
using HostSlot = Strong<struct HostSlotTag, uint32_t>;
inline constexpr HostSlot kNoHostSlot{UINT32_MAX};
inline constexpr uint64_t kHostSlotUnit = 4096;

// One block of the directory. CacheState applies the events, because it counts some states.
struct BlockEntry {
  BlockHash hash;
  NamespaceId namespace_id;
  // The first of the pools that hold it; each names the next (PoolBlock::elsewhere).
  PoolPlace place;
  HostSlot host_slot = kNoHostSlot;  // set exactly while kHostSlot holds
  uint32_t disk_generation = 0;
  DiskLocation disk;  // valid exactly while kDiskSlot holds
  uint32_t depth = 0;
  uint32_t created_s = 0;
  uint32_t last_use_s = 0;
  uint32_t indexed_use_s = 0;  // last_use_s as the index knows it
  uint32_t uses = 0;
  uint16_t tokens = 0;
  RetentionClass retention : 7 = RetentionClass::kExtended;
  // It is a canary's copy of another block, of which routers are told nothing.
  bool is_copy : 1 = false;
  static constexpr uint8_t kMostRecentUses = 127;
  // Since its bytes were computed or read from disk; the largest stands for more, too.
  uint8_t recent_uses : 7 = 1;
  // Its slot on disk has been read for a load, or may have been before this process.
  uint8_t was_read_from_disk : 1 = 0;

  // --- states ---
  [[nodiscard]] bool loading() const { return Has(EntryBits::kLoading); }
  [[nodiscard]] bool offload_queued() const { return Has(EntryBits::kOffloadQueued); }
  [[nodiscard]] bool offloading() const { return Has(EntryBits::kOffloading); }
  [[nodiscard]] bool offload_failed() const { return Has(EntryBits::kOffloadFailed); }
  [[nodiscard]] bool has_host_slot() const { return Has(EntryBits::kHostSlot); }
  [[nodiscard]] bool in_host() const { return Has(EntryBits::kInHost); }
  [[nodiscard]] bool reading() const { return Has(EntryBits::kReading); }
  [[nodiscard]] bool persist_wanted() const { return Has(EntryBits::kPersistWanted); }
  [[nodiscard]] bool write_queued() const { return Has(EntryBits::kWriteQueued); }
  [[nodiscard]] bool has_disk_slot() const { return Has(EntryBits::kDiskSlot); }
  [[nodiscard]] bool writing() const { return Has(EntryBits::kWriting); }
  [[nodiscard]] bool committing() const { return Has(EntryBits::kCommitting); }
  [[nodiscard]] bool persisted() const { return Has(EntryBits::kPersisted); }
  [[nodiscard]] bool verified() const { return Has(EntryBits::kVerified); }
  [[nodiscard]] bool update_queued() const { return Has(EntryBits::kUpdateQueued); }
  [[nodiscard]] bool persist_failed() const { return Has(EntryBits::kPersistFailed); }
  [[nodiscard]] bool pinned() const { return Has(EntryBits::kPinned); }
  [[nodiscard]] bool hinted() const { return Has(EntryBits::kClosed | EntryBits::kOnce); }
  [[nodiscard]] bool offered() const { return Has(EntryBits::kOffered); }
  [[nodiscard]] bool cold_copy() const { return Has(EntryBits::kColdCopy); }
  // Copies and I/O in flight that use the host slot.
  [[nodiscard]] uint32_t host_pins() const { return bits_ >> kPinShift; }

  // --- queries: where it is ---
  // In some pool, or on its way there.
  [[nodiscard]] bool in_pool() const { return place != kNoPlace; }
  [[nodiscard]] bool on_disk() const { return has_disk_slot() && !writing(); }
  // The index has a record of it, or had one when the daemon started.
  [[nodiscard]] bool in_index() const { return persisted() || (on_disk() && !verified()); }
  // Restored from a header alone: nothing vouches for the payload before it is read once.
  [[nodiscard]] bool unverified_on_disk() const {
    return on_disk() && !verified() && !committing();
  }
  // No tier holds it, and nothing in flight will come back to it.
  [[nodiscard]] bool gone() const {
    return !in_pool() && !has_host_slot() && !has_disk_slot() && !busy() && !offered();
  }
  // Something in flight refers to the entry: it must not be forgotten yet.
  [[nodiscard]] bool busy() const { return Has(EntryBits::kInFlight) || host_pins() > 0; }
  // Some movement will fill a host slot with it, now or when its turn has come.
  [[nodiscard]] bool expected_in_host() const {
    return Has(EntryBits::kLoading | EntryBits::kOffloadQueued | EntryBits::kOffloading |
               EntryBits::kReading);
  }

  // --- queries: what may be done with it ---
  // Its client has said that it will not be used again: no tier below is given a copy of it, and
  // where it is, it leaves before others.
  [[nodiscard]] bool LeavesFirst() const { return hinted() && !pinned(); }
  // A disk tier, if there is one, is to have it.
  [[nodiscard]] bool BelongsOnDisk() const {
    return retention == RetentionClass::kExtended && !LeavesFirst();
  }
  // It should be written to disk before host forgets it.
  [[nodiscard]] bool NeedsPersist(bool has_disk) const {
    return BelongsOnDisk() && has_disk && !persist_failed() && !on_disk();
  }
  // Dropping it from a pool loses nothing, for what host could not take will never be cleaner.
  [[nodiscard]] bool CleanInPool() const {
    return in_host() || ((persisted() || offload_failed() || LeavesFirst()) && !offloading());
  }
  [[nodiscard]] bool EvictableFromHost(bool has_disk) const {
    return in_host() && host_pins() == 0 && !committing() && !NeedsPersist(has_disk);
  }
  // The same at the cost of a copy that was to be written to disk.
  [[nodiscard]] bool DroppableFromHost() const {
    return in_host() && host_pins() == 0 && !pinned() && !writing() && !committing();
  }
  // Pinned, and no copy on disk lets it leave its slot in host.
  [[nodiscard]] bool HoldsHostSlab(bool has_disk) const {
    return has_host_slot() && pinned() && !on_disk() && !NeedsPersist(has_disk);
  }
  // Its host slot is yet to be taken, or in use for a load: it is not the coldest after all.
  [[nodiscard]] bool PassesThroughHost() const {
    return !has_host_slot() || reading() || (loading() && (!in_host() || host_pins() > 0));
  }
  // Nothing reads or writes its slot, or its record.
  [[nodiscard]] bool AtRestOnDisk() const {
    return on_disk() && !Has(EntryBits::kLoading | EntryBits::kReading | EntryBits::kCommitting |
                             EntryBits::kVerifying);
  }

 private:
  friend class CacheState;
  static constexpr int kPinShift = 24;
  static_assert(EntryBits::kNames.size() <= kPinShift);

  // True if any of `bits` holds.
  [[nodiscard]] bool Has(uint32_t bits) const { return (bits_ & bits) != 0; }
  // Returns which states have changed.
  uint32_t Apply(BlockEvent event) {
    const Transition& row = kBlockTransitions[static_cast<size_t>(event)];
    if ((bits_ & row.from) != row.from || (bits_ & row.unless) != 0 || !Allows(row.guard)) {
      FailBlockTransition(event, bits_);
    }
    const uint32_t before = bits_;
    bits_ = (bits_ & ~row.clears) | row.sets;
    const uint32_t changed = before ^ bits_;
    bits_ += static_cast<uint32_t>(row.pins) << kPinShift;
    return changed;
  }
  [[nodiscard]] bool Allows(TransitionGuard guard) const {
    switch (guard) {
      case TransitionGuard::kUnpinned:
        return host_pins() == 0;
      case TransitionGuard::kPinned:
        return host_pins() > 0;
      case TransitionGuard::kInNoPool:
        return !in_pool() && host_pins() == 0;
      default:
        return true;
    }
  }

  uint32_t bits_ = 0;  // EntryBits, and above them the pins

 public:
  uint32_t host_since_ds = 0;  // when its bytes came to host (CacheState::NowDs)
};
static_assert(sizeof(BlockEntry) <= 88);

}  // namespace kvtier
