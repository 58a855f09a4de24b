// SPDX-License-Identifier: Apache-2.0
// The parts of the cache share this: blocks, the orders in which they stand, and the door through
// which a block changes, so that its places in all orders change with it. Internal to the cache;
// see cache.h for the whole.
//
// The parts stack, each using those above it in this list and none below:
//   CacheState      this file
//   IndexCommitter  durable index entries, slots freed after their entries are gone
//   DiskSlots       space and I/O on disk
//   Persister       host -> disk
//   HostSlots       space in the host arena
//   Offloader       pool -> host
//   PoolSpace       space in the pools
//   Loader          disk -> host -> pool
//   Acquirer        prefix walks, waiting allocations
//   ColdLookup      what a store that hosts share has of a prefix
//   Retention       expiry, pins, persist-after-idle
//   PoolAdoption    what an earlier daemon left in pools
//   HostAdoption    what an earlier daemon left in host
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/loop_task.h"
#include "tiers/blocks/block_ends.h"
#include "tiers/blocks/blocks.h"
#include "tiers/orders/orders.h"
#include "tiers/policy/age_clock.h"
#include "tiers/policy/eviction_policy.h"
#include "tiers/policy/infinite_cache.h"
#include "tiers/policy/load_rates.h"
#include "tiers/policy/tenant_table.h"
#include "tiers/policy/usage_table.h"
#include "tiers/policy/write_budget.h"
#include "tiers/state/cache_environment.h"
#include "tiers/state/cache_trace.h"
#include "tiers/state/erasures.h"
#include "tiers/state/event_parts.h"
#include "tiers/state/host_pressure.h"
#include "tiers/state/kept_tables.h"
#include "tiers/state/pinned_slabs.h"
#include "tiers/state/presence_feed.h"
#include "tiers/state/reports.h"
#include "tiers/state/token_ids.h"
#include "tiers/types/cache_options.h"
#include "tiers/types/cache_requests.h"

namespace kvtier {

class CacheState {
 public:
  // The tasks are the cache's, and are borrowed: they let every part start all that it can, and
  // begin the next part of work that was too much for one event.
  CacheState(const CacheOptions& options, CacheEnvironment environment,
             const WriteBudgetState& spent, LoopTask* pump, LoopTask* next_part);

  CacheOptions options;
  const CacheEnvironment env;
  const AgeClock clock;
  CacheStats stats;
  InfiniteCache infinite_cache;
  BlockHistory history;
  CacheTrace trace{this};
  PresenceFeed presence{this};
  TokenIds token_ids{this, options.token_tenants, options.token_bytes};
  WriteBudget write_budget;
  TenantTable tenants;
  UsageTable usage{&clock};
  LoadRates load_rates;
  Blocks blocks{&options, &tenants};

  Orders orders;
  BlockEnds ends;
  EventParts parts;
  std::vector<PoolId> to_prepare;  // pools that have changed since PoolSpace prepared them
  // Blocks whose index records are older than they may be (entry.update_queued).
  std::deque<EntryRef> recency_updates;
  Erasures erasing{&clock};
  HostPressure pressure;
  PinnedSlabsByTier pinned_slabs;
  KeptTables tables{this};
  PinRecords pin_records{this};
  DropLog drops{this};
  Incidents incidents{this};

  [[nodiscard]] bool has_disk() const { return !env.files.empty(); }
  [[nodiscard]] BlockEntry& operator[](EntryIndex entry) { return blocks[entry]; }

  // The block's pin keeps the slab that it has in host, or on disk, from blocks of other sizes.
  [[nodiscard]] bool HoldsSlab(Tier tier, const BlockEntry& entry) const {
    return tier == Tier::kHost ? entry.HoldsHostSlab(has_disk())
                               : entry.pinned() && entry.has_disk_slot();
  }
  // The holder pins the block until that time of the age clock, or lets go of it. The block is
  // unpinned when no holder is left; kNobody's letting go ends all pins.
  void Pin(EntryIndex index, SessionId holder, int64_t until_ms);
  void Unpin(EntryIndex index, SessionId holder = kNobody);
  // The block is the entry's. REQUIRES: it is committed for the entry, which has none in its pool.
  void AddPlace(CachePool* pool, BlockIndex block);
  // So many more references are held on the pool's block: it cannot be evicted.
  void Reference(CachePool* pool, BlockIndex block, uint32_t times = 1) {
    if (!pool->blocks.Reference(block, times)) return;
    pool->victims.Remove(pool->blocks[block].entry);
    NoteChange(pool);
  }
  // Fewer of the pool's blocks are free or prepared to leave it, or more could be prepared.
  void NoteChange(CachePool* pool) {
    if (!pool->is_region && !std::exchange(pool->to_prepare, true)) to_prepare.push_back(pool->id);
  }
  // The pool's block of the entry awaits its bytes, or no longer does. When they are there it can
  // be evicted, unless a reference is held.
  void BeginLoad(CachePool* pool, EntryIndex entry);
  void EndLoad(CachePool* pool, EntryIndex entry);
  // Takes the entry's block from the entry, so that it cannot be evicted, and leaves it to the
  // caller.
  BlockIndex RemovePlace(CachePool* pool, EntryIndex entry);

