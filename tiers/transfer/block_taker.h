// SPDX-License-Identifier: Apache-2.0
// How the blocks of an acquire become its session's: first the operation holds those that are in
// the pool, then it takes them all, part by part, starting loads for those that are elsewhere; with
// the reply the references pass to the session.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "tiers/state/cache_state.h"
#include "tiers/state/pins.h"
#include "tiers/state/session_table.h"
#include "tiers/transfer/load_table.h"
#include "tiers/transfer/loader.h"
#include "tiers/transfer/prefix_finder.h"
#include "tiers/types/cache_requests.h"

namespace kvtier {

// One acquire, from the call to its answer.
struct AcquireOperation {
  AcquireRequest request;
  std::function<void(Result<AcquireReply>)> done;
  int64_t deadline_ms = 0;
  // The blocks to take; `to_load` says how many loads may still begin.
  FoundPrefix found;
  // One per hit found: the referenced block, which cannot be evicted any more, or kNoBlock for one
  // that still has to be loaded. These are the operation's references: the session can neither
  // release nor use them before it has the reply.
  HeldReferences held;

  bool has_waited = false;
  bool waits = false;       // for room; else it is answered, or goes on with the next event
  bool begun = false;       // the first part has been taken
  bool host_asked = false;  // host was to make space for it at the cost of unwritten blocks
  bool forced = false;      // it has waited for long enough: dirty blocks make room for it
  // Holds the hits that were taken.
  AcquireReply reply;
  uint64_t passed = 0;                 // see PoolSpace::ForceFree
  size_t used = 0;                     // the last so many of them count as used
  std::vector<PinnedEntry> in_layers;  // of those, the ones to be loaded in layers

  [[nodiscard]] size_t taken() const { return reply.hits.size(); }
  [[nodiscard]] bool all_hits_taken() const { return taken() == found.hits.size(); }
  // Free blocks that it needs yet.
  [[nodiscard]] uint64_t blocks_left() const {
    return uint64_t{found.to_load} + request.new_blocks;
  }
  // It has all that it needs for its next part, but for an event.
  [[nodiscard]] bool goes_on() const { return forced || (begun && !waits); }
};

// Event loop only.
class BlockTaker {
 public:
  BlockTaker(CacheState* state, PrefixFinder* finder, Loader* loader, LoadTable* loads,
             SessionTable* sessions)
      : state_(*state), finder_(*finder), loader_(*loader), loads_(*loads), sessions_(*sessions) {}

  // References the resident hits, which then cannot be evicted, in place of the blocks that the
  // operation held before. REQUIRES: nothing was taken.
  void Hold(CachePool* pool, AcquireOperation* operation);
  // Only the first `hits` hits are to be served; `miss` says why.
  static void Cut(AcquireOperation* operation, size_t hits, MissReason miss);

  // Takes hits until `room` free blocks are used or all are taken. Copies of the first begin at
  // once. REQUIRES: the pool has so many free blocks.
  void Take(CachePool* pool, AcquireOperation* operation, uint64_t room);
  // All hits are taken, and there is room for the private blocks.
  [[nodiscard]] static bool Complete(const CachePool& pool, const AcquireOperation& operation) {
    return operation.all_hits_taken() && pool.blocks.free() >= operation.request.new_blocks;
  }
  // Taken blocks count as used, a part of them with each call. True when all do. REQUIRES:
  // Complete.
  [[nodiscard]] bool UseSome(CachePool* pool, AcquireOperation* operation);
  // The taken blocks pass to the session with the reply. Then, when the client has the reply, its
  // load is to be closed. REQUIRES: Complete, and all count as used.
  void HandOver(CachePool* pool, AcquireOperation* operation);
  // Gives back all held and taken blocks. Loads that no other acquire waits for end by themselves.
  void Undo(CachePool* pool, AcquireOperation* operation);
  // The same in two steps, for an operation that has been answered. First its load is forgotten, of
  // which the client has not heard; then, by as many calls as it takes until `held` is empty, its
  // blocks are dropped: some `most` in one call, the last of the prefix first. Returns how many
  // were looked at, and one for the operation.
  void DiscardLoad(AcquireOperation* operation);
  size_t UndoSome(CachePool* pool, AcquireOperation* operation, size_t most);

  // A free block becomes the entry's. REQUIRES: there is one; the pool has none of the entry.
  BlockIndex TakeBlock(CachePool* pool, EntryIndex entry);

 private:
  // Hits that become the session's together.
  struct Batch {
    std::vector<LoadTable::Added> hits;
    bool prefetched = false;  // some are on their way because they were prefetched
  };

  // The next hit gets a block of the pool and starts to load, if it is in none. False if there is
  // no next, or no room.
  [[nodiscard]] bool TakeHit(CachePool* pool, AcquireOperation* operation, uint64_t* room,
                             Batch* batch);
  // The pool's block of the entry, new and loading if there was none.
  BlockIndex StartLoad(CachePool* pool, AcquireOperation* operation, EntryIndex entry,
                       bool in_layers);
  // Registers the blocks that the batch waits for and starts its copies.
  void EndBatch(CachePool* pool, AcquireOperation* operation, const Batch& batch);
  // With the hits before the batch, none of which has to arrive.
  void OpenLoad(CachePool* pool, AcquireOperation* operation, size_t hits_before);
  // Blocks found on disk at the start are not linked before an acquire names them in their order.
  void LinkTo(const CachePool& pool, const AcquiredBlock& before, EntryIndex entry);
  // A hit whose load has failed before the reply, in an earlier part, was used like one that fails
  // after it: what a lower tier still has of it stays young.
  void UseFailed(CachePool* pool, const AcquireOperation& operation, size_t position);
  void QueueLayers(CachePool* pool, AcquireOperation* operation);

  // How a block comes that is not in the pool.
  [[nodiscard]] bool InLayers(const CachePool& pool, const AcquireRequest& request,
                              EntryIndex index) const {
    return request.layers > 0 && state_[index].in_host() &&
           !loader_.neighbours().SourceOf(pool, index);
  }

  CacheState& state_;
  PrefixFinder& finder_;
  Loader& loader_;
  LoadTable& loads_;
  SessionTable& sessions_;
};

}  // namespace kvtier
