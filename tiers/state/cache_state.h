// SPDX-License-Identifier: Apache-2.0
// What the parts of the cache share: the directory, the spaces, the pools and the orders in which
// blocks age. Internal to the cache; see cache.h for the whole.
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
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/gate.h"
#include "tiers/directory/block_history.h"
#include "tiers/directory/directory.h"
#include "tiers/directory/lineage.h"
#include "tiers/directory/pool_blocks.h"
#include "tiers/memory/host_table.h"
#include "tiers/orders/orders.h"
#include "tiers/policy/disk_admission.h"
#include "tiers/policy/eviction_policy.h"
#include "tiers/policy/infinite_cache.h"
#include "tiers/policy/load_rates.h"
#include "tiers/policy/tenant_orders.h"
#include "tiers/policy/tenant_table.h"
#include "tiers/policy/write_budget.h"
#include "tiers/state/cache_environment.h"
#include "tiers/state/cache_trace.h"
#include "tiers/state/presence_feed.h"
#include "tiers/state/token_ids.h"
#include "tiers/storage/slot_header.h"
#include "tiers/types/block_view.h"
#include "tiers/types/cache_options.h"
#include "tiers/types/cache_requests.h"

namespace kvtier {

class CopyDown;
struct CachePool;

struct Namespace {
  NamespaceIdentity identity;
  uint64_t slot_bytes = 0;  // header and payload, a multiple of the I/O alignment
  TenantId tenant;
  std::array<CachePool*, kMaxPoolSlots> pools{};  // by PoolSlot; null: none there
  bool indexed = false;  // the index knows what the space's number stands for
  uint32_t token_share = TokenIds::kNoShare;
};

// How a region's blocks end their loads. Event loop only; RegionTransfers implements it.
class RegionEvents {
 public:
  virtual ~RegionEvents() = default;
  // The blocks have their bytes.
  virtual void OnLoaded(CachePool* pool, std::span<const EntryIndex> entries) = 0;
  // The block will not arrive. It is no longer loading, and still the entry's.
  virtual void OnLoadFailed(CachePool* pool, EntryIndex entry, MissReason reason) = 0;
};

struct CachePool {
  PoolId id;
  NamespaceId namespace_id;
  DeviceIndex device;  // none of a region in host memory
  PoolSlot slot;
  uint64_t generation = 0;
  uint64_t block_bytes = 0;
  Device* copier = nullptr;  // copies between `memory` and host
  std::unique_ptr<DevicePool> memory;
  PoolBlocks blocks;
  VictimQueue victims;  // cached blocks: committed, loaded, unreferenced; of a region none
  // The parts of a region's block, in the order of its payload; none: blocks lie one after the
  // other.
  std::vector<RegionPiece> pieces;
  RegionEvents* region = nullptr;  // null: not a region
  uint32_t sessions = 0;           // that use it (SessionTable::UsePool)
  uint32_t ended_sessions = 0;     // that did, and hold blocks or may still write to them
  uint32_t operations = 0;         // acquires under way
  // When the last of its sessions ended; none of a pool that is used, or never was.
  std::optional<int64_t> unused_since_ms;
  uint32_t next_to_close = 0;  // the block at which PoolSpace goes on to empty the pool

  // Calls `visit(offset in the memory, offset in the payload, bytes)` for each contiguous part of
  // the given part of a block's payload.
  template <typename Visit>
  void ForEachPart(BlockIndex block, uint64_t offset, uint64_t bytes, Visit visit) const {
    if (pieces.empty()) return visit(block.value * block_bytes + offset, offset, bytes);
    uint64_t begin = 0;  // of the piece, in the payload
    for (const RegionPiece& piece : pieces) {
      const uint64_t first = std::max(begin, offset);
      const uint64_t end = std::min(begin + piece.bytes, offset + bytes);
      if (first < end) {
        visit(piece.offset + block.value * piece.block_stride + (first - begin), first,
              end - first);
      }
      begin += piece.bytes;
    }
  }
};

class CacheState {
 public:
  CacheState(const CacheOptions& options, CacheEnvironment environment,
             const WriteBudgetState& spent);

  CacheOptions options;
  const CacheEnvironment env;
  CacheStats stats;
  InfiniteCache infinite_cache;
  BlockHistory history;
  CacheTrace trace{this};
  PresenceFeed presence{this};
  TokenIds token_ids{this, options.token_tenants, options.token_bytes};
  WriteBudget write_budget;
  TenantTable tenants;
  DiskAdmission disk_admission;
  LoadRates load_rates;
  Directory directory;
  std::vector<Namespace> namespaces;              // by NamespaceId
  std::vector<std::unique_ptr<CachePool>> pools;  // by PoolId; null: one that was closed

