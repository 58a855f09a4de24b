// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/load_table.h"

#include <algorithm>

#include "base/result.h"

namespace kvtier {

// Rows are linked by number and used again from a free list: loads come and go by the thousand, and
// a list per block would allocate for each.
void LoadWaiters::Add(CachePool* pool, EntryIndex block, const LoadWaiter& waiter) {
  uint32_t row = free_;
  if (row == kNone) {
    row = static_cast<uint32_t>(rows_.size());
    rows_.emplace_back();
  } else {
    free_ = rows_[row].next;
  }
  uint32_t& first = pool->load_waiters.At(block.value);
  rows_[row] = {waiter, first};
  first = row;
}

void LoadTable::OpenSession(SessionId session,
                            std::function<void(const LoadProgress&)> on_progress) {
  listeners_[session] = std::move(on_progress);
}

// A load may end after its session: then there is no one to tell.
void LoadTable::Tell(SessionId session, const LoadProgress& progress) {
  report_(session, progress);
  const auto listener = listeners_.find(session);
  if (listener != listeners_.end() && listener->second) listener->second(progress);
}

LoadId LoadTable::Open(Start start) {
  const LoadId id(next_id_++);
  Load& load = loads_[id];
  load.session = start.session;
  of_session_[start.session][start.pool->id].insert(id);
  load.pool = start.pool;
  load.pool_id = start.pool->id;
  load.namespace_id = start.pool->namespace_id;
  load.counter = std::move(start.counter);
  if (load.counter && start.layers > 0) {
    load.layers = std::make_shared<LayerCount>(load.counter, start.layers);
  }
  return id;
}

void LoadTable::Add(LoadId id, std::span<const Added> hits) {
  Load& load = loads_.at(id);
  KVT_CHECK(load.open);
  for (const Added& added : hits) {
    const auto position = static_cast<uint32_t>(load.hits.size());
    const bool waits = added.entry != kNoEntry;
    load.hits.push_back(added.hit);
    load.arrived.push_back(!waits);
    if (load.counts_blocks()) load.on_way.push_back(false);
    if (!waits) continue;
    load.in_layers |= added.in_layers;
    if (load.layers && !added.in_layers) load.layers->AddWhole();
    waiters_.Add(load.pool, added.entry, {id, position, added.in_layers});
  }
  // After a block has failed, the prefix ends there: hits that are added later lie behind it.
  if (load.miss == MissReason::kNone) load.limit = static_cast<uint32_t>(load.hits.size());
  AdvancePrefix(&load);
  CountArrived(load);
}

// The prefix may have been cut since the load was opened. A client takes a counter with other steps
// than it got hits for one of another load, and ends its connection.
void LoadTable::HasAllHits(LoadId id) {
  const Load& load = loads_.at(id);
  if (load.counts_blocks()) load.counter->Shorten(static_cast<uint32_t>(load.hits.size()));
}

void LoadTable::Close(LoadId id) {
  Load& load = loads_.at(id);
  load.open = false;
  if (load.layers && !load.in_layers) load.layers->AllWhole();
  CountArrived(load);
  if (load.news) (void)Advance(id, true);
}

// Only for loads that are still open: the client has not been told of the load yet, so that nothing
// is reported or counted.
void LoadTable::Discard(LoadId id) {
  const auto found = loads_.find(id);
  KVT_CHECK(found != loads_.end() && found->second.open);
  if (found->second.counter) found->second.counter->End();
  Forget(found);
}

void LoadTable::Forget(Loads::iterator load) {
  const auto siblings = of_session_.find(load->second.session);
  if (siblings != of_session_.end()) {
    const auto in_pool = siblings->second.find(load->second.pool_id);
    if (in_pool != siblings->second.end()) {
      in_pool->second.erase(load->first);
      if (in_pool->second.empty()) siblings->second.erase(in_pool);
    }
    if (siblings->second.empty()) of_session_.erase(siblings);
  }
  loads_.erase(load);
}

// Any number may wait for one block, and each may have waited for that one to be counted up to its
// end.
std::vector<CountedStep> LoadTable::BlocksQueued(const CachePool& pool,
                                                 std::span<const EntryIndex> entries) {
  std::vector<LoadId> counting;
  for (const EntryIndex entry : entries) {
    waiters_.ForEach(pool, entry, [&](const LoadWaiter& waiter) {
      if (looks_left_ == 0) return false;
      --looks_left_;
      const auto found = loads_.find(waiter.load);
      if (found == loads_.end() || !found->second.counts_blocks()) return true;
      found->second.on_way[waiter.position] = true;
      if (counting.empty() || counting.back() != waiter.load) counting.push_back(waiter.load);
      return true;
    });
  }
  std::ranges::sort(counting);
  const auto [end, last] = std::ranges::unique(counting);
  counting.erase(end, last);
  std::vector<CountedStep> steps;
  size_t counts = part_blocks_;
  for (const LoadId id : counting) {
    Load& load = loads_.at(id);
    uint32_t& counted = load.counted;
    for (; counts > 0 && counted < load.limit; ++counted, --counts) {
      if (!load.arrived[counted] && !load.on_way[counted]) break;
    }
    // Also one that does not advance: if its copies fail, later ones must not be counted.
    steps.push_back({load.counter, counted});
  }
  return steps;
}

std::shared_ptr<LayerCount> LoadTable::LayersOf(LoadId id) const {
  const auto found = loads_.find(id);
  return found == loads_.end() ? nullptr : found->second.layers;
}

void LoadTable::CountArrived(Load& load) {
  // The device has counted or will count all steps that it was given. If one of its copies fails,
  // the load ends there.
  if (!load.counts_blocks() || load.ready <= load.counted) return;
  load.counted = load.ready;
  load.counter->Store(load.ready);
}

void LoadTable::OnEnded(std::span<const BlockEnd> ends) {
  for (const BlockEnd& end : ends) {
    if (end.move != BlockMove::kToPool) continue;
    const uint32_t row = waiters_.Take(end.pool, end.block.row);
    if (row != LoadWaiters::kNone) ended_.push_back({row, end.reason});
  }
  TellSome();
  ReportSome();
}

void LoadTable::TellSome() {
  for (; !ended_.empty() && tells_left_ > 0; --tells_left_) {
    Ended& ended = ended_.front();
    const LoadWaiter waiter = waiters_.Next(&ended.row);
    const auto found = loads_.find(waiter.load);
    if (found != loads_.end()) {
      BlockEnded(&found->second, waiter, ended.reason);
      if (!std::exchange(found->second.touched, true)) touched_.push_back(waiter.load);
    }
    if (ended.row == LoadWaiters::kNone) ended_.pop_front();
  }
}

void LoadTable::BlockEnded(Load* load, const LoadWaiter& waiter, MissReason reason) {
  if (reason == MissReason::kNone) {
    load->arrived[waiter.position] = true;
    if (load->layers && !waiter.in_layers) load->layers->EndWhole();
    return;
  }
  // No further layer will be complete.
  if (load->layers) load->layers->Fail();
  if (waiter.position >= load->limit) return;
  load->limit = waiter.position;
  load->miss = reason;
  load->cut = true;
}

// When all are told: a load hears once of blocks that arrived together.
void LoadTable::ReportSome() {
  if (!ended_.empty()) return;
  // A report may call back, and have a part begin.
  size_t left = tells_left_;
  for (; !touched_.empty() && left > 0; --left) {
    const LoadId id = touched_.front();
    touched_.pop_front();
    const auto found = loads_.find(id);
    if (found == loads_.end()) continue;
    Load& load = found->second;
    load.touched = false;
    const size_t hits = load.hits.size();
    const uint32_t before = load.ready;
    AdvancePrefix(&load);
    size_t looked_at = load.ready - before;
    // All of them are counted when a load ends.
    if (Advance(id, std::exchange(load.cut, false) || load.ready != before)) looked_at += hits;
    left -= std::min(left - 1, looked_at);
  }
  tells_left_ = left;
}

void LoadTable::GoOn() {
  BeginEvent();
  CloseSome();
  TellSome();
  ReportSome();
}

void LoadTable::CloseSession(SessionId session) {
  listeners_.erase(session);
  if (auto pools = of_session_.extract(session)) {
    for (auto& [pool, loads] : pools.mapped()) closing_.push_back({std::move(loads)});
  }
  CloseSome();
}

void LoadTable::LeavePool(SessionId session, PoolId pool) {
  const auto pools = of_session_.find(session);
  if (pools == of_session_.end()) return;
  if (auto loads = pools->second.extract(pool)) {
    closing_.push_back({std::move(loads.mapped()), /*tells=*/true});
  }
  if (pools->second.empty()) of_session_.erase(pools);
  CloseSome();
}

// In parts, since a client may die with loads of very many blocks and other clients must not wait
// for that. Waiters of a load that is gone find no load later, and are dropped then.
void LoadTable::CloseSome() {
  size_t looked_at = 0;
  while (!closing_.empty() && looked_at < part_blocks_) {
    std::unordered_set<LoadId>& ids = closing_.front().loads;
    const bool tells = closing_.front().tells;
    const LoadId id = *ids.begin();
    ids.erase(ids.begin());
    if (ids.empty()) closing_.pop_front();
    ++looked_at;
    const auto found = loads_.find(id);
    if (found == loads_.end()) continue;
    const Load& load = found->second;
    looked_at += load.hits.size();
    if (load.counter) load.counter->End();
    Count(load, MissReason::kCancelled);
    const SessionId session = load.session;
    const LoadProgress progress{id, load.ready, /*finished=*/true, MissReason::kCancelled};
    Forget(found);
    if (tells) Tell(session, progress);
  }
}

void LoadTable::Count(const Load& load, MissReason reason) {
  for (size_t i = 0; i < load.hits.size(); ++i) {
    if (i < load.ready) {
      const Hit& hit = load.hits[i];
      stats_.CountHit(load.namespace_id, hit.tier, hit.tokens, hit.from_cold);
    } else {
      stats_.CountMisses(load.namespace_id, reason, 1, load.hits[i].tokens);
    }
  }
}

void LoadTable::AdvancePrefix(Load* load) {
  while (load->ready < load->limit && load->arrived[load->ready]) ++load->ready;
}

bool LoadTable::Advance(LoadId id, bool changed) {
  Load& load = loads_.at(id);
  const uint32_t before = load.ready;
  AdvancePrefix(&load);
  if (load.open) {
    load.news |= changed || load.ready != before;
    CountArrived(load);
    return false;
  }
  const bool finished = load.ready == load.limit;
  const bool complete = load.ready == load.hits.size();
  if (finished && !complete && load.counter) {
    load.counter->End();
  } else {
    CountArrived(load);
  }
  if (load.ready == before && !changed && !finished) return false;
  const SessionId session = load.session;
  const LoadProgress progress{id, load.ready, finished, load.miss};
  // The load is forgotten before it is reported: the report may call back into the cache.
  if (finished) {
    Count(load, load.miss);
    Forget(loads_.find(id));
  }
  Tell(session, progress);
  return finished;
}

}  // namespace kvtier
