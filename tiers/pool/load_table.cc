#include "tiers/pool/load_table.h"

#include <algorithm>

#include "base/check.h"

namespace kvtier {

LoadId LoadTable::Begin(Start start) {
  KVT_CHECK(!start.waiting.empty());
  const LoadId id(next_id_++);
  Load& load = loads_[id];
  load.session = start.session;
  load.arrived.assign(start.hits.size(), true);
  load.limit = static_cast<uint32_t>(start.hits.size());
  load.hits = std::move(start.hits);
  load.ready = start.waiting.front().position;
  load.counter = std::move(start.counter);
  load.layers = start.layers;
  if (load.counter && load.layers == 0) load.on_way.assign(load.hits.size(), false);
  for (const Waiting& block : start.waiting) {
    load.arrived[block.position] = false;
    if (!block.in_layers) ++load.whole_blocks;
    waiters_[ArrivalKey(*start.pool, block.entry)].push_back({id, block.position, block.in_layers});
  }
  if (load.whole_blocks == start.waiting.size()) load.layers_here = load.layers;
  CountArrived(load);
  return id;
}

std::vector<CountedStep> LoadTable::BlocksQueued(const CachePool& pool,
                                                 std::span<const EntryIndex> entries) {
  std::vector<LoadId> touched;
  for (const EntryIndex entry : entries) {
    const auto waiters = waiters_.find(ArrivalKey(pool, entry));
    if (waiters == waiters_.end()) continue;
    for (const Waiter& waiter : waiters->second) {
      const auto found = loads_.find(waiter.load);
      if (found == loads_.end() || found->second.on_way.empty()) continue;
      found->second.on_way[waiter.position] = true;
      if (std::ranges::find(touched, waiter.load) == touched.end()) touched.push_back(waiter.load);
    }
  }
  std::vector<CountedStep> steps;
  for (const LoadId id : touched) {
    Load& load = loads_.at(id);
    uint32_t& counted = load.counted;
    while (counted < load.limit && (load.arrived[counted] || load.on_way[counted])) ++counted;
    // Also one that does not advance: if its copies fail, later ones must not be counted.
    steps.push_back({load.counter, counted});
  }
  return steps;
}

std::vector<CountedStep> LoadTable::LayersQueued(LoadId id, uint32_t layers) {
  const auto found = loads_.find(id);
  if (found == loads_.end() || !found->second.counter) return {};
  Load& load = found->second;
  if (load.whole_blocks == 0) load.counted = std::max(load.counted, layers);
  return {{load.counter, load.counted}};
}

void LoadTable::LayersArrived(LoadId id, uint32_t layers) {
  const auto found = loads_.find(id);
  if (found == loads_.end()) return;
  found->second.layers_here = layers;
  CountArrived(found->second);
}

void LoadTable::CountArrived(Load& load) {
  if (!load.counter) return;
  uint32_t done = load.ready;
  if (load.layers > 0) done = load.whole_blocks > 0 ? 0 : load.layers_here;
  // What the device was told to count it has counted, or will; what it stopped at ends the load.
  if (done <= load.counted) return;
  load.counted = done;
  load.counter->Store(done);
}

void LoadTable::BlockReady(const CachePool& pool, EntryIndex entry) {
  for (const Waiter& waiter : TakeWaiters(ArrivalKey(pool, entry))) {
    const auto found = loads_.find(waiter.load);
    if (found == loads_.end()) continue;
    found->second.arrived[waiter.position] = true;
    if (!waiter.in_layers) --found->second.whole_blocks;
    Advance(waiter.load, false);
  }
}

void LoadTable::BlockFailed(const CachePool& pool, EntryIndex entry, MissReason reason) {
  for (const Waiter& waiter : TakeWaiters(ArrivalKey(pool, entry))) {
    const auto found = loads_.find(waiter.load);
    if (found == loads_.end()) continue;
    Load& load = found->second;
    // No further layer will be complete.
    if (load.counter && load.layers > 0) load.counter->End();
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
    if (load.second.counter) load.second.counter->End();
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
  const bool complete = load.ready == load.hits.size();
  if (finished && !complete && load.counter) {
    load.counter->End();
  } else {
    CountArrived(load);
  }
  if (load.ready == before && !changed && !finished) return;
  const LoadProgress progress{load.session, id, load.ready, finished, load.miss};
  if (finished) {
    Count(load, load.miss);
    loads_.erase(id);
  }
  report_(progress);
}

}  // namespace kvtier