  Orders orders;
  // Blocks whose index records are older than they may be (entry.update_queued).
  std::vector<EntryRef> recency_updates;
  // Blocks that a lookup found past their time; dropped at the next tick.
  std::vector<EntryRef> seen_expired;
  // Checksums given at commit, by ArrivalKey: what one pool holds, compared when it is offloaded.
  std::unordered_map<uint64_t, PayloadChecksum> commit_checksums;
  // What is being erased (Erasure): nothing of it is written to disk any more.
  struct Erasing {
    EraseRequest request;
    uint32_t begun_s = 0;  // what is made later stays
  };
  std::vector<Erasing> erasing;
  // Which block follows which.
  Lineage lineage;
  // Blocks that no tier holds while blocks that follow them are cached, the longest lost first;
  // their `last_use_s` says since when. Their entries stay, so that they are known again when they
  // are committed again. What follows them is unusable.
  EntryList lost;
  // How many lost blocks have come back.
  uint64_t returned = 0;
  // Until then, on the monotonic clock, acquires and stores have lately waited for space in host
  // that the disk could not make in time: what is written is written from the start of its sequence
  // on, because not all of it will be.
  static constexpr int64_t kPrefixesFirstMs = 10'000;
  int64_t prefixes_first_until_ms = 0;
  // An acquire, or a store of a region, has waited for half of its time: host gives up its coldest
  // blocks, written or not, so that younger blocks need not be dropped for want of space in it.
  bool acquire_late = false;
  bool store_late = false;
  // Host has no slot to give, because blocks in it wait for their writes to disk.
  bool host_awaits_disk = false;
  // As much is being copied from pools to host as may be, and more waits.
  bool to_host_is_busy = false;

  [[nodiscard]] bool has_disk() const { return !env.files.empty(); }
  [[nodiscard]] bool host_space_is_overdue() const { return acquire_late || store_late; }
  // The disk could not make space in host in time.
  void WritePrefixesFirst() { prefixes_first_until_ms = NowMs() + kPrefixesFirstMs; }
  // The time by which blocks age: Unix time as it was when the cache was made, and from then on the
  // monotonic clock's. A step of the wall clock makes no block older or younger, so that it neither
  // expires what is in use nor keeps idle blocks from being written to disk.
  [[nodiscard]] int64_t AgeClockMs() const { return NowMs() + age_clock_offset_ms_; }
  [[nodiscard]] uint32_t NowS() const { return static_cast<uint32_t>(AgeClockMs() / 1000); }
  // What the wall clock has been stepped by since: to be added to a time of the age clock for
  // administrators, and for what is kept on disk, which a later process compares with its own wall
  // clock.
  [[nodiscard]] int64_t WallStepMs() const { return env.clock->WallMs() - AgeClockMs(); }
  [[nodiscard]] uint32_t ToWallS(uint32_t age_clock_s) const;
  // The reverse, for a time found on disk. One that lies in the future, because the clock was ahead
  // when it was written, counts as now: the block must not outlive its time to live.
  [[nodiscard]] uint32_t FromWallS(uint32_t wall_s) const;
  // Tenths of seconds of the monotonic clock. Differences of two are right for 13 years.
  [[nodiscard]] uint32_t NowDs() const;
  [[nodiscard]] int64_t NowMs() const { return env.clock->MonotonicMs(); }
  // To measure how long something takes.
  [[nodiscard]] int64_t PreciseUs() const { return env.clock->PreciseUs(); }
  [[nodiscard]] BlockEntry& operator[](EntryIndex entry) { return directory[entry]; }

