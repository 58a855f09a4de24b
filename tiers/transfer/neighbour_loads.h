// SPDX-License-Identifier: Apache-2.0
// Pool to pool: blocks that the pool of another device holds, or an engine's region of any, where
// the device that awaits them can read that memory itself: its own, or over NVLink or PCIe. Host
// memory has no part in it.
//
// A pool's block that is copied from is referenced meanwhile, so that its pool neither evicts it
// nor is closed. A region keeps its memory, but its engine is free to overwrite it. If the source
// does not hold the block any more when the copy has landed, the bytes that came are no good.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/gate.h"
#include "tiers/policy/tenant_queues.h"
#include "tiers/state/cache_state.h"
#include "tiers/state/pins.h"
#include "tiers/transfer/copy_batch.h"
#include "tiers/transfer/region_sources.h"

namespace kvtier {

// The cache's own hold on a source. Move-only. Event loop only.
class NeighbourBlock {
 public:
  // REQUIRES: a pool's block is committed and not loading.
  NeighbourBlock(CacheState* state, NeighbourSource source);
  NeighbourBlock(NeighbourBlock&& other) noexcept
      : state_(other.state_), source_(std::exchange(other.source_, {})) {}
  NeighbourBlock& operator=(NeighbourBlock&& other) noexcept {
    std::swap(state_, other.state_);
    std::swap(source_, other.source_);
    return *this;
  }
  ~NeighbourBlock();

  [[nodiscard]] CachePool* pool() const { return source_.pool; }
  [[nodiscard]] BlockIndex block() const { return source_.block; }
  [[nodiscard]] uint64_t number() const { return source_.number; }
  // REQUIRES: it is of a pool. This still vouches for it.
  [[nodiscard]] bool Holds() const {
    return pool()->blocks[block()].state() == PoolBlockState::kCommitted;
  }

 private:
  CacheState* state_;
  NeighbourSource source_;  // without a pool: moved from
};

// Event loop only. Each block ends once (kFromNeighbour): here, cancelled, or to be brought by
// another way (kCopyFailed). Blocks of one copy, all of one pool, end together.
class NeighbourLoads {
 public:
  NeighbourLoads(CacheState* state, BlockListener* listener);

  // The regions among the sources.
  [[nodiscard]] RegionSources& regions() { return regions_; }
  // Which other devices' memory the device can read; a bit for each DeviceIndex. None once its
  // copies from there have failed too often.
  [[nodiscard]] uint32_t ReadableBy(DeviceIndex device) const;
  // The fastest source of the block for `pool`; nothing if that is not a neighbour: none has it, or
  // host has it and was measured to be faster.
  [[nodiscard]] std::optional<NeighbourSource> SourceOf(const CachePool& pool,
                                                        EntryIndex entry) const;
  // REQUIRES: the block is loading in `pool`; SourceOf has named the source.
  void Add(CachePool* pool, EntryIndex entry, NeighbourSource source);
  // See Loader::PromoteReferenced.
  void PromoteReferenced(const CachePool& pool);
  // Starts what can be started. True if anything was.
  bool Pump();
  // Gives up looks at what engines publish that are not answered.
  void Tick();

  [[nodiscard]] bool Idle() const { return copies_.Idle() && looks_.empty(); }
  [[nodiscard]] uint64_t queued() const { return queue_.size(); }

 private:
  struct Waiting {
    CachePool* pool = nullptr;
    EntryIndex entry;
    NeighbourBlock source;
    HostPin host;  // if it is there, so that there is another way yet
  };
  struct Batch {
    CopyBatch copies;
    std::vector<Waiting> blocks;
  };
  // Blocks that have landed from a region, of which it is not known whether they held then.
  struct Landed {
    std::vector<Waiting> blocks;
    int64_t deadline_ms = 0;
  };

  [[nodiscard]] const PoolBlock& TargetOf(const Waiting& waiting) const {
    return waiting.pool->blocks[state_.blocks.BlockIn(*waiting.pool, state_[waiting.entry])];
  }
  // A pool before a region, which may take its block away.
  [[nodiscard]] std::optional<NeighbourSource> AnySource(const CachePool& pool,
                                                         EntryIndex entry) const;
  void Start(std::deque<Waiting>* line, CopyPriority priority);
  [[nodiscard]] BlockEnd EndOf(const Waiting& waiting, MissReason reason) const;
  void OnCopied(std::list<Batch>::iterator landed, const Status& status);
  // Tells of the blocks when the engine's table has been looked at.
  void LookAgain(std::vector<Waiting> blocks);
  void OnLooked(uint64_t look, const std::vector<uint64_t>& numbers);
  // Tells of the blocks, of which `held[i]` says whether the source held it to the end.
  void EndAll(std::vector<Waiting> blocks, const std::vector<bool>& held);

  CacheState& state_;
  BlockListener& listener_;
  RegionSources regions_;
  CopyLimiter copies_;
  std::vector<uint32_t> readable_;  // by DeviceIndex
  std::vector<uint32_t> failures_;  // by DeviceIndex: its copies that failed one after the other
  TenantQueues<Waiting, CopyLine> queue_;
  std::list<Batch> batches_;
  std::map<uint64_t, Landed> looks_;  // in the order of their deadlines
  uint64_t last_look_ = 0;
  Gate gate_;  // last
};

}  // namespace kvtier
