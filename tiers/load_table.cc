#include "tiers/load_table.h"

#include <algorithm>

#include "base/check.h"

namespace kvtier {

LoadId LoadTable::Begin(SessionId session, const CachePool& pool, std::vector<Hit> hits,
                        const std::vector<Waiting>& waiting) {
  KVT_CHECK(!waiting.empty());
  const LoadId id(next_id_++);
  Load& load = loads_[id];
  load.session = session;
  load.arrived.assign(hits.size(), true);
  load.limit = static_cast<uint32_t>(hits.size());
  load.hits = std::move(hits);
  load.ready = waiting.front().position;
  for (const Waiting& block : waiting) {
    load.arrived[block.position] = false;
    waiters_[ArrivalKey(pool, block.entry)].push_back({id, block.position});
  }
  return id;
}

void LoadTable::BlockReady(const CachePool& pool, EntryIndex entry) {
  for (const Waiter& waiter : TakeWaiters(ArrivalKey(pool, entry))) {
    const auto found = loads_.find(waiter.load);
    if (found == loads_.end()) continue;
    found->second.arrived[waiter.position] = true;
    Advance(waiter.load, false);
  }
}

void LoadTable::BlockFailed(const CachePool& pool, EntryIndex entry, MissReason reason) {
  for (const Waiter& waiter : TakeWaiters(ArrivalKey(pool, entry))) {
    const auto found = loads_.find(waiter.load);
    if (found == loads_.end()) continue;
    Load& load = found->second;
    const bool nearer = waiter.position < load.limit;
    if (nearer) {
      load.limit = waiter.position;
      load.miss = reason;
    }
    Advance(waiter.load, nearer);
  }
}

void LoadTable::CloseSession(SessionId session) {
  std::erase_if(loads_, [&](const auto& load) {
    if (load.second.session != session) return false;
    Count(load.second, MissReason::kCancelled);
    return true;
  });
}

std::vector<LoadTable::Waiter> LoadTable::TakeWaiters(uint64_t arrival) {
  const auto found = waiters_.find(arrival);
  if (found == waiters_.end()) return {};
  std::vector<Waiter> waiters = std::move(found->second);
  waiters_.erase(found);
  return waiters;
}

void LoadTable::Count(const Load& load, MissReason reason) {
  for (size_t i = 0; i < load.hits.size(); ++i) {
    if (i < load.ready) {
      stats_.CountHit(load.hits[i].tier, load.hits[i].tokens);
    } else {
      stats_.CountMisses(reason, 1, load.hits[i].tokens);
    }
  }
}

void LoadTable::Advance(LoadId id, bool changed) {
  Load& load = loads_.at(id);
  const uint32_t before = load.ready;
  while (load.ready < load.limit && load.arrived[load.ready]) ++load.ready;
  const bool finished = load.ready == load.limit;
  if (load.ready == before && !changed && !finished) return;
  const LoadProgress progress{load.session, id, load.ready, finished, load.miss};
  if (finished) {
    Count(load, load.miss);
    loads_.erase(id);
  }
  report_(progress);
}

}  // namespace kvtier
