// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/acquirer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/result.h"

namespace kvtier {
namespace {

Error PoolFull(uint64_t asked, uint64_t obtainable, uint64_t blocks) {
  return {ErrorCode::kResourceExhausted, "pool_full",
          fmt::format("{} new blocks asked for, {} of {} are free or can be evicted", asked,
                      obtainable, blocks)};
}

}  // namespace

// Requests of one pool are answered in order, so that a large one is not passed for ever by small
// ones that take each block that comes free.
void Acquirer::Acquire(AcquireRequest request, Done done) {
  ++state_.stats.acquires;
  CachePool* pool = state_.blocks.FindPool(request.pool);
  KVT_CHECK(pool != nullptr);
  const SessionId session = request.session;
  Operation operation{.request = std::move(request),
                      .done = std::move(done),
                      .deadline_ms = state_.env.clock->MonotonicMs() + state_.options.max_wait_ms,
                      .held = HeldReferences(&sessions_, session, pool)};
  if (LineIsEmpty(pool->id)) {
    if (Serve(&operation) == Outcome::kAnswered) return;
  } else {
    // A request that needs no free block may bypass those that wait for some; no other may.
    operation.found = finder_.Find(*pool, operation.request);
    const bool needs_room = operation.blocks_left() > 0;
    const Outcome served = needs_room ? Outcome::kWaits : Serve(&operation);
    if (served == Outcome::kAnswered) return;
    if (served == Outcome::kGoesOn) {
      Line& line = lines_[pool->id];
      const auto first_to_wait = std::ranges::find_if_not(line, &Operation::begun);
      line.insert(first_to_wait, std::move(operation));
      return;
    }
    taker_.Hold(pool, &operation);
    StartWaiting(&operation);
  }
  lines_[pool->id].push_back(std::move(operation));
}

void Acquirer::StartWaiting(Operation* operation) {
  operation->waits = true;
  if (std::exchange(operation->has_waited, true)) return;
  ++state_.stats.acquires_waited;
  state_.trace.WaitBegin(operation->request);
}

uint64_t Acquirer::RoomFor(const CachePool& pool, const Operation& operation) const {
  const uint64_t part = state_.options.acquire_part_blocks;
  // The free blocks are for this one: it is the first in line.
  const uint64_t most = operation.found.to_load > 0 ? part : pool.blocks.free() + part;
  return std::min(operation.blocks_left(), most);
}

Acquirer::Outcome Acquirer::Serve(Operation* operation) {
  CachePool* pool = state_.blocks.FindPool(operation->request.pool);
  KVT_CHECK(pool != nullptr);
  const bool first = !operation->begun;
  if (first && !Begin(pool, operation)) return Outcome::kAnswered;
  const Outcome room = MakeRoom(pool, operation);
  if (room != Outcome::kGoesOn) return room;
  const uint64_t part = state_.options.acquire_part_blocks;
  taker_.Take(pool, operation, std::min<uint64_t>(operation->found.to_load, part));
  operation->begun = true;
  operation->waits = false;
  if (BlockTaker::Complete(*pool, *operation) && taker_.UseSome(pool, operation)) {
    Finish(pool, operation);
    return Outcome::kAnswered;
  }
  if (first) TouchLowerTiers(*pool, *operation);
  state_.SchedulePart();
  return Outcome::kGoesOn;
}

bool Acquirer::Begin(CachePool* pool, Operation* operation) {
  operation->found = finder_.Find(*pool, operation->request);
  // From here on the resident hits cannot be evicted.
  taker_.Hold(pool, operation);
  const Status allowed = CheckLimits(*pool, *operation);
  if (!allowed) {
    Refuse(pool, operation, allowed.error());
    return false;
  }
  CutLoads(pool, operation, PoolSpace::Obtainable(*pool) - operation->request.new_blocks);
  if (!operation->request.wish.any()) return true;
  if (planner_.Apply(*pool, operation->request, &operation->found)) {
    taker_.Hold(pool, operation);
  }
  return true;
}

Status Acquirer::CheckLimits(const CachePool& pool, const Operation& operation) const {
  const AcquireRequest& request = operation.request;
  const uint64_t hits = operation.found.hits.size();
  const uint64_t held =
      sessions_.references(request.session) + Promised(request.session) - operation.held.count();
  if (held + hits > state_.options.max_references_per_session) {
    return MakeError(ErrorCode::kLimitExceeded, "session_references",
                     fmt::format("{} references held, {} more asked for, {} allowed", held, hits,
                                 state_.options.max_references_per_session));
  }
  const uint64_t obtainable = PoolSpace::Obtainable(pool);
  if (request.new_blocks <= obtainable) return {};
  return tl::unexpected(PoolFull(request.new_blocks, obtainable, pool.blocks.size()));
}

// References that operations under way will hold: without them, a session could exceed its limit
// with requests to several pools at once.
uint64_t Acquirer::Promised(SessionId session) const {
  uint64_t promised = 0;
  for (const auto& [pool, line] : lines_) {
    for (const Operation& operation : line) {
      if (!operation.begun) break;
      if (operation.request.session != session) continue;
      promised += operation.found.hits.size() - operation.held.count();
    }
  }
  return promised;
}

void Acquirer::CutLoads(CachePool* pool, Operation* operation, uint64_t loads) {
  FoundPrefix& found = operation->found;
  if (found.to_load <= loads) return;
  size_t kept = 0;
  uint32_t to_arrive = 0;
  for (uint64_t seen = 0; kept < found.hits.size(); ++kept) {
    const BlockIndex block = state_.blocks.BlockIn(*pool, state_[found.hits[kept]]);
    if (block == kNoBlock && seen++ == loads) break;
    if (block == kNoBlock || pool->blocks[block].loading()) ++to_arrive;
  }
  BlockTaker::Cut(operation, kept, MissReason::kPoolFull);
  found.to_load = static_cast<uint32_t>(loads);
  found.to_arrive = to_arrive;
}

Acquirer::Outcome Acquirer::MakeRoom(CachePool* pool, Operation* operation) {
  if (!FitInto(pool, operation, PoolSpace::Obtainable(*pool))) return Outcome::kAnswered;
  if (operation->forced) return ForceRoom(pool, operation);
  if (pools_.EnsureFree(pool, RoomFor(*pool, *operation))) return Outcome::kGoesOn;
  if (!operation->begun) TouchLowerTiers(*pool, *operation);
  StartWaiting(operation);
  return Outcome::kWaits;
}

// Makes room for all of it before any part is taken: loads must not use up what turns out to be all
// that there is for the new blocks.
Acquirer::Outcome Acquirer::ForceRoom(CachePool* pool, Operation* operation) {
  const uint64_t left = operation->blocks_left();
  const uint64_t room =
      std::min<uint64_t>(left, pool->blocks.free() + state_.options.acquire_part_blocks);
  if (!operation->begun && pool->blocks.free() < left) TouchLowerTiers(*pool, *operation);
  const std::optional<bool> made = pools_.ForceFree(pool, room, &operation->passed);
  if (!made) return Outcome::kWaits;
  if (*made) return room == left ? Outcome::kGoesOn : Outcome::kWaits;
  return FitInto(pool, operation, pool->blocks.free()) ? Outcome::kGoesOn : Outcome::kAnswered;
}

bool Acquirer::FitInto(CachePool* pool, Operation* operation, uint64_t obtainable) {
  const uint64_t fresh = operation->request.new_blocks;
  if (fresh > obtainable) {
    Refuse(pool, operation, PoolFull(fresh, obtainable, pool->blocks.size()));
    return false;
  }
  uint32_t& to_load = operation->found.to_load;
  to_load = static_cast<uint32_t>(std::min<uint64_t>(to_load, obtainable - fresh));
  return true;
}

void Acquirer::TouchLowerTiers(const CachePool& pool, const Operation& operation) {
  const std::vector<EntryIndex>& hits = operation.found.hits;
  for (size_t i = hits.size(); i > operation.taken(); --i) {
    if (InPool(pool, hits[i - 1])) continue;
    state_.Touch(hits[i - 1]);
    loader_.TouchHost(hits[i - 1]);
  }
}

void Acquirer::Finish(CachePool* pool, Operation* operation) {
  taker_.HandOver(pool, operation);
  CountAsked(*operation);
  const LoadId load = operation->reply.load;
  Answer(operation, std::move(operation->reply));
  // Not before: the client must know the load that is reported on.
  if (load.value != 0) loads_.Close(load);
}

void Acquirer::Refuse(CachePool* pool, Operation* operation, Error error) {
  taker_.Undo(pool, operation);
  ++state_.stats.acquires_refused;
  if (error.code == ErrorCode::kResourceExhausted) {
    state_.incidents.Report(IncidentKind::kPoolExhausted, pool->namespace_id, error.ToString());
  }
  Answer(operation, tl::unexpected(std::move(error)));
}

void Acquirer::Answer(Operation* operation, Result<AcquireReply> reply) {
  if (operation->has_waited) state_.trace.WaitEnd(operation->request);
  operation->done(std::move(reply));
}

void Acquirer::CountAsked(const Operation& operation) {
  CacheStats& stats = state_.stats;
  const AcquireRequest& request = operation.request;
  const AcquireReply& reply = operation.reply;
  const FoundPrefix& found = operation.found;
  const uint64_t asked = request.hashes.size() + (reply.partial_block ? 1 : 0);
  CachePool* const pool = state_.blocks.FindPool(request.pool);
  if (!request.hashes.empty()) pool->victims.NoteRequest();
  const NamespaceId namespace_id = pool->namespace_id;
  if (const size_t first = reply.hits.size(); first < request.hashes.size()) {
    state_.history.NoteMiss({namespace_id, request.hashes[first]},
                            {state_.clock.ToWallS(state_.clock.NowS()), reply.miss});
  }
  if (found.declined > 0) {
    stats.CountDeclined(namespace_id, found.declined_for, found.declined, request.block_tokens);
  }
  stats.CountMisses(namespace_id, found.miss, asked - found.declined - reply.hits.size(),
                    request.block_tokens);
  stats.CountMisses(namespace_id, request.missed_reason, request.missed_blocks,
                    request.block_tokens);
  state_.infinite_cache.Ask(namespace_id, request.hashes);
  if (reply.partial_block)
    state_.infinite_cache.Ask(namespace_id,
                              std::span(&request.partial_blocks[*reply.partial_block], 1));
  // A block that is being loaded is a hit or a miss only when the load has ended.
  if (reply.load.value != 0) return;
  for (const AcquiredBlock& hit : reply.hits) {
    stats.CountHit(namespace_id, hit.tier, hit.tokens);
  }
}

uint32_t Acquirer::Prefetch(CachePool* pool, std::span<const BlockHash> hashes, RequestTag tag) {
  uint32_t count = 0;
  MissReason miss = MissReason::kNone;
  EntryIndex index = kNoEntry;
  for (const BlockHash& hash : hashes) {
    index = finder_.Servable(index, {pool->namespace_id, hash}, &miss);
    if (index == kNoEntry) break;
    if (!InPool(*pool, index)) {
      if (!LineIsEmpty(pool->id) || !pools_.EnsureFree(pool, 1)) break;
      // Making room may have forgotten this very block.
      index = finder_.Servable(kNoEntry, {pool->namespace_id, hash}, &miss);
      if (index == kNoEntry) break;
      pool->blocks.Prefetch(taker_.TakeBlock(pool, index));
      loader_.Start(pool, index);
      state_.trace.BlockLoadBegin(tag, index);
      loader_.TouchLoading(*pool, index);
    }
    state_.Use(pool, index);
    ++count;
  }
  return count;
}

// The operations are taken out of all lines before the first is answered: an answer may call back
// into the cache, which must not meet half of them.
void Acquirer::Cancel(SessionId session, std::optional<PoolId> pool) {
  Line cancelled;
  for (auto& [pool_id, line] : lines_) {
    if (pool && pool_id != *pool) continue;
    for (auto next = line.begin(); next != line.end();) {
      const auto operation = next++;
      if (operation->request.session != session) continue;
      taker_.DiscardLoad(&*operation);
      cancelled.splice(cancelled.end(), line, operation);
    }
  }
  std::erase_if(lines_, [](const auto& line) { return line.second.empty(); });
  for (Operation& operation : cancelled) {
    Answer(&operation, MakeError(ErrorCode::kCancelled, pool ? "pool_detached" : "session_closed"));
  }
  cancelled_.splice(cancelled_.end(), cancelled);
  CancelSome();
}

// In parts, since the acquires of one session may hold a million references, and other clients must
// not wait for those.
void Acquirer::CancelSome() {
  size_t dropped = 0;
  while (!cancelled_.empty() && dropped < state_.options.close_part_blocks) {
    Operation& operation = cancelled_.front();
    CachePool* const pool = state_.blocks.FindPool(operation.request.pool);
    dropped += taker_.UndoSome(pool, &operation, state_.options.close_part_blocks - dropped);
    if (operation.held.size() == 0) cancelled_.pop_front();
  }
  if (!cancelled_.empty()) state_.SchedulePart();
}

size_t Acquirer::waiting() const {
  size_t total = 0;
  for (const auto& [pool, line] : lines_) total += line.size();
  return total;
}

// Any number may wait behind one acquire, and be served when that is. The next part begins with the
// line behind the one that had the last of this.
bool Acquirer::Pump() {
  bool progressed = false;
  const uint64_t& left = state_.parts.LeftOf(&served_);
  // An answer may call back into the cache, which may end other lines.
  for (size_t lines = lines_.size(); lines > 0 && left > 0 && !lines_.empty(); --lines) {
    auto next = lines_.upper_bound(last_served_);
    if (next == lines_.end()) next = lines_.begin();
    last_served_ = next->first;
    progressed |= PumpLine(next);
  }
  if (left == 0 && !lines_.empty()) state_.SchedulePart();
  TellDevices();
  return progressed;
}

bool Acquirer::PumpLine(std::map<PoolId, Line>::iterator of_pool) {
  const PoolId id = of_pool->first;
  Line& line = of_pool->second;
  CachePool* const pool = state_.blocks.FindPool(id);
  uint64_t& left = state_.parts.LeftOf(&served_);
  bool progressed = false;
  while (!line.empty() && !line.front().goes_on() && left > 0) {
    if (!pools_.EnsureFree(pool, RoomFor(*pool, line.front()))) break;
    const uint64_t steps = line.front().request.hashes.size() + 1;
    const Outcome outcome = Serve(&line.front());
    // Not counted: it would be asked again in each event until it has its room.
    if (outcome == Outcome::kWaits) break;
    left -= std::min(left, steps);
    progressed = true;
    if (outcome == Outcome::kAnswered) line.pop_front();
  }
  if (line.empty()) lines_.erase(id);
  return progressed;
}

void Acquirer::TellDevices() {
  std::array<bool, kMaxDevices> awaited{};
  for (const auto& [pool_id, line] : lines_) {
    // Operations in front of it are being answered.
    const auto next = std::ranges::find_if_not(line, &Operation::goes_on);
    if (next == line.end()) continue;
    awaited[state_.blocks.FindPool(pool_id)->device.value] |= next->waits;
  }
  if (std::ranges::count(awaited, true) == 0) state_.pressure.acquire_late = false;
  for (uint32_t i = 0; i < state_.env.devices.size(); ++i) {
    if (awaited_[i] == awaited[i]) continue;
    awaited_[i] = awaited[i];
    state_.env.devices[i].device->AwaitBackground(awaited[i]);
  }
}

// One part of one pool per call, and the pools in turn, so that the event loop sees to other
// clients between two parts.
void Acquirer::GoOn() {
  const auto ready = [](auto& line) { return NextPart(&line.second) != line.second.end(); };
  auto next = std::find_if(lines_.upper_bound(last_in_turn_), lines_.end(), ready);
  if (next == lines_.end()) next = std::ranges::find_if(lines_, ready);
  if (next == lines_.end()) return;
  last_in_turn_ = next->first;
  const auto operation = NextPart(&next->second);
  if (Serve(&*operation) == Outcome::kAnswered) next->second.erase(operation);
  if (next->second.empty()) lines_.erase(next);
  if (std::ranges::any_of(lines_, ready)) state_.SchedulePart();
}

// Operations that have begun stand before the others.
Acquirer::Line::iterator Acquirer::NextPart(Line* line) {
  auto operation = line->begin();
  while (operation != line->end() && operation->begun && !operation->goes_on()) ++operation;
  return operation != line->end() && operation->goes_on() ? operation : line->end();
}

// They go in order, each by parts in events of their own: many may be late at once.
void Acquirer::Tick() {
  const int64_t now_ms = state_.env.clock->MonotonicMs();
  const auto is_late = [&](Operation& operation) {
    if (operation.forced || now_ms < operation.deadline_ms) return operation.forced;
    return !operation.waits || !AsksHost(&operation, now_ms);
  };
  bool late = false;
  for (auto& [pool_id, line] : lines_) {
    auto next = line.begin();
    for (; next != line.end() && is_late(*next); ++next) {
      next->forced = true;
      state_.SchedulePart();
    }
    if (next == line.end() || !next->waits) continue;
    late |= AsksHost(&*next, now_ms) || next->host_asked;
  }
  state_.pressure.acquire_late = late;
  if (late) state_.pressure.WritePrefixesFirst(state_.clock.NowMs());
}

bool Acquirer::AsksHost(Operation* operation, int64_t now_ms) const {
  const int64_t asks_ms = operation->deadline_ms - state_.options.max_wait_ms / 2;
  if (operation->host_asked || now_ms < asks_ms) return false;
  const CachePool& pool = *state_.blocks.FindPool(operation->request.pool);
  const TenantId tenant = state_.blocks.namespaces[pool.namespace_id.value].tenant;
  if (!state_.pressure.await_disk.contains(tenant)) return false;
  operation->host_asked = true;
  return true;
}

}  // namespace kvtier
