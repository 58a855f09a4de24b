// SPDX-License-Identifier: Apache-2.0
// Blocks that pools await and that are to be read to host: a line for each tenant, so that one that
// waits for space under its own cap in host holds up none but itself. Reads from disk and fetches
// from the cold store have lines of their own.
//
// However long a line is, each of it is read in time as long as the line moves. If none of it gets
// on for some seconds, those that have waited for so long are given up, so that no client waits for
// host or a drive without end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "base/acquired.h"
#include "tiers/policy/tenant_queues.h"
#include "tiers/state/cache_state.h"
#include "tiers/state/in_flight.h"

namespace kvtier {

// A block that a pool awaits.
struct Arrival {
  CachePool* pool = nullptr;
  EntryIndex entry;
  int64_t since_ms = 0;  // when it began to wait where it does
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
  // How long no read of a line has to begin for it to be given up.
  static constexpr int64_t kPatienceMs = 5'000;

  // The outcome of a step for the first of a line.
  enum class Step : uint8_t {
    kLeft,    // it is being read, or goes another way
    kNoSlot,  // it waits for a slot in host
    kBusy,    // it waits for reads under way
  };

  explicit ReadLines(CacheState* state) : state_(*state) {}

  // The last of its tenant's line from now on, or of the prefetches behind that.
  void Push(Arrival arrival);
  // See Loader::PromoteReferenced.
  void PromoteReferenced(TenantLine tenant) {
    lines_.Promote(tenant, [this](const Queued& read) { return !read.arrival.CanWait(state_); });
  }
  // Lets the lines take steps in turn until none can, or as many as one event should have left:
  // `step(Arrival)` returns a Step, and may push to any line. True if any has left its line.
  template <typename TakeStep>
  bool TakeTurns(const TakeStep& step) {
    return lines_.TakeTurns([&](TenantLine tenant, PriorityQueue<Queued>* line) {
      return state_.parts.TakeStep(&part_, [&] {
        std::deque<Queued>* const next = line->next();
        const bool prefetched = next == line->later();
        const Step outcome = step(next->front().arrival);
        if (outcome == Step::kLeft) next->pop_front();
        Note(tenant, prefetched, outcome);
        return outcome == Step::kLeft;
      });
    });
  }
  // Takes out the reads to be given up now, a bounded number, the others with the next call: those
  // that get no slots, prefetches that get no turn and, if reads under way may hang, those that
  // wait for these while no line moves.
  struct GivenUp {
    Arrival arrival;
    MissReason reason;
  };
  [[nodiscard]] std::vector<GivenUp> TakeStuck(bool may_hang);

  [[nodiscard]] size_t size() const { return lines_.size(); }
  // The bytes that a demand load behind these has to wait for.
  [[nodiscard]] uint64_t bytes_ahead() const { return ahead_.bytes; }

 private:
  // One in a line; `ahead` counts it for those that come behind it.
  struct Queued {
    Arrival arrival;
    InFlightBytes ahead;
  };
  // How a tenant's line gets on.
  struct Progress {
    int64_t moved_ms = 0;     // when one last left that a client waits for
    int64_t prefetch_ms = 0;  // when a prefetch last left
    bool refused = false;     // a slot, since the last one of both
  };

  void Note(TenantLine tenant, bool prefetched, Step outcome);

  CacheState& state_;
  EventPart part_;
  // Declared above the lines, whose items count themselves off when they end.
  InFlight ahead_;
  TenantQueues<Queued> lines_;
  std::vector<Progress> progress_;  // by tenant
  int64_t moved_ms_ = 0;            // when one last left any line
};

}  // namespace kvtier
