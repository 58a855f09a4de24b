// SPDX-License-Identifier: Apache-2.0
// The orders in which blocks stand: by age, in which host and disk evict, and in which they wait
// for the decision whether they are written to disk.
//
// Where a block stands follows from its states. CacheState hands every change of states to Refile,
// which gives the block its place in each order or takes it away, so that no part that moves a
// block has to think of the orders. Only uses are told by those who see them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tiers/directory/block_lifecycle.h"
#include "tiers/directory/directory.h"
#include "tiers/orders/pin_table.h"
#include "tiers/policy/eviction_policy.h"
#include "tiers/policy/tenant_orders.h"

namespace kvtier {

// Orders of pools stand beside their blocks (CachePool::victims). Event loop only.
class Orders {
 public:
  // Which tiers there are besides pools and host.
  struct Tiers {
    bool disk = false;
    bool cold = false;
  };
  // So many tenants have orders of their own. `host_spares` and `host_bytes` as of TenantVictims.
  Orders(uint32_t tenants, Tiers tiers, TenantVictims::Spares host_spares,
         const TenantVictims::Bytes& host_bytes);

  // All entries by last use, one list for those that live equally long.
  std::vector<EntryList> by_age;
  // Blocks that a lookup found past their time, dropped at the next tick: no more than it should
  // drop, since the others go in the order of their ages anyway.
  std::vector<EntryRef> seen_expired;
  // Blocks that are on disk or are to be written there, but for pinned ones, so that a search for a
  // victim need not step over them. A use anywhere counts. A block takes its place when its write
  // is decided: the order in which writes end does not matter.
  TenantRecency disk;
  // Blocks in host or on their way there. A block takes its place when its arrival is decided.
  TenantVictims host;
  // Blocks that should be on disk and whose write has not been decided, by last use.
  EntryList unpersisted;
  // Blocks that came to host, or were used below pools or without a disk, and may have no copy in
  // the cold store that lasts, those first that have not been looked at for longest. Empty without
  // such a store.
  EntryList cold_line;
  // Which blocks are pinned and until when, in milliseconds of the age clock.
  PinTable pins;
  // When blocks are expected to be used again, as clients say, in seconds of the age clock; by row.
  // 0: nothing is known.
  PagedArray<uint32_t> returns_s;
  // Until when the cold store has blocks (BlockEntry::cold_copy), in the same seconds; by row.
  PagedArray<uint32_t> cold_until_s;

  // The list in `by_age` of entries with this tenant and retention.
  [[nodiscard]] EntryList& AgesOf(TenantId tenant, RetentionClass retention) {
    return by_age[2 * tenant.value + static_cast<size_t>(retention)];
  }
  [[nodiscard]] const EntryList& AgesOf(TenantId tenant, RetentionClass retention) const {
    return by_age[2 * tenant.value + static_cast<size_t>(retention)];
  }

  // These states of the block have changed (EntryBits): it enters the orders that it belongs to
  // now, as the youngest, and leaves the others. Where it stays, it keeps its place.
  void Refile(TenantId tenant, EntryIndex index, const BlockEntry& entry, uint32_t changed) {
    if ((changed & EntryBits::kPersisted) != 0) persisted_blocks_ += entry.persisted() ? 1 : -1;
    if ((changed & kDiskStates) != 0) RefileOnDisk(tenant, index, entry);
    if ((changed & EntryBits::kPersistWanted) != 0) {
      persist_wanted_blocks_ += entry.persist_wanted() ? 1 : -1;
    }
    if ((changed & kHostStates) != 0) RefileInHost(tenant, index, entry);
    if (tiers_.cold && (changed & EntryBits::kInHost) != 0) EnterColdLine(index, entry);
    if ((changed & kDecidingStates) != 0 && !Undecided(entry)) unpersisted.Remove(index);
  }