  [[nodiscard]] std::optional<NamespaceId> FindNamespace(const NamespaceIdentity& identity) const;
  // Finds or adds. REQUIRES: identity.block_bytes > 0.
  [[nodiscard]] Result<NamespaceId> InternNamespace(const NamespaceIdentity& identity);
  [[nodiscard]] Namespace& NamespaceOf(const BlockEntry& entry) {
    return namespaces[entry.namespace_id.value];
  }
  [[nodiscard]] TenantId TenantOf(const BlockEntry& entry) const {
    return namespaces[entry.namespace_id.value].tenant;
  }
  // A space for the identity that has no pool yet. REQUIRES: identity.block_bytes > 0.
  [[nodiscard]] Namespace MakeNamespace(const NamespaceIdentity& identity) const;
  // The list of entries that live as long as this one, by last use.
  [[nodiscard]] EntryList& AgesOf(const BlockEntry& entry) {
    return orders.AgesOf(TenantOf(entry), entry.retention);
  }
  [[nodiscard]] const EntryList& AgesOf(const BlockEntry& entry) const {
    return orders.AgesOf(TenantOf(entry), entry.retention);
  }
  // The block is the youngest on disk, if it is there or is to be.
  void TouchDisk(EntryIndex index) {
    const BlockEntry& entry = directory[index];
    orders.TouchDisk(TenantOf(entry), index, entry);
  }
  // The block is pinned until that time of the age clock, whatever was said before; or not at all.
  void Pin(EntryIndex index, int64_t until_ms);
  void Unpin(EntryIndex index);
  // Null if there is no such pool.
  [[nodiscard]] CachePool* FindPool(PoolId id);
  // The pool gets its number and stands in its namespace's slot. REQUIRES: the slot is free.
  CachePool* AddPool(std::unique_ptr<CachePool> pool);
  // The pool's memory goes with it. REQUIRES: no block is taken, and nothing uses the pool.
  void RemovePool(CachePool* pool);

  // The block of `pool` that is the entry's, loaded or not; kNoBlock if there is none. REQUIRES: a
  // pool of the entry's space.
  [[nodiscard]] BlockIndex BlockIn(const CachePool& pool, const BlockEntry& entry) const;
  // Calls `visit(CachePool&, BlockIndex)` for each pool that holds the block or awaits it; `visit`
  // may take that place away.
  template <typename Visit>
  void ForEachPlace(const BlockEntry& entry, Visit visit) const;
  // A pool that holds the block's bytes; null if none does.
  [[nodiscard]] CachePool* ReadyPool(const BlockEntry& entry) const;
  // References over all pools.
  [[nodiscard]] uint32_t References(const BlockEntry& entry) const;
  // The block is the entry's. REQUIRES: it is committed for the entry, which has none in its pool.
  void AddPlace(CachePool* pool, BlockIndex block);
  // The pool's block of the entry is whole: the table beside the pool's memory is to say so.
  void EnterPoolTable(CachePool* pool, EntryIndex entry);
  // So many more references are held on the pool's block: it cannot be evicted.
  void Reference(CachePool* pool, BlockIndex block, uint32_t times = 1) {
    if (pool->blocks.Reference(block, times)) pool->victims.Remove(pool->blocks[block].entry);
  }
  // The pool's block of the entry awaits its bytes, or no longer does. When they are there it can
  // be evicted, unless a reference is held.
  void BeginLoad(CachePool* pool, EntryIndex entry);
  void EndLoad(CachePool* pool, EntryIndex entry);
  // Takes the entry's block from the entry, so that it cannot be evicted, and leaves it to the
  // caller.
  BlockIndex RemovePlace(CachePool* pool, EntryIndex entry);

