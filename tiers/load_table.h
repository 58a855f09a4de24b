// The loads under way: which acquires wait for which blocks, and how far each has come.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "tiers/cache_state.h"

namespace kvtier {

// Several loads may wait for one block; it is moved once to each pool. Event loop only.
class LoadTable {
 public:
  // `report` is called from BlockReady and BlockFailed, never from Begin. How each load ended is
  // counted in `stats`.
  LoadTable(CacheStats* stats, std::function<void(const LoadProgress&)> report)
      : stats_(*stats), report_(std::move(report)) {}

  // Registers a load of `hits`, of which those at `waiting` (ascending positions, with their
  // entries) have still to arrive. REQUIRES: waiting is not empty.
  struct Hit {
    Tier tier = Tier::kPool;  // where it was found
    uint16_t tokens = 0;
  };
  struct Waiting {
    uint32_t position = 0;
    EntryIndex entry;
  };
  LoadId Begin(SessionId session, const CachePool& pool, std::vector<Hit> hits,
               const std::vector<Waiting>& waiting);

  void BlockReady(const CachePool& pool, EntryIndex entry);
  // The block will not arrive in this pool: loads that wait for it end before it.
  void BlockFailed(const CachePool& pool, EntryIndex entry, MissReason reason);
  // Forgets the session's loads; blocks on their way still arrive for whoever else waits.
  void CloseSession(SessionId session);

  [[nodiscard]] size_t size() const { return loads_.size(); }

 private:
  struct Load {
    SessionId session;
    std::vector<Hit> hits;
    std::vector<bool> arrived;
    uint32_t ready = 0;  // length of the arrived prefix
    uint32_t limit = 0;  // nothing from here on will be reported ready
    MissReason miss = MissReason::kNone;
  };
  struct Waiter {
    LoadId load;
    uint32_t position = 0;
  };

  [[nodiscard]] std::vector<Waiter> TakeWaiters(uint64_t arrival);
  // Advances the prefix, reports, and forgets the load when it is finished.
  void Advance(LoadId id, bool changed);

  void Count(const Load& load, MissReason reason);

  CacheStats& stats_;
  std::function<void(const LoadProgress&)> report_;
  std::unordered_map<LoadId, Load> loads_;
  std::unordered_map<uint64_t, std::vector<Waiter>> waiters_;  // by ArrivalKey
  uint64_t next_id_ = 1;
};

}  // namespace kvtier
