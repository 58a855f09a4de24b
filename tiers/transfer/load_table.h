// SPDX-License-Identifier: Apache-2.0
// The loads under way: which acquires wait for which blocks, and how far each has come.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "gpu/counter_page.h"
#include "tiers/blocks/block_ends.h"
#include "tiers/state/cache_state.h"
#include "tiers/transfer/layer_count.h"
#include "tiers/types/cache_requests.h"

namespace kvtier {

// A load that waits for a block.
struct LoadWaiter {
  LoadId load;
  uint32_t position = 0;   // among the load's hits
  bool in_layers = false;  // the block arrives layer by layer
};

// Which loads wait for which blocks of which pools. Looking a block up reads four bytes of a page
// that its neighbours in the directory share: the blocks of a sequence lie side by side there, so
// that a load of very many costs few cache misses. Pages are the pool's and stay as long as it
// does: four bytes for each row of the directory that was ever loaded into it or lies beside one.
// Event loop only.
class LoadWaiters {
 public:
  void Add(CachePool* pool, EntryIndex block, const LoadWaiter& waiter);
  // Calls `visit(const LoadWaiter&)` for each that waits for the block, the latest first, until it
  // returns false. `visit` must not change this table.
  template <typename Visit>
  void ForEach(const CachePool& pool, EntryIndex block, Visit visit) const {
    const uint32_t* const first = pool.load_waiters.Find(block.value);
    if (first == nullptr) return;
    for (uint32_t row = *first; row != kNone && visit(rows_[row].waiter);) row = rows_[row].next;
  }
  // No load waits for the block any more: returns the first row of those that did.
  [[nodiscard]] uint32_t Take(CachePool* pool, EntryIndex block) {
    if (pool->load_waiters.Find(block.value) == nullptr) return kNone;
    return std::exchange(pool->load_waiters[block.value], kNone);
  }
  // Frees a taken row, sets it to the next of the block, and returns its waiter. REQUIRES: not
  // kNone.
  LoadWaiter Next(uint32_t* row) {
    const uint32_t taken = std::exchange(*row, rows_[*row].next);
    rows_[taken].next = std::exchange(free_, taken);
    return rows_[taken].waiter;
  }

  // Row 0 is no waiter's, because pages begin as zeros.
  static constexpr uint32_t kNone = 0;

 private:
  struct Row {
    LoadWaiter waiter;
    uint32_t next = kNone;  // of the same block, or free
  };

  std::vector<Row> rows_{1};
  uint32_t free_ = kNone;
};

// Several loads may wait for one block; a block is moved once. Event loop only.
//
// A load is open while its acquire adds to it the blocks that it takes. Its blocks may arrive and
// fail meanwhile; nothing is reported, and it does not end, before it is closed.
//
// A load may have a counter that its client watches. The device that copies counts every step that
// can be foretold: a step whose copies are all submitted, and whose predecessors are, is handed to
// the device with the copies. The rest is counted here when it has arrived.
class LoadTable final : public BlockListener {
 public:
  using Report = std::function<void(SessionId, const LoadProgress&)>;
  // `report` is called from OnEnded, LeavePool and GoOn, and from Close if the first was called for
  // the load while it was open. How each load ended is counted in `stats`. One call closes loads of
  // `part_blocks` hits; one event hands to the device, tells and reports as many.
  LoadTable(CacheStats* stats, uint32_t part_blocks, Report report)
      : stats_(*stats), part_blocks_(part_blocks), report_(std::move(report)) {}

  // The session hears of its loads from now on, behind `report`, until CloseSession.
  void OpenSession(SessionId session, std::function<void(const LoadProgress&)> on_progress);

  struct Hit {
    Tier tier = Tier::kPool;  // where it was found
    uint16_t tokens = 0;
    bool from_cold = false;
  };
  struct Added {
    Hit hit;
    EntryIndex entry;        // of a block that has still to arrive, else kNoEntry
    bool in_layers = false;  // arrives layer by layer, and LayersOf(load) hears of it
  };
  struct Start {
    SessionId session;
    CachePool* pool = nullptr;  // where they arrive
    // Counts blocks, or layers if `layers` is not 0; may be null.
    std::shared_ptr<StepCounter> counter;
    uint32_t layers = 0;
  };
  LoadId Open(Start start);
  // The next hits of an open load. To be called before copies of those that have to arrive begin.
  void Add(LoadId load, std::span<const Added> hits);
  // All hits of an open load have been added; before the client learns of it.
  void HasAllHits(LoadId load);
  // The same, and the client knows of the load.
  void Close(LoadId load);
  // Forgets an open load of which no client has heard.
  void Discard(LoadId load);

