// SPDX-License-Identifier: Apache-2.0
// Who holds what: each session's references and private blocks, and the blocks of ended sessions
// whose processes may still write to them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "tiers/directory/reference_counts.h"
#include "tiers/state/cache_state.h"

namespace kvtier {

// Event loop only.
class SessionTable {
 public:
  explicit SessionTable(CacheState* state) : state_(*state) {}

  void Open(SessionId session, std::function<void(const LoadProgress&)> on_progress);
  // Drops all references and quarantines the private blocks.
  void Close(SessionId session);
  // Frees what Close() quarantined. Does nothing if there is nothing.
  void ReleaseQuarantine(SessionId session);
  [[nodiscard]] bool IsOpen(SessionId session) const { return sessions_.contains(session); }
  void Report(SessionId session, const LoadProgress& progress);

  // Turns one free block of the pool into a private one. REQUIRES: open; a block is free.
  BlockHandle AllocatePrivate(SessionId session, CachePool* pool);
  // Adds one reference to each committed block; kNoBlock is passed over. REQUIRES: open.
  void AddReferences(SessionId session, CachePool* pool, std::span<const BlockIndex> blocks);
  // Drops one reference; if the block thereby became cached, its entry is appended to `cached`, to
  // be given to EnterEvictionOrder. REQUIRES: the session holds one.
  void DropReference(SessionId session, CachePool* pool, BlockIndex block,
                     std::vector<EntryIndex>* cached);
  // What was released together becomes evictable together, the deepest first.
  void EnterEvictionOrder(CachePool* pool, std::vector<EntryIndex> cached);
  // Both of the above; kNoBlock is passed over.
  void DropReferences(SessionId session, CachePool* pool, std::span<const BlockIndex> blocks);
  void FreePrivate(SessionId session, CachePool* pool, BlockIndex block);
  // A private block becomes committed, with the session's reference.
  void Publish(SessionId session, CachePool* pool, BlockIndex block, EntryIndex entry);

  [[nodiscard]] bool Holds(SessionId session, const CachePool& pool, BlockIndex block) const;
  [[nodiscard]] uint64_t references(SessionId session) const;
  [[nodiscard]] uint64_t references() const;
  [[nodiscard]] size_t size() const { return sessions_.size(); }

 private:
  struct Holdings {
    ReferenceCounts references;
    PoolBlockList private_blocks;
  };
  using HoldingsByPool = std::map<PoolId, Holdings>;
  struct Session {
    std::function<void(const LoadProgress&)> on_progress;
    HoldingsByPool pools;
  };

  [[nodiscard]] Holdings& Of(SessionId session, const CachePool& pool) {
    return sessions_.at(session).pools[pool.id];
  }
  void Unreference(CachePool* pool, BlockIndex block, uint32_t count,
                   std::vector<EntryIndex>* cached);

  CacheState& state_;
  std::unordered_map<SessionId, Session> sessions_;
  std::unordered_map<SessionId, HoldingsByPool> quarantine_;
};

}  // namespace kvtier
