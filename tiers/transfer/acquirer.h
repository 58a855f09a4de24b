// SPDX-License-Identifier: Apache-2.0
// Acquire: the references it takes along a prefix, the loads it starts, and the line of those who
// wait for room.
//
// An acquire of many blocks is served in parts (CacheOptions::acquire_part_blocks), each in an
// event of its own: the copies of the first begin while the others are still in their places, and
// no other request waits for longer than a part. Later acquires of the same pool queue behind it.
// Until it is answered, the references are the operation's own (HeldReferences): they pass to the
// session with the reply, and are dropped if the acquire is refused after all.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <vector>

#include "tiers/space/pool_space.h"
#include "tiers/state/cache_state.h"
#include "tiers/state/session_table.h"
#include "tiers/transfer/block_taker.h"
#include "tiers/transfer/load_planner.h"
#include "tiers/transfer/load_table.h"
#include "tiers/transfer/loader.h"

namespace kvtier {

// Event loop only.
class Acquirer {
 public:
  using Done = std::function<void(Result<AcquireReply>)>;

  Acquirer(CacheState* state, PoolSpace* pools, Loader* loader, LoadTable* loads,
           SessionTable* sessions)
      : state_(*state),
        pools_(*pools),
        loader_(*loader),
        loads_(*loads),
        sessions_(*sessions),
        finder_(state),
        planner_(state, loader),
        taker_(state, &finder_, loader, loads, sessions) {}

  // See Cache::Acquire. REQUIRES: the session is open.
  void Acquire(AcquireRequest request, Done done);
  // See Cache::Prefetch.
  uint32_t Prefetch(CachePool* pool, std::span<const BlockHash> hashes, RequestTag tag);
  // Answers the acquires of a session that closes or, with `pool`, leaves that pool: kCancelled
  // "session_closed", "pool_detached". Call before its loads are closed. The blocks that they held
  // are dropped in parts (CacheOptions::close_part_blocks), the first of them at once and the
  // others by CancelSome.
  void Cancel(SessionId session, std::optional<PoolId> pool);
  // The next part of what cancelled acquires held; once for each event that the cache schedules.
  void CancelSome();
  // Serves those waiting whose blocks have become free, a part of them. True if any was served.
  bool Pump();
  // The next part of an acquire that is not complete; once for each event that the cache schedules.
  void GoOn();
  // Has the acquires that have waited long enough go on at the cost of dirty blocks: of host first.
  void Tick();

  // The number of acquires not answered yet.
  [[nodiscard]] size_t waiting() const;

 private:
  using Operation = AcquireOperation;
  using Line = std::list<Operation>;
  enum class Outcome : uint8_t {
    kAnswered,
    kGoesOn,  // a part is taken, the next follows in an event of its own
    kWaits,   // for blocks to become free, of themselves or by force
  };

  // Serves those of one line that wait. True if any was served.
  [[nodiscard]] bool PumpLine(std::map<PoolId, Line>::iterator of_pool);
  // The next of the line that needs but an event to go on, or its end.
  [[nodiscard]] static Line::iterator NextPart(Line* line);
  // Takes the next part of the operation's request. For one that is forced, blocks make room that
  // are nowhere else.
  [[nodiscard]] Outcome Serve(Operation* operation);
  // Looks what there is, and holds it. False if the operation was refused.
  [[nodiscard]] bool Begin(CachePool* pool, Operation* operation);
  [[nodiscard]] Status CheckLimits(const CachePool& pool, const Operation& operation) const;
  // References that acquires under way have yet to take for the session.
  [[nodiscard]] uint64_t Promised(SessionId session) const;
  // Cuts the found prefix so that at most `loads` blocks have to be loaded. REQUIRES: nothing was
  // taken.
  void CutLoads(CachePool* pool, Operation* operation, uint64_t loads);
  // Free blocks that there should be for the next part.
  [[nodiscard]] uint64_t RoomFor(const CachePool& pool, const Operation& operation) const;
  // Makes room for the next part, unless it is refused (kAnswered) or has to wait.
  [[nodiscard]] Outcome MakeRoom(CachePool* pool, Operation* operation);
  // The same for one that is forced, a part of it: kWaits until the next.
  [[nodiscard]] Outcome ForceRoom(CachePool* pool, Operation* operation);
  // Plans with no more than `obtainable` blocks. False if the operation was refused.
  [[nodiscard]] bool FitInto(CachePool* pool, Operation* operation, uint64_t obtainable);
  // Touches in the lower tiers the hits that are not taken yet, so that blocks which move down
  // meanwhile do not evict them.
  void TouchLowerTiers(const CachePool& pool, const Operation& operation);
  void StartWaiting(Operation* operation);
  // True once for an operation that has waited for half of its time or more while host waits for
  // the disk: until the next tick, host gives up blocks older than the pool's.
  [[nodiscard]] bool AsksHost(Operation* operation, int64_t now_ms) const;
  // Tells each device whether an acquire waits for space in one of its pools, so that it copies
  // down faster.
  void TellDevices();
  void Finish(CachePool* pool, Operation* operation);
  void Refuse(CachePool* pool, Operation* operation, Error error);
  void CountAsked(const Operation& operation);
  void Answer(Operation* operation, Result<AcquireReply> reply);

  [[nodiscard]] bool LineIsEmpty(PoolId pool) const { return !lines_.contains(pool); }
  [[nodiscard]] bool InPool(const CachePool& pool, EntryIndex entry) const {
    return state_.blocks.BlockIn(pool, state_[entry]) != kNoBlock;
  }

  CacheState& state_;
  PoolSpace& pools_;
  Loader& loader_;
  LoadTable& loads_;
  SessionTable& sessions_;
  PrefixFinder finder_;
  LoadPlanner planner_;
  BlockTaker taker_;
  std::map<PoolId, Line> lines_;             // first come, first served; none is empty
  Line cancelled_;                           // answered; they hold references yet
  PoolId last_in_turn_;                      // of the lines whose first goes on
  EventPart served_;                         // hashes of those that have waited
  PoolId last_served_;                       // of the lines
  std::array<bool, kMaxDevices> awaited_{};  // the last value told to each device
};

}  // namespace kvtier
