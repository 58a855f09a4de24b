// SPDX-License-Identifier: Apache-2.0
// How the parts of the cache hear that a block's way from one tier to another has ended.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "tiers/directory/directory.h"
#include "tiers/types/cache_requests.h"

namespace kvtier {

struct CachePool;

enum class BlockMove : uint8_t {
  kToPool,         // a load into a pool or region
  kInLayers,       // the copies of a block that comes to its pool layer by layer
  kFromNeighbour,  // the copy of a block from another pool or region
  kToHost,         // an offload of a block that a load of another pool waits for
  kFromRegion,     // an offload that an engine has asked for
  kRead,           // a read from disk, or from the cold store, to host
  kReadAhead       // a read from disk to host that no pool waits for
};

// A block that has arrived, or will not.
struct BlockEnd {
  BlockMove move = BlockMove::kToPool;
  EntryRef block;
  CachePool* pool = nullptr;  // in which the block was to arrive; of these three
  // The block of a region that was stored; of kFromRegion.
  PoolId region;
  BlockHandle place;
  // Says of them, kRead and kReadAhead why the block has not arrived; kNone: it has.
  // The other moves carry the reason should host not have the block: one that was stored may have
  // been dropped since.
  MissReason reason = MissReason::kNone;
};

// Event loop only.
class BlockListener {
 public:
  virtual ~BlockListener() = default;
  // Ends of one event, in their order, of all moves: the listener takes those that concern it. It
  // removes no pool, since other listeners are told of the same ends.
  virtual void OnEnded(std::span<const BlockEnd> ends) = 0;
};

// Event loop only. Every end is told to every listener, in the order in which they came, so that
// a part that moves blocks knows no part that waits for them.
class BlockEnds {
 public:
  // `listener` is borrowed, and outlives the last end.
  void AddListener(BlockListener* listener) { listeners_.push_back(listener); }

  // Tells of ends whose blocks may be forgotten right afterwards.
  void Tell(std::span<const BlockEnd> ends) const {
    for (BlockListener* const listener : listeners_) listener->OnEnded(ends);
  }
  // Keeps an end until the next call of TellKept: the block is in the midst of a change.
  void TellLater(const BlockEnd& end) { kept_.push_back(end); }
  // True if there were any. Ends that listeners add meanwhile are kept for the next call.
  bool TellKept() {
    const std::vector<BlockEnd> ends = std::exchange(kept_, {});
    if (!ends.empty()) Tell(ends);
    return !ends.empty();
  }

 private:
  std::vector<BlockListener*> listeners_;
  std::vector<BlockEnd> kept_;
};

}  // namespace kvtier