  // The block's entry; kNoEntry if it is not known, or lost.
  [[nodiscard]] EntryIndex Find(const BlockKey& key) const {
    const EntryIndex index = directory.Find(key);
    return index != kNoEntry && lost.Contains(index) ? kNoEntry : index;
  }
  // An entry that no tier holds yet: new, or that of a lost block. REQUIRES: Find(key) == kNoEntry.
  EntryIndex AddEntry(const BlockKey& key, uint16_t tokens, uint32_t depth,
                      RetentionClass retention);
  // The block follows the one of this hash, which need not be known. Does nothing if a parent is
  // known already, or if the depths do not adjoin.
  void LinkToParent(EntryIndex entry, const BlockHash& parent);
  void LinkToParent(EntryIndex entry, EntryIndex parent);
  // Nothing if it is the first of its sequence, or not known.
  [[nodiscard]] std::optional<BlockHash> ParentHashOf(EntryIndex entry) const;
  // The block's retention becomes `extended`, if it is not already.
  void Extend(EntryIndex entry);
  // The entry is young again in every order that ages.
  void Touch(EntryIndex entry);
  // Counts a use now, by way of the pool, and refreshes.
  void Use(CachePool* pool, EntryIndex index);
  // A client has computed the block, which is known, once more: that is a use, and its content is
  // proven anew, whatever its age.
  void UseComputedAnew(CachePool* pool, EntryIndex entry, RetentionClass retention);
  // Not every block that could be is written to disk.
  [[nodiscard]] bool Admits() const { return has_disk() && options.disk_admission > 0; }
  // The block is to be decided on again, however that went before.
  void QueuePersist(EntryIndex entry);
  // See Orders.
  bool QueueIfUndecided(EntryIndex entry, EntryIndex hotter = kNoEntry) {
    return orders.QueueIfUndecided(entry, directory[entry], hotter);
  }
  // Admission learns from the block's uses, and from how long it is idle between them: it is used
  // now; it was in use until its last use.
  void NoteUse(EntryIndex entry);
  void NoteIdle(EntryIndex entry);
  // The block is of use after all, and so are those before it: what clients said of them counts no
  // more. Does nothing if it said nothing.
  void ForgetHint(EntryIndex entry);
  // A client expects to use the block again, and the time for that has not passed.
  [[nodiscard]] bool Awaited(EntryIndex entry) const { return orders.ReturnsAtS(entry) > NowS(); }
  // The block is one of those that are to be erased.
  [[nodiscard]] bool IsErased(const Erasing& scope, const BlockEntry& entry) const;
  [[nodiscard]] bool BeingErased(const BlockEntry& entry) const {
    return std::ranges::any_of(erasing, [&](const auto& scope) { return IsErased(scope, entry); });
  }
  // What a pool's order is told of a block that it is to spare: nothing unless the block is
  // awaited.
  [[nodiscard]] std::optional<BlockFacts> FactsIfAwaited(EntryIndex entry) const;
  // Whether tenants share this row of tenant tables: one's hints must not cost another's blocks.
  [[nodiscard]] bool IsShared(TenantId tenant) const;
  // The block's bytes have been computed or read from disk, for its first use as the pools' orders
  // of eviction count them.
  void CountUsesAnew(EntryIndex index) { directory[index].recent_uses = 1; }
  // What the order of eviction of a pool is told of a block.
  [[nodiscard]] BlockFacts FactsOf(EntryIndex index) const;
  // The block can be evicted from the pool from now on. While the bus is busy with copies to host,
  // one that is there is worth more than its slot.
  void EnterEvictionOrder(CachePool* pool, EntryIndex index) {
    pool->victims.Insert(index, FactsOf(index));
    const BlockEntry& entry = directory[index];
    if (entry.in_host() && !to_host_is_busy) orders.GiveUpFirst(TenantOf(entry), index, entry);
  }
  [[nodiscard]] bool Expired(const BlockEntry& entry) const;
  // When the block expires unless it is used, in milliseconds of the age clock. A pin counts as use
  // until it ends.
  [[nodiscard]] int64_t ExpiryMs(const BlockEntry& entry) const;
  // The pool's bytes are no good: the block becomes unfindable there, and free unless a session
  // still holds it. REQUIRES: in that pool, no pins.
  void LosePoolBlock(CachePool* pool, EntryIndex entry);
  // Erases the entry once no tier holds it and nothing is under way; while blocks that follow it
  // are cached, it is lost instead.
  void ForgetIfGone(EntryIndex entry);
  [[nodiscard]] bool NeedsPersist(const BlockEntry& entry) const {
    return entry.NeedsPersist(has_disk());
  }

  // The entry's slot in the arena: header, then payload. REQUIRES: it has one.
  [[nodiscard]] std::span<std::byte> HostBytes(const BlockEntry& entry);
  // The table beside host memory says no longer, or again, that the entry's slot is whole; nothing
  // happens where there is no table. Between the two calls the slot's bytes may change. REQUIRES:
  // it has a slot.
  void BeginHostChange(const BlockEntry& entry);
  void EndHostChange(const BlockEntry& entry);
  // What a slot that holds the entry's block must say.
  [[nodiscard]] SlotExpectation ExpectationOf(const BlockEntry& entry);

