// SPDX-License-Identifier: Apache-2.0
// How long blocks live: expiry, pins, and writing idle blocks to disk before a crash can take them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "tiers/space/disk_slots.h"
#include "tiers/space/host_slots.h"
#include "tiers/space/pool_space.h"
#include "tiers/state/cache_state.h"
#include "tiers/transfer/offloader.h"
#include "tiers/transfer/persister.h"

namespace kvtier {

// Event loop only.
class Retention {
 public:
  Retention(CacheState* state, PoolSpace* pools, Offloader* offloader, HostSlots* host,
            Persister* persister, DiskSlots* disk)
      : state_(*state),
        pools_(*pools),
        offloader_(*offloader),
        host_(*host),
        persister_(*persister),
        disk_(*disk) {}

  // See Cache::Pin.
  [[nodiscard]] Result<uint32_t> Pin(NamespaceId namespace_id, std::span<const BlockHash> hashes,
                                     int64_t ttl_ms);
  // Errors: kLimitExceeded "pinned" if more blocks are pinned than `pin_fraction` would allow.
  [[nodiscard]] Status CheckPinFraction(double pin_fraction) const;
  // See Cache::Evict.
  EvictOutcome Evict(const BlockKey& key, std::optional<Tier> tier);
  // Drops what has expired, unpins, persists what has been idle long enough.
  void Tick();
  // Asks for every block that should be on disk to be written.
  void PersistAll() { PersistIdleFor(0); }

 private:
  void UnpinExpired();
  void DropExpired();
  // True if the block is gone from every tier, false if it is in use or on the move.
  bool DropIfUnused(EntryIndex entry);
  void DropEverywhere(EntryIndex entry, DropReason reason);
  [[nodiscard]] bool Referenced(const BlockEntry& entry);
  void PersistIdleFor(int64_t idle_ms);
  [[nodiscard]] uint64_t PinLimit(NamespaceId namespace_id, double pin_fraction) const;

  CacheState& state_;
  PoolSpace& pools_;
  Offloader& offloader_;
  HostSlots& host_;
  Persister& persister_;
  DiskSlots& disk_;
};

}  // namespace kvtier