  // An entry that no tier holds yet: new, or that of a lost block. REQUIRES: blocks.Find(key) ==
  // kNoEntry.
  EntryIndex AddEntry(const BlockKey& key, uint16_t tokens, uint32_t depth,
                      RetentionClass retention);
  // The block follows the one of this hash, which need not be known. Does nothing if a parent is
  // known already, or if the depths do not adjoin.
  void LinkToParent(EntryIndex entry, const BlockHash& parent);
  void LinkToParent(EntryIndex entry, EntryIndex parent);
  // The entry is young again in every order that ages.
  void Touch(EntryIndex entry);
  // The block is one of those that are being erased.
  [[nodiscard]] bool BeingErased(const BlockEntry& entry) {
    return !erasing.scopes.empty() &&
           erasing.AnyCovers(blocks.NamespaceOf(entry).identity.tenant, entry.created_s);
  }
  // Counts a use now, by way of the pool, and refreshes.
  void Use(CachePool* pool, EntryIndex index);
  // A client has computed the block, which is known, once more: that is a use, and its content is
  // proven anew, whatever its age.
  void UseComputedAnew(CachePool* pool, EntryIndex entry, RetentionClass retention);
  // See Orders.
  bool QueueIfUndecided(EntryIndex entry, EntryIndex hotter = kNoEntry) {
    return orders.QueueIfUndecided(entry, blocks.directory[entry], hotter);
  }
  // The block is of use after all, and so are those before it: what clients said of them counts no
  // more. Does nothing if it said nothing.
  void ForgetHint(EntryIndex entry);
  // A client expects to use the block again, and the time for that has not passed.
  [[nodiscard]] bool Awaited(EntryIndex entry) const {
    return orders.ReturnsAtS(entry) > clock.NowS();
  }
  // Describes the block to a pool's order, which then spares it; nothing unless the block is
  // awaited.
  [[nodiscard]] std::optional<BlockFacts> FactsIfAwaited(EntryIndex entry) const;
  // The block's bytes have been computed or read from disk, for its first use as the pools' orders
  // of eviction count them.
  void CountUsesAnew(EntryIndex index) { blocks.directory[index].recent_uses = 1; }
  // The block can be evicted from the pool from now on. While the bus is busy with copies to host,
  // one that is there is worth more than its slot.
  void EnterEvictionOrder(CachePool* pool, EntryIndex index) {
    pool->victims.Insert(index, blocks.FactsOf(index));
    NoteChange(pool);
    const BlockEntry& entry = blocks.directory[index];
    if (entry.in_host() && !pressure.to_host_is_busy)
      orders.GiveUpFirst(blocks.TenantOf(entry), index, entry);
  }
  [[nodiscard]] bool Expired(const BlockEntry& entry) const;
  void NoteExpired(EntryIndex entry) {
    if (orders.seen_expired.size() < options.close_part_blocks)
      orders.seen_expired.push_back(blocks.directory.RefOf(entry));
  }
  // When the block expires unless it is used, in milliseconds of the age clock. A pin counts as use
  // until it ends.
  [[nodiscard]] int64_t ExpiryMs(const BlockEntry& entry) const;
  // The pool's bytes are no good: the block becomes unfindable there, and free unless a session
  // still holds it. REQUIRES: in that pool, no pins.
  void LosePoolBlock(CachePool* pool, EntryIndex entry);
  // Erases the entry once no tier holds it and nothing is under way; while blocks that follow it
  // are cached, it is lost instead.
  void ForgetIfGone(EntryIndex entry);
  // The block's state changes as kBlockTransitions says (block_lifecycle.h), and with it the
  // block's places in all orders. REQUIRES: the event is allowed in the state that the block is in.
  void Apply(EntryIndex index, BlockEvent event) {
    BlockEntry& entry = blocks.directory[index];
    const uint32_t changed = entry.Apply(event);
    if (changed != 0) orders.Refile(blocks.TenantOf(entry), index, entry, changed);
    // Also a hint that is given again: the block may have been used in between.
    if (event == BlockEvent::kHintClosed || event == BlockEvent::kHintOnce ||
        (changed & (EntryBits::kClosed | EntryBits::kOnce)) != 0) {
      Reorder(index);
    }
    if (changed != 0 && (entry.pinned() || (changed & EntryBits::kPinned) != 0)) {
      BlockEntry before = entry;
      before.bits_ ^= changed;
      NotePinnedSlabs(before, entry);
    }
    NotePresence(index);
  }
  // The block may have come to a tier or left one.
  void NotePresence(EntryIndex index) {
    if (env.events != nullptr) presence.Note(index);
  }
  // The index learns of the entry's last use if its record is too old.
  void QueueUpdateIfBehind(EntryIndex entry);
  // The index should learn of the entry's times, soon.
  void QueueRecencyUpdate(EntryIndex entry);

  // Something has completed: every part goes on as far as it can, once, at the end of this event.
  void SchedulePump() { parts.SchedulePump(); }
  // There is more to do than one event should: the next part of it follows in an event of its own.
  void SchedulePart() { parts.SchedulePart(); }
  [[nodiscard]] bool pump_scheduled() const { return parts.scheduled(); }

 private:
  // The entry has changed. REQUIRES: it names its slots still, or already.
  void NotePinnedSlabs(const BlockEntry& before, const BlockEntry& after);
  // Gives the block its places in the orders of eviction anew, after its client's hint has changed.
  void Reorder(EntryIndex entry);
  // REQUIRES: no tier holds the entry, and no block follows it.
  void Erase(EntryIndex entry);
};

}  // namespace kvtier
