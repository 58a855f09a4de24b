// SPDX-License-Identifier: Apache-2.0
// The cache put together. Internal to the cache; see cache.h.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/gate.h"
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
#include "tiers/transfer/cold_lookup.h"
#include "tiers/transfer/cold_verifier.h"
#include "tiers/transfer/cold_writer.h"
#include "tiers/transfer/erasure.h"
#include "tiers/transfer/host_adoption.h"
#include "tiers/transfer/host_prefetch.h"
#include "tiers/transfer/load_table.h"
#include "tiers/transfer/loader.h"
#include "tiers/transfer/offloader.h"
#include "tiers/transfer/persister.h"
#include "tiers/transfer/pool_adoption.h"
#include "tiers/transfer/prefix_touches.h"
#include "tiers/transfer/region_transfers.h"
#include "tiers/transfer/retention.h"
#include "tiers/transfer/return_prefetch.h"
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
  void FinishDrains();
  // Nothing is left that a drain could still bring to disk.
  [[nodiscard]] bool NothingLeftToDrain() const;
  // Tells the index of uses, from this row of the directory on, in parts of `drain_part_rows`;
  // then `done` waits for the writes.
  void DrainFrom(uint64_t row, std::function<void()> done);
  [[nodiscard]] bool Settled() const;

  [[nodiscard]] Result<CommitReply> Commit(SessionId session, PoolId pool,
                                           const CommitRequest& request);
  [[nodiscard]] Status Release(SessionId session, CachePool* pool, BlockHandle handle,
                               ReleasedBlocks* released);
  // Asks the cold store first, if there is one.
  void Acquire(AcquireRequest request, Acquirer::Done done);
  // Also in the cold store, if `tier` does not name another. Other hosts may still have the block.
  EvictOutcome Evict(const BlockKey& key, std::optional<Tier> tier);
  [[nodiscard]] CacheGauges Gauges() const;
  [[nodiscard]] BlockRecord Describe(EntryIndex index) const;
  void CheckInvariants() const;

  // Before all that asks for them.
  LoopTask pump;
  LoopTask next_part;
  CacheState state;
  LoadTable loads;
  SessionTable sessions;
  std::optional<ColdChoice> cold_choice;  // nothing without a cold store
  DiskSlots disk;
  Persister persister;
  std::unique_ptr<ColdWriter> cold_writer;  // likewise
  HostSlots host;
  SequenceHints hints;
  Offloader offloader;
  PoolSpace pools;
  Loader loader;
  PrefixFinder finder;
  PrefixTouches touches;
  RegionTransfers regions;
  Acquirer acquirer;
  ReturnPrefetch returns;
  HostPrefetch prefetch;
  std::optional<ColdLookup> cold_lookup;  // nothing without a cold store
  std::optional<ColdVerifier> cold_verifier;
  Retention retention;
  Verifier verifier;
  KeyExpiry key_expiry;
  PoolAdoption pool_adoption;
  HostAdoption adoption;
  Erasure erasure;
  std::vector<std::function<void()>> drains;
  bool draining_stopped = false;
  uint64_t drains_beginning = 0;  // their rows are being walked

 private:
  // The block's entry, new or known from elsewhere; kNoEntry if the pool has it already.
  [[nodiscard]] EntryIndex EntryForCommit(CachePool* pool, const CommitRequest& request);
  [[nodiscard]] std::unique_ptr<ColdWriter> MakeColdWriter();
  void CheckTenants() const;
  void CheckLineage(EntryIndex index) const;
  void CheckEntry(EntryIndex index) const;
  void CheckPool(const CachePool& pool) const;

  // Events that go on with a walk are posted through it, so that they do not outlive the cache.
  Gate gate_;
};

}  // namespace kvtier