  // The block is on disk or is to be written there, and may be evicted from there some time.
  [[nodiscard]] static bool StandsOnDisk(const BlockEntry& entry) {
    return !entry.pinned() && (entry.has_disk_slot() || entry.persist_wanted());
  }
  // The block is in host or on its way there.
  [[nodiscard]] static bool StandsInHost(const BlockEntry& entry) {
    return entry.has_host_slot() || entry.expected_in_host();
  }
  // The block should be on disk, and no write has been decided on. While it is being written it is
  // not on disk yet, so that NeedsPersist alone would have it written twice.
  [[nodiscard]] bool Undecided(const BlockEntry& entry) const {
    return entry.NeedsPersist(tiers_.disk) && !entry.persist_wanted() && !entry.writing();
  }

  // Blocks whose data and index entry are durable, and blocks that are to be written to disk.
  [[nodiscard]] uint64_t persisted_blocks() const { return persisted_blocks_; }
  [[nodiscard]] uint64_t persist_wanted_blocks() const { return persist_wanted_blocks_; }

  // The block waits from now on for the decision whether it is written to disk, as the youngest of
  // those that do or, with `hotter`, as the next colder than that one. Does nothing if it waits
  // already, if its write has been decided or is under way, or if it need not be on disk. True if
  // it has begun to wait.
  bool QueueIfUndecided(EntryIndex index, const BlockEntry& entry, EntryIndex hotter = kNoEntry);
  // The block has been used: it is the youngest on disk, if it stands there.
  void TouchDisk(TenantId tenant, EntryIndex index, const BlockEntry& entry) {
    if (StandsOnDisk(entry)) disk.Touch(tenant, index);
  }
  // The block, which may be worth a copy in the cold store, waits to be looked at, if a lower tier
  // has its bytes, or a pool has them and no disk will.
  void EnterColdLine(EntryIndex index, const BlockEntry& entry);
  // A block in host has got or lost a hint, or is about to leave a pool: one that leaves first
  // (BlockEntry::LeavesFirst) becomes the youngest of these only, any other the youngest of all.
  void ReorderInHost(TenantId tenant, EntryIndex index, const BlockEntry& entry);
  // A pool has the block, and no session uses it there: when host is full, its copy in host goes
  // before those that host alone has. Does nothing if the copy is pinned, is being loaded from, or
  // is not on disk though it should be: to lose it might cost a write.
  void GiveUpFirst(TenantId tenant, EntryIndex index, const BlockEntry& entry);

  // Until when a client expects to have used the block again, as it said last; 0: it has said
  // nothing, or the block has been used since.
  [[nodiscard]] uint32_t ReturnsAtS(EntryIndex entry) const {
    const uint32_t* until_s = returns_s.Find(entry.value);
    return until_s == nullptr ? 0 : *until_s;
  }
  // The block is used, or will not be, or is no block any more: none waits for its return.
  void ForgetReturn(EntryIndex entry) {
    if (returns_s.Find(entry.value) != nullptr) returns_s[entry.value] = 0;
  }

 private:
  // Changes of these states can make a block enter or leave an order.
  static constexpr uint32_t kDiskStates =
      EntryBits::kPinned | EntryBits::kDiskSlot | EntryBits::kPersistWanted;
  static constexpr uint32_t kHostStates = EntryBits::kLoading | EntryBits::kOffloadQueued |
                                          EntryBits::kOffloading | EntryBits::kReading |
                                          EntryBits::kHostSlot | EntryBits::kInHost;
  static constexpr uint32_t kDecidingStates =
      EntryBits::kPinned | EntryBits::kClosed | EntryBits::kOnce | EntryBits::kPersistFailed |
      EntryBits::kPersistWanted | EntryBits::kDiskSlot | EntryBits::kWriting;

  void RefileOnDisk(TenantId tenant, EntryIndex index, const BlockEntry& entry);
  void RefileInHost(TenantId tenant, EntryIndex index, const BlockEntry& entry);

  const Tiers tiers_;
  uint64_t persisted_blocks_ = 0;
  uint64_t persist_wanted_blocks_ = 0;
};

}  // namespace kvtier
