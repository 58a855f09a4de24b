// SPDX-License-Identifier: Apache-2.0
// Takes over the pools that an earlier daemon left, with the blocks in them that were whole: they
// are hits at once, and no byte is copied.
//
// Processes that used a pool when that daemon died still have its memory mapped. Blocks that they
// referenced are served, and are neither evicted nor overwritten as long as they may read them;
// blocks private to their sessions are kept for these as they left them; all other blocks that were
// neither free nor whole are not used as long as they may write to them. Handles of blocks that are
// whole or private name them still, those of all others name nothing.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "base/gate.h"
#include "tiers/space/pool_space.h"
#include "tiers/state/cache_state.h"
#include "tiers/state/pool_keeper.h"
#include "tiers/state/session_table.h"
#include "tiers/transfer/adopted_entries.h"

namespace kvtier {

// Event loop only.
class PoolAdoption {
 public:
  PoolAdoption(CacheState* state, PoolSpace* pools, SessionTable* sessions)
      : state_(*state), pools_(*pools), sessions_(*sessions), entries_(state) {}

  // Once, before anything else takes pool memory. Some hundred thousand blocks take 100 ms.
  void Adopt();
  [[nodiscard]] std::vector<AbsentClients> TakeAbsentClients() { return std::move(absent_); }

 private:
  // A block that the table says is whole.
  struct Found {
    BlockIndex block;
    PoolEntryFacts facts;
    bool referenced = false;
  };

  // References that the pool's former clients still hold.
  struct Holdings {
    SessionTable::AbsentHoldings readers;
    SessionTable::AbsentHoldings writers;
    std::map<uint32_t, SessionTable::AbsentHoldings> sessions;  // by their numbers in the table
  };

  void AdoptPool(LeftPool left);
  // Stands for what they hold from now on.
  void AddAbsent(CachePool* pool, const std::vector<PoolTable::Session>& sessions,
                 Holdings holdings);
  // Gives every block of the pool its state from the table; returns those that are whole, the most
  // recently used first. The others that a process may write to go to `holdings`.
  [[nodiscard]] std::vector<Found> Sort(CachePool* pool, PoolTable* table, Holdings* holdings);
  // Where the block goes if it is private to a session that the table names; null otherwise.
  [[nodiscard]] static std::vector<BlockIndex>* OwnersOf(BlockIndex block, const PoolTable& table,
                                                         Holdings* holdings);
  // The entry of the block, whose bytes are in the pool from now on. Why it cannot be adopted,
  // otherwise.
  [[nodiscard]] tl::expected<EntryIndex, AdoptionDrop> AdoptBlock(CachePool* pool,
                                                                  const Found& found);
  void AdoptBlocks(CachePool* pool, PoolTable* table, const std::vector<Found>& whole,
                   Holdings* holdings);

  CacheState& state_;
  PoolSpace& pools_;
  SessionTable& sessions_;
  AdoptedEntries entries_;
  std::vector<AbsentClients> absent_;
  // Sessions count up from 1, and never come near.
  uint64_t next_absent_ = UINT64_MAX;
  // The event that ends the adoption does not outlive the cache.
  Gate gate_;
};

}  // namespace kvtier
