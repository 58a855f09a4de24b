// SPDX-License-Identifier: Apache-2.0
// Stores of one session that begin when a word of its counter page says so: an engine's stream
// writes it behind the kernels that compute the blocks, so that neither the engine nor the daemon
// waits for them.
//
// The word is looked at every millisecond. It is the client's, and its value concerns the client's
// own blocks alone: one that is written too early has the client's unfinished bytes stored under
// its own hashes, and one that is never written makes the store fail in time. No stream and no copy
// of the daemon waits for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/ids.h"
#include "daemon/runtime/event_loop.h"
#include "gpu/counter_page.h"
#include "protocol/region_messages.h"
#include "tiers/cache.h"

namespace kvtier {

// Event loop only.
class HeldStores {
 public:
  // How often a store is looked at before it fails: for longer than any step of an engine takes.
  static constexpr int kMostLooks = 10'000;
  static constexpr int64_t kLookEveryMs = 1;
  // So many blocks are stored, or cancelled, in one event; the last store may exceed it.
  static constexpr size_t kBlocksPerLook = 1024;

  HeldStores(EventLoop* loop, Cache* cache) : cache_(*cache), next_look_(loop) {}

  // Whether the word has reached the value, modulo 2^32. REQUIRES: page.CanBeNamed(after.offset).
  [[nodiscard]] static bool Reached(const CounterPage& page, const wire::StoreAfter& after);

  // Begins the store, which was announced to the cache, when the word has reached the value; or
  // cancels it when that takes too long. REQUIRES: as Reached; the region stays open until Drop.
  void Hold(PoolId region, std::vector<StoreRequest> blocks, std::shared_ptr<CounterPage> page,
            const wire::StoreAfter& after);
  // The region is about to be closed, which ends its transfers; or all regions of the session are.
  void Drop(PoolId region);
  void DropAll();
  // The blocks of all stores that are held.
  [[nodiscard]] size_t blocks() const;

 private:
  struct Held {
    PoolId region;
    std::vector<StoreRequest> blocks;
    std::shared_ptr<CounterPage> page;
    wire::StoreAfter after;
    int looks_left = kMostLooks;
    size_t begun = 0;  // the first so many blocks
  };

  void Look();
  void CancelLate();
  // Null if none can go on.
  [[nodiscard]] std::shared_ptr<Held> NextReady() const;

  Cache& cache_;
  std::deque<std::shared_ptr<Held>> held_;
  Timer next_look_;
};

}  // namespace kvtier
