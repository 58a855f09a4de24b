// SPDX-License-Identifier: Apache-2.0
// How long blocks live: expiry, pins, the end of unusable blocks, and writing idle blocks to disk
// before a crash can take them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tiers/space/disk_slots.h"
#include "tiers/space/host_slots.h"
#include "tiers/space/offload_queue.h"
#include "tiers/space/persist_queue.h"
#include "tiers/space/pool_space.h"
#include "tiers/state/cache_state.h"

namespace kvtier {

// Event loop only.
class Retention {
 public:
  Retention(CacheState* state, PoolSpace* pools, OffloadQueue* to_host, HostSlots* host,
            PersistQueue* to_disk, DiskSlots* disk)
      : state_(*state),
        pools_(*pools),
        to_host_(*to_host),
        host_(*host),
        to_disk_(*to_disk),
        disk_(*disk) {}

  // See Cache.
  [[nodiscard]] Status MayPin(NamespaceId namespace_id, std::span<const BlockHash> hashes,
                              uint64_t* more);
  [[nodiscard]] Result<uint32_t> Pin(NamespaceId namespace_id, std::span<const BlockHash> hashes,
                                     SessionId holder, int64_t ttl_ms);
  // Errors: kLimitExceeded "pinned" if more blocks are pinned than `pin_fraction` would allow.
  [[nodiscard]] Status CheckPinFraction(double pin_fraction) const;
  // See Cache::Evict.
  EvictOutcome Evict(const BlockKey& key, std::optional<Tier> tier);
  // Drops expired blocks, unpins, persists blocks that have been idle long enough.
  void Tick();
  // Takes the next part of dropping unusable blocks; once for each event that the cache schedules.
  void GoOn();
  // Asks for at most `most` of the blocks that should be on disk to be written, the longest unused
  // first. False if there are more.
  [[nodiscard]] bool PersistSome(uint64_t most) { return PersistIdleFor(0, most); }

 private:
  void UnpinExpired();
  // Drops the followers of an unusable block from all tiers, but for those that are held, pinned or
  // in flight; their followers go nevertheless. Begins with `from` if that is still a child. Takes
  // the steps that it needed, one at least, from `*steps`.
  void DropFollowers(EntryIndex entry, EntryIndex from, size_t* steps);
  void DropExpired();
  // Blocks past their maximum age do not stand together in the orders of last use: looks for them
  // in the next part of the directory.
  void DropAged();
  // True if the block is gone from every tier, false if it is in use or on the move.
  bool DropIfUnused(EntryIndex entry);
  void DropEverywhere(EntryIndex entry, DropReason reason);
  [[nodiscard]] bool Referenced(const BlockEntry& entry);
  [[nodiscard]] bool PersistIdleFor(int64_t idle_ms, uint64_t most);
  [[nodiscard]] Status CheckPinLimits(NamespaceId namespace_id, uint64_t more) const;
  [[nodiscard]] Status TenantMayPin(NamespaceId namespace_id, uint64_t more) const;
  [[nodiscard]] uint64_t PinLimit(NamespaceId namespace_id, double pin_fraction) const;

  CacheState& state_;
  PoolSpace& pools_;
  OffloadQueue& to_host_;
  HostSlots& host_;
  PersistQueue& to_disk_;
  DiskSlots& disk_;
  // Unusable blocks whose followers are to be dropped next, depth first.
  struct Unwinding {
    EntryRef entry;
    EntryRef next_child;  // where to go on, if it is still a child
  };
  std::vector<Unwinding> unwinding_;
  uint64_t aged_row_ = 0;       // where DropAged goes on
  uint64_t lost_left_ = 0;      // lost blocks to be looked at before the next tick
  uint64_t returned_seen_ = 0;  // CacheState::returned as of the last part
};

}  // namespace kvtier