  // The blocks are about to be copied by one demand request behind all earlier ones: returns steps
  // for it to count, of a part of the loads. The others are counted when the blocks have arrived.
  [[nodiscard]] std::vector<CountedStep> BlocksQueued(const CachePool& pool,
                                                      std::span<const EntryIndex> entries);
  // Blocks that arrive together are reported together. If one will not arrive in a pool, the loads
  // that wait for it there end before it. Any number may wait for one block: GoOn tells and reports
  // those that are more than a part.
  void OnEnded(std::span<const BlockEnd> ends) override;

  // Counts the layers of the blocks that this load waits for in layers; null if it has no counter,
  // or has been forgotten.
  [[nodiscard]] std::shared_ptr<LayerCount> LayersOf(LoadId load) const;

  // Forgets the session's loads; blocks in flight still arrive for the others that wait for them.
  // Only a part of their hits is looked at in one call, each load counting as one more; GoOn goes
  // on.
  void CloseSession(SessionId session);
  // The same for those into one pool; each is reported as finished, kCancelled. REQUIRES: none of
  // them is open.
  void LeavePool(SessionId session, PoolId pool);
  // Another part may be handed to devices, told and reported from now on.
  void BeginEvent() { looks_left_ = tells_left_ = part_blocks_; }
  // Closes and reports the next part of the loads that are left, in an event of its own.
  void GoOn();
  [[nodiscard]] bool HasMore() const {
    return !closing_.empty() || !ended_.empty() || !touched_.empty();
  }

  [[nodiscard]] size_t size() const { return loads_.size(); }

 private:
  struct Load {
    SessionId session;
    CachePool* pool = nullptr;  // may be gone when the load is counted and forgotten
    PoolId pool_id;
    NamespaceId namespace_id;  // the pool's
    bool open = true;
    bool news = false;     // to be reported when it is closed
    bool touched = false;  // in touched_
    bool cut = false;      // since it was last reported
    std::vector<Hit> hits;
    std::vector<bool> arrived;
    uint32_t ready = 0;  // length of the arrived prefix
    uint32_t limit = 0;  // nothing from here on will be reported ready
    MissReason miss = MissReason::kNone;

    std::shared_ptr<StepCounter> counter;
    std::shared_ptr<LayerCount> layers;  // null: blocks are counted, or nothing
    bool in_layers = false;              // some blocks arrive in layers
    uint32_t counted = 0;                // blocks counted here or handed to the device
    std::vector<bool> on_way;            // copies that the device counts

    [[nodiscard]] bool counts_blocks() const { return counter && !layers; }
  };
  using Loads = std::unordered_map<LoadId, Load>;

  static void BlockEnded(Load* load, const LoadWaiter& waiter, MissReason reason);
  // Tells the loads that waited for ended blocks, and reports those that were told.
  void TellSome();
  void ReportSome();
  void CloseSome();

  void Tell(SessionId session, const LoadProgress& progress);
  // Advances the prefix; reports unless the load is open, and forgets it when it is finished:
  // returns true then.
  bool Advance(LoadId id, bool changed);
  static void AdvancePrefix(Load* load);
  // Counts the blocks that have arrived and have not been handed to the device.
  static void CountArrived(Load& load);
  void Count(const Load& load, MissReason reason);
  // The load is no more; its session may be closed already.
  void Forget(Loads::iterator load);

  CacheStats& stats_;
  const uint32_t part_blocks_;
  size_t looks_left_ = part_blocks_;  // of this event's parts: at loads that wait for a copy
  size_t tells_left_ = part_blocks_;  // and of loads to be told and reported
  Report report_;
  std::unordered_map<SessionId, std::function<void(const LoadProgress&)>> listeners_;
  Loads loads_;
  // The loads of open sessions, by pool, so that closing one need not look at the loads of all.
  std::unordered_map<SessionId, std::map<PoolId, std::unordered_set<LoadId>>> of_session_;
  // To be forgotten, since their session was closed or has left their pool; some may have ended by
  // themselves. Never empty.
  struct Closing {
    std::unordered_set<LoadId> loads;
    bool tells = false;  // there is a session that hears of it
  };
  std::deque<Closing> closing_;
  // The loads that have waited for a block and are not told of its end yet.
  struct Ended {
    uint32_t row = LoadWaiters::kNone;
    MissReason reason = MissReason::kNone;
  };
  std::deque<Ended> ended_;
  std::deque<LoadId> touched_;  // each once; some may be gone
  LoadWaiters waiters_;
  uint64_t next_id_ = 1;
};

}  // namespace kvtier
