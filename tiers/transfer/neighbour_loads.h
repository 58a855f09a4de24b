// SPDX-License-Identifier: Apache-2.0
// Pool to pool: blocks that the pool of another device holds, where the device that awaits them can
// read that memory itself, over NVLink or PCIe. Host memory has no part in it.
//
// A block that is copied from is referenced meanwhile, so that its pool neither evicts it nor is
// closed. If its pool has lost it when the copy has landed, the bytes that came are no good.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <utility>
#include <vector>

#include "tiers/policy/tenant_queues.h"
#include "tiers/state/cache_state.h"
#include "tiers/transfer/copy_batch.h"

namespace kvtier {

// A reference of the cache itself to a block of a pool. Move-only. Event loop only.
class NeighbourBlock {
 public:
  // REQUIRES: the block is committed and not loading.
  NeighbourBlock(CacheState* state, CachePool* pool, BlockIndex block);
  NeighbourBlock(NeighbourBlock&& other) noexcept
      : state_(other.state_), pool_(std::exchange(other.pool_, nullptr)), block_(other.block_) {}
  NeighbourBlock& operator=(NeighbourBlock&& other) noexcept {
    std::swap(state_, other.state_);
    std::swap(pool_, other.pool_);
    std::swap(block_, other.block_);
    return *this;
  }
  ~NeighbourBlock();

  [[nodiscard]] CachePool* pool() const { return pool_; }
  [[nodiscard]] BlockIndex block() const { return block_; }
  // Its pool still vouches for it.
  [[nodiscard]] bool Holds() const {
    return pool_->blocks[block_].state() == PoolBlockState::kCommitted;
  }

 private:
  CacheState* state_;
  CachePool* pool_;  // null: moved from
  BlockIndex block_;
};

// Event loop only. Each block ends once (kFromNeighbour): here, cancelled, or to be brought by
// another way (kCopyFailed). Blocks of one copy, all of one pool, end together.
class NeighbourLoads {
 public:
  NeighbourLoads(CacheState* state, BlockListener* listener);

  // Which devices' pools the device can read; a bit for each DeviceIndex.
  [[nodiscard]] uint32_t ReadableBy(DeviceIndex device) const;
  // The pool that is the fastest source of the block for `pool`; null if that is not a neighbour's:
  // none has it, or host has it and was measured to be faster.
  [[nodiscard]] CachePool* SourceOf(const CachePool& pool, const BlockEntry& entry) const;
  // REQUIRES: the block is loading in `pool`; SourceOf has named the source.
  void Add(CachePool* pool, EntryIndex entry, CachePool* source);
  // See Loader::PromoteReferenced.
  void PromoteReferenced(const CachePool& pool);
  // Starts what can be started. True if anything was.
  bool Pump();

  [[nodiscard]] bool Idle() const { return copies_.Idle(); }
  [[nodiscard]] uint64_t queued() const { return queue_.size(); }

 private:
  struct Waiting {
    CachePool* pool = nullptr;
    EntryIndex entry;
    NeighbourBlock source;
  };
  struct Batch {
    CopyBatch copies;
    std::vector<Waiting> blocks;
  };

  [[nodiscard]] const PoolBlock& TargetOf(const Waiting& waiting) const {
    return waiting.pool->blocks[state_.blocks.BlockIn(*waiting.pool, state_[waiting.entry])];
  }
  void Start(std::deque<Waiting>* line, CopyPriority priority);
  [[nodiscard]] BlockEnd EndOf(const Waiting& waiting, MissReason reason) const;
  void OnCopied(std::list<Batch>::iterator landed, const Status& status);

  CacheState& state_;
  BlockListener& listener_;
  CopyLimiter copies_;
  std::vector<uint32_t> readable_;  // by DeviceIndex
  TenantQueues<Waiting, CopyLine> queue_;
  std::list<Batch> batches_;
};

}  // namespace kvtier
