// Space in the pools: free blocks, and which cached block leaves to make one.
#pragma once

#include <cstdint>

#include "tiers/cache_state.h"
#include "tiers/offloader.h"

namespace kvtier {

// Event loop only.
class PoolSpace {
 public:
  PoolSpace(CacheState* state, Offloader* offloader) : state_(*state), offloader_(*offloader) {}

  // The pool of the space, created on first use. See Cache::AttachPool.
  [[nodiscard]] Result<CachePool*> Attach(SpaceId space, uint64_t pool_bytes);

  // Blocks that are free or could become free by eviction.
  [[nodiscard]] static uint64_t Obtainable(const CachePool& pool) {
    return pool.blocks.free() + pool.victims.size();
  }
  // Evicts clean blocks, coldest first, until `blocks` are free. False if it has to wait for copies
  // to host; those are then on their way.
  [[nodiscard]] bool EnsureFree(CachePool* pool, uint64_t blocks);
  // Evicts dirty blocks too, except those being copied right now. False if even that is not enough.
  [[nodiscard]] bool ForceFree(CachePool* pool, uint64_t blocks);

  // The block leaves the pool. REQUIRES: cached, no pins.
  void Drop(EntryIndex entry, DropReason reason);

  // Readies each pool's coldest to be dropped at no cost.
  void Prepare();

  [[nodiscard]] uint64_t used_bytes() const { return used_bytes_; }

 private:
  // Dropping the block costs nothing.
  [[nodiscard]] static bool Clean(const BlockEntry& entry);
  [[nodiscard]] bool MayForget(const BlockEntry& entry) const;
  // Ahead of need every block goes to host. When room is needed now, what is on disk does not wait
  // for that.
  enum class Need : uint8_t { kLater, kNow };
  void PrepareVictims(CachePool* pool, uint64_t target, Need need);

  CacheState& state_;
  Offloader& offloader_;
  uint64_t used_bytes_ = 0;
};

}  // namespace kvtier
