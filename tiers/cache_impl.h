// SPDX-License-Identifier: Apache-2.0
// The cache put together. Internal to the cache; see cache.h.
#pragma once

#include <memory>
#include <optional>

#include "base/loop_task.h"
#include "tiers/cache.h"
#include "tiers/space/cold_choice.h"
#include "tiers/space/disk_slots.h"
#include "tiers/space/host_slots.h"
#include "tiers/space/key_expiry.h"
#include "tiers/space/pool_space.h"
#include "tiers/state/cache_state.h"
#include "tiers/state/session_table.h"
#include "tiers/transfer/acquirer.h"
#include "tiers/transfer/canary.h"
#include "tiers/transfer/cold_lookup.h"
#include "tiers/transfer/cold_writer.h"
#include "tiers/transfer/disk_resize.h"
#include "tiers/transfer/drains.h"
#include "tiers/transfer/erasure.h"
#include "tiers/transfer/host_adoption.h"
#include "tiers/transfer/host_prefetch.h"
#include "tiers/transfer/host_resize.h"
#include "tiers/transfer/load_table.h"
#include "tiers/transfer/loader.h"
#include "tiers/transfer/lost_drives.h"
#include "tiers/transfer/offloader.h"
#include "tiers/transfer/persister.h"
#include "tiers/transfer/pool_adoption.h"
#include "tiers/transfer/prefix_touches.h"
#include "tiers/transfer/region_transfers.h"
#include "tiers/transfer/retention.h"
#include "tiers/transfer/sequence_hints.h"
#include "tiers/transfer/verifier.h"

namespace kvtier {

class Cache::Impl {
 public:
  Impl(const CacheOptions& options, CacheEnvironment environment, IndexSnapshot snapshot);

  // Lets every part start all that it can, until none can.
  void Pump();
  // Begins the next part of work that was too much for one event.
  void GoOn();

  [[nodiscard]] Result<CommitReply> Commit(SessionId session, PoolId pool,
                                           const CommitRequest& request);
  [[nodiscard]] Status Release(SessionId session, CachePool* pool, BlockHandle handle,
                               ReleasedBlocks* released);
  // Asks the cold store first, if there is one.
  void Acquire(AcquireRequest request, Acquirer::Done done);
  // Also in the cold store, if `tier` does not name another. Other hosts may still have the block.
  EvictOutcome Evict(const BlockKey& key, std::optional<Tier> tier,
                     const std::shared_ptr<ObjectEviction>& objects = nullptr);
  // For the canary: drops a block that must not be served, or tries to once more.
  EvictOutcome DropRefused(const BlockKey& key);
  [[nodiscard]] CacheGauges Gauges() const;
  [[nodiscard]] BlockRecord Describe(EntryIndex index) const;
  void CheckInvariants() const;

  // From pools to host, from there to disk and to the cold store.
  struct Down {
    std::unique_ptr<ColdWriter> cold_writer;  // null without a cold store
    Persister persister;
    Offloader offloader;
  };
  // From disk and the cold store to host, from there to pools.
  struct Up {
    Loader loader;
    PrefixFinder finder;
    Acquirer acquirer;
    HostPrefetch prefetch;
    std::optional<ColdLookup> cold_lookup;  // nothing without a cold store

    // Forgets the session's requests or, with `pool`, those of them for that pool.
    void Cancel(SessionId session, std::optional<PoolId> pool);
    [[nodiscard]] bool Idle() const {
      return loader.Idle() && acquirer.waiting() == 0 &&
             (!cold_lookup || cold_lookup->waiting() == 0);
    }
  };
  // Work that no request waits for.
  struct Upkeep {
    SequenceHints hints;
    Retention retention;
    LostDrives lost_drives;
    Verifier verifier;
    std::optional<ColdVerifier> cold_verifier;  // nothing without a cold store
    KeyExpiry key_expiry;
    PoolAdoption pool_adoption;
    HostAdoption adoption;
    HostResize host_resize;
    DiskResize disk_resize;
    Erasure erasure;
  };
  // Before all that asks for them.
  LoopTask pump;
  LoopTask next_part;
  CacheState state;
  LoadTable loads;
  SessionTable sessions;
  std::optional<ColdChoice> cold_choice;  // nothing without a cold store
  DiskSlots disk;
  OffloadQueue to_host;
  PersistQueue to_disk;
  HostSlots host;
  PoolSpace pools;
  PrefixTouches touches;
  Down down;
  Up up;
  Canary canary;
  RegionTransfers regions;
  Upkeep upkeep;
  Drains drains;

 private:
  // The block's entry, new or known from elsewhere; kNoEntry if the pool has it already.
  [[nodiscard]] EntryIndex EntryForCommit(CachePool* pool, const CommitRequest& request);
  [[nodiscard]] std::unique_ptr<ColdWriter> MakeColdWriter();
  void CheckTenants() const;
  void CheckUsage() const;
  void CheckLineage(EntryIndex index) const;
  void CheckEntry(EntryIndex index) const;
  void CheckPool(const CachePool& pool) const;
};

}  // namespace kvtier
