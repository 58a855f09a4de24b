// SPDX-License-Identifier: Apache-2.0
// Blocks that pools await and that are to be read to host: a line for each tenant, so that one that
// waits for space under its own cap in host holds up none but itself. Reads from disk and fetches
// from the cold store have lines of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "tiers/policy/tenant_queues.h"
#include "tiers/state/cache_state.h"
#include "tiers/state/in_flight.h"

namespace kvtier {

// A block that a pool awaits.
struct Arrival {
  CachePool* pool = nullptr;
  EntryIndex entry;
  int64_t since_ms = 0;
  // The pool that held it was asked for a copy already.
  bool asked_pool = false;

  [[nodiscard]] const PoolBlock& BlockIn(const CacheState& state) const {
    return pool->blocks[state.blocks.BlockIn(*pool, state.blocks.directory[entry])];
  }
  // It was prefetched, and no client has asked for it since.
  [[nodiscard]] bool CanWait(const CacheState& state) const { return BlockIn(state).CanWait(); }
  // No client waits for the block any more.
  [[nodiscard]] bool Cancelled(const CacheState& state) const { return BlockIn(state).Cancelled(); }
  // The block as part of what loads behind it have to wait for; a demand load overtakes prefetches.
  [[nodiscard]] InFlightBytes Ahead(InFlight* line, const CacheState& state) const;
};

// Event loop only.
class ReadLines {
 public:
  // How long a read waits for a slot in host.
  static constexpr int64_t kPatienceMs = 5'000;

  explicit ReadLines(const CacheState* state) : state_(*state) {}

  // The last of its tenant's line from now on, or of the prefetches behind that.
  void Push(const Arrival& arrival);
  // See Loader::PromoteReferenced.
  void PromoteReferenced(TenantLine tenant) {
    lines_.Promote(tenant, [this](const Queued& read) { return !read.arrival.CanWait(state_); });
  }
  // Lets the lines take steps in turn until none can: `step(Arrival)` is false if that one has to
  // wait, and may push to any line. True if any has left its line.
  template <typename TakeStep>
  bool TakeTurns(const TakeStep& step) {
    return lines_.TakeTurns([&](TenantLine, PriorityQueue<Queued>* line) {
      std::deque<Queued>* const next = line->next();
      if (!step(next->front().arrival)) return false;
      next->pop_front();
      return true;
    });
  }
  // Takes out those that have waited for too long, a bounded number, the others with the next call.
  [[nodiscard]] std::vector<Arrival> TakeLate();

  [[nodiscard]] size_t size() const { return lines_.size(); }
  // The bytes that a demand load behind these has to wait for.
  [[nodiscard]] uint64_t bytes_ahead() const { return ahead_.bytes; }

 private:
  // One in a line; `ahead` counts it for those that come behind it.
  struct Queued {
    Arrival arrival;
    InFlightBytes ahead;
  };

  const CacheState& state_;
  // Declared above the lines, whose items count themselves off when they end.
  InFlight ahead_;
  TenantQueues<Queued> lines_;
};

}  // namespace kvtier
