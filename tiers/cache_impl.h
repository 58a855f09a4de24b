// The cache put together. Internal to the cache; see cache.h.
#pragma once

#include <functional>
#include <vector>

#include "tiers/acquirer.h"
#include "tiers/cache.h"
#include "tiers/cache_state.h"
#include "tiers/disk_slots.h"
#include "tiers/host_slots.h"
#include "tiers/load_table.h"
#include "tiers/loader.h"
#include "tiers/offloader.h"
#include "tiers/persister.h"
#include "tiers/pool_space.h"
#include "tiers/retention.h"
#include "tiers/session_table.h"
#include "tiers/verifier.h"

namespace kvtier {

class Cache::Impl {
 public:
  Impl(const CacheOptions& options, CacheEnvironment environment, IndexSnapshot snapshot);

  // Lets every part start what it can, until none can.
  void Pump();
  void FinishDrains();
  [[nodiscard]] bool Settled() const;

  [[nodiscard]] Result<CommitReply> Commit(SessionId session, PoolId pool,
                                           const CommitRequest& request);
  [[nodiscard]] Status Release(SessionId session, CachePool* pool, BlockHandle handle,
                               std::vector<EntryIndex>* cached);
  [[nodiscard]] CacheGauges Gauges() const;
  [[nodiscard]] BlockRecord Describe(EntryIndex index) const;
  void CheckInvariants() const;

  CacheState state;
  LoadTable loads;
  SessionTable sessions;
  DiskSlots disk;
  Persister persister;
  HostSlots host;
  Offloader offloader;
  PoolSpace pools;
  Loader loader;
  Acquirer acquirer;
  Retention retention;
  Verifier verifier;
  std::vector<std::function<void()>> drains;
  bool draining_stopped = false;

 private:
  // The block's entry, new or known from elsewhere; kNoEntry if the pool has it already.
  [[nodiscard]] EntryIndex EntryForCommit(const CachePool& pool, const CommitRequest& request);
  void CheckTenants() const;
  void CheckEntry(EntryIndex index) const;
  void CheckPool(const CachePool& pool) const;
};

}  // namespace kvtier
