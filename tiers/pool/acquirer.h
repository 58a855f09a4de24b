// Acquire: the walk along a prefix, the references it takes, the loads it starts, and the line of
// those who wait for room.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "tiers/cache_state.h"
#include "tiers/directory/session_table.h"
#include "tiers/pool/load_table.h"
#include "tiers/pool/loader.h"
#include "tiers/pool/pool_space.h"

namespace kvtier {

// Event loop only.
class Acquirer {
 public:
  using Done = std::function<void(Result<AcquireReply>)>;

  Acquirer(CacheState* state, PoolSpace* pools, Loader* loader, LoadTable* loads,
           SessionTable* sessions)
      : state_(*state), pools_(*pools), loader_(*loader), loads_(*loads), sessions_(*sessions) {}

  // See Cache::Acquire. REQUIRES: the session is open.
  void Acquire(AcquireRequest request, Done done);
  // See Cache::Prefetch.
  uint32_t Prefetch(CachePool* pool, std::span<const BlockHash> hashes, RequestTag tag);
  // Ends the waiting acquires of a session that closes; call before its references are dropped.
  void CancelSession(SessionId session);
  // Serves those waiting whose blocks have become free. True if any was served.
  bool Pump();
  // Serves those who have waited long enough by dropping dirty blocks.
  void Tick();

  [[nodiscard]] size_t waiting() const;

 private:
  struct Operation {
    AcquireRequest request;
    Done done;
    int64_t deadline_ms = 0;
    uint64_t blocks_needed = 0;
    // One per hit of the last walk: the referenced block, which cannot be evicted any more, or
    // kNoBlock for one that still has to be loaded.
    std::vector<BlockIndex> held;
    uint32_t held_count = 0;
    bool waiting = false;
  };
  // What a walk found.
  struct Walk {
    std::vector<EntryIndex> hits;
    std::optional<uint32_t> tail;
    uint32_t to_load = 0;  // hits without a block in this pool
    MissReason miss = MissReason::kNone;
  };

  [[nodiscard]] Walk FindPrefix(const CachePool& pool, const AcquireRequest& request);
  // The block if some tier can serve it, else why not.
  // `before` is the block before it in the sequence, or kNoEntry.
  [[nodiscard]] EntryIndex Servable(EntryIndex before, const BlockKey& key, MissReason* miss);
  // Cuts the walk so that at most `loads` blocks have to be loaded.
  void CutLoads(const CachePool& pool, Walk* walk, uint64_t loads);
  [[nodiscard]] Status CheckLimits(const CachePool& pool, const Operation& operation,
                                   const Walk& walk) const;
  // Serves the operation, or returns false if it has to wait.
  [[nodiscard]] bool TryServe(Operation* operation, bool force);
  void Refuse(CachePool* pool, Operation* operation, Error error);
  // What the operation holds passes to the session.
  [[nodiscard]] AcquireReply Grant(CachePool* pool, Operation* operation, const Walk& walk);
  // Registers what the walk's hits wait for. The reply's hits are without their handles yet.
  void BeginLoad(const CachePool& pool, const AcquireRequest& request, const Walk& walk,
                 AcquireReply* reply);
  // The hits become the session's: those that are not in the pool get blocks and start to load, but
  // for those that are returned, which are to be loaded in layers.
  [[nodiscard]] std::vector<EntryIndex> TakeBlocks(CachePool* pool, Operation* operation,
                                                   const Walk& walk, AcquireReply* reply);
  // How a block comes that is not in the pool.
  [[nodiscard]] static bool InLayers(const AcquireRequest& request, const BlockEntry& entry) {
    return request.layers > 0 && entry.in_host();
  }
  void CountAsked(const Operation& operation, const AcquireReply& reply);
  void Answer(Operation* operation, Result<AcquireReply> reply);
  [[nodiscard]] bool LineIsEmpty(PoolId pool) const;
  [[nodiscard]] bool InPool(const CachePool& pool, EntryIndex entry) const {
    return state_.BlockIn(pool, state_[entry]) != kNoBlock;
  }
  // A free block becomes the entry's. REQUIRES: there is one; the pool has none of the entry.
  BlockIndex TakeBlock(CachePool* pool, EntryIndex entry);
  // References the walk's resident hits in place of what the operation held before.
  void Hold(CachePool* pool, Operation* operation, const Walk& walk);
  // Keeps what is held of the first `hits` hits only.
  // What sinks to make room for the hits must not push out the hits.
  void KeepBelow(const CachePool& pool, const Walk& walk);
  void HoldOnly(CachePool* pool, Operation* operation, size_t hits);

  CacheState& state_;
  PoolSpace& pools_;
  Loader& loader_;
  LoadTable& loads_;
  SessionTable& sessions_;
  std::map<PoolId, std::deque<Operation>> waiting_;  // first come, first served
};

}  // namespace kvtier
