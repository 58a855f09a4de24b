// SPDX-License-Identifier: Apache-2.0
// Trials of the space reserved for a tenant: others store more than the tiers hold and take nothing
// of it; the tenant comes back and gets all of it from those that have it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "tests/fakes/seeded_random.h"
#include "tests/sim/sim_client.h"

namespace kvtier {

class SimFloors {
 public:
  // `drain` has the cache write whatever is not on disk yet.
  SimFloors(const SimContext& context, SeededRandom random, std::function<void()> drain)
      : context_(context), random_(random), drain_(std::move(drain)) {}

  // The terms of one trial.
  struct Terms {
    SessionId session;  // of no client
    // The disk keeps all writes: no faults, now or earlier.
    bool disk_sound = false;
  };
  // With a tenant that has something reserved and others beside it, if there are such; false if
  // not. No time passes. REQUIRES: the cache is idle, nothing is pinned, nothing fails.
  bool Try(const Terms& terms);

 private:
  // The space of a tenant, in host memory or on disk.
  struct Holding {
    uint64_t slabs = 0;            // to itself
    std::vector<BlockKey> blocks;  // known ones, wherever they lie
    // Dropped from the tier so far, of any tenant, because an earlier block of the sequence was.
    uint64_t parents_lost = 0;
  };
  struct Holdings {
    std::map<Tier, Holding> tiers;
    bool wants_disk = false;  // some block is to be written that is not on disk
  };

  [[nodiscard]] std::vector<uint32_t> NamespacesOf(const std::string& tenant, bool others) const;
  [[nodiscard]] uint64_t ReservedSlabs(const TenantQuota& tenant, Tier tier) const;
  // The cache's own number of it.
  [[nodiscard]] NamespaceId CachesNamespace(uint32_t name_space) const;
  [[nodiscard]] Holdings HoldingsOf(const TenantQuota& tenant) const;
  // Stores `count` new blocks in pieces, as far as the pool has room; which they were.
  std::vector<BlockHash> Store(SessionId session, uint32_t name_space, uint64_t count);
  // One piece; false if there is no room for it.
  bool StorePiece(SessionId session, SimPool pool, uint32_t count, std::vector<BlockHash>* stored);
  // Blocks of `space` that fill both tiers more than once.
  [[nodiscard]] uint64_t MoreThanFits(uint32_t name_space) const;

  // Blocks that it had and has no more; at most as many as left because the pool, where no space is
  // reserved, let go of an earlier one of their sequence.
  [[nodiscard]] static uint64_t Gone(const Holding& had, const Holding& has);
  [[nodiscard]] static uint64_t GoneWithParents(const Holding& had, const Holding& has);
  void CheckKept(const TenantQuota& tenant, const Terms& terms);
  void TakeMostAway(const TenantQuota& tenant);
  void CheckHadBack(const TenantQuota& tenant, const Terms& terms);
  void CheckGrowsFromOthers(const TenantQuota& tenant, const Terms& terms, uint32_t name_space);
  // All that it had, but blocks that cannot be hit any more.
  void CheckAllThere(const TenantQuota& tenant, Tier tier, const Holding& had,
                     const Holding& has) const;
  void CheckReached(const TenantQuota& tenant, Tier tier, uint64_t blocks,
                    uint32_t name_space) const;

  const SimContext context_;
  SeededRandom random_;
  const std::function<void()> drain_;
  uint64_t next_hash_ = 1;
  // All that was ever stored here, by space.
  std::map<uint32_t, std::vector<BlockHash>> stored_;
};

}  // namespace kvtier