  // The block's state changes as kBlockTransitions says (block_lifecycle.h), and with it the
  // block's places in all orders. REQUIRES: the event is allowed in the state that the block is in.
  void Apply(EntryIndex index, BlockEvent event) {
    BlockEntry& entry = directory[index];
    persisted_blocks_ -= entry.persisted();
    persist_wanted_blocks_ -= entry.persist_wanted();
    const uint32_t changed = entry.Apply(event);
    persisted_blocks_ += entry.persisted();
    persist_wanted_blocks_ += entry.persist_wanted();
    if (changed != 0) orders.Refile(TenantOf(entry), index, entry, changed);
    if ((changed & (EntryBits::kClosed | EntryBits::kOnce)) != 0) Reorder(index);
    NotePresence(index);
  }
  // The block may have come to a tier or left one.
  void NotePresence(EntryIndex index) {
    if (env.events != nullptr) presence.Note(index);
  }
  [[nodiscard]] uint64_t persist_wanted_blocks() const { return persist_wanted_blocks_; }
  // The index learns of the entry's last use if what it knows is too old.
  void QueueUpdateIfBehind(EntryIndex entry);
  // The index should learn of the entry's times, soon.
  void QueueRecencyUpdate(EntryIndex entry);
  [[nodiscard]] uint64_t persisted_blocks() const { return persisted_blocks_; }

  // Something has completed: every part starts what it can, once, at the end of this event.
  void SchedulePump();
  // There is more to do than one event should: the next part of it follows in an event of its own.
  void SchedulePart();
  // These are set by the cache; the last is the way from pools to host.
  std::function<void()> pump;
  std::function<void()> next_part;
  CopyDown* to_host = nullptr;
  [[nodiscard]] bool pump_scheduled() const { return pump_scheduled_ || part_scheduled_; }

  // Counts that a copy of the block left the tier, or never reached it, and remembers why.
  void CountDrop(const BlockKey& key, Tier tier, DropReason reason) {
    stats.CountDrops(tier, reason, 1);
    history.NoteDrop(key, {ToWallS(NowS()), tier, reason});
    trace.Evict(key, tier, reason);
  }
  void CountDrop(EntryIndex entry, Tier tier, DropReason reason) {
    CountDrop({directory[entry].namespace_id, directory[entry].hash}, tier, reason);
  }
  // A block leaves the tier that it came to at `since_ds`.
  void CountResidence(Tier tier, uint32_t since_ds) {
    stats.residence[static_cast<size_t>(tier)].ObserveMs(int64_t{NowDs() - since_ds} * 100);
  }

 private:
  // Gives the block its places in the orders of eviction anew, after its client's hint has changed.
  void Reorder(EntryIndex entry);
  // Of an entry that no tier holds, and that nothing follows.
  void Erase(EntryIndex entry);
  // The tables beside host memory and pools learn of the entry's times and uses, where they are.
  void UpdateTables(EntryIndex entry);
  [[nodiscard]] PoolEntryFacts PoolFactsOf(const CachePool& pool, EntryIndex entry) const;
  [[nodiscard]] HostSlotFacts HostFactsOf(const BlockEntry& entry) const;

  const int64_t age_clock_offset_ms_;

  uint64_t persisted_blocks_ = 0;
  uint64_t persist_wanted_blocks_ = 0;
  bool pump_scheduled_ = false;
  bool part_scheduled_ = false;
  // Last, so that what is posted does not outlive what it uses.
  Gate gate_;
};

// How a tier's space asks for its blocks to be copied to the tier below before they are evicted.
// The transfers implement it (Offloader from pools to host, Persister from host to disk), so that
// space knows nothing of how bytes move. The implementation outlives the space that uses it.
// Event loop only.
class CopyDown {
 public:
  virtual ~CopyDown() = default;
  // Asks for a copy of the block in the tier below, soon; what is there already is touched. Does
  // nothing if the copy is being made, or cannot be.
  virtual void Want(EntryIndex entry) = 0;
  // The block's bytes have arrived in the tier above: a copy that was asked for can begin.
  virtual void SourceReady(EntryIndex entry) = 0;
  // The tier above no longer has the block: a copy that has not begun is wanted no more.
  virtual void SourceGone(EntryIndex entry) = 0;
};

// Names one pool's block of an entry.
[[nodiscard]] inline uint64_t ArrivalKey(const CachePool& pool, EntryIndex entry) {
  return uint64_t{pool.id.value} << 32 | entry.value;
}

template <typename Visit>
void CacheState::ForEachPlace(const BlockEntry& entry, Visit visit) const {
  for (PoolPlace place = entry.place; place != kNoPlace;) {
    CachePool& pool = *namespaces[entry.namespace_id.value].pools[place.pool().value];
    const BlockIndex block = place.block();
    place = pool.blocks[block].elsewhere;
    visit(pool, block);
  }
}

}  // namespace kvtier
