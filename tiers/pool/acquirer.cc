#include "tiers/pool/acquirer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace kvtier {
namespace {

// The copies of a long prefix begin while the rest of it is looked at.
constexpr size_t kBlocksTakenTogether = 64;

}  // namespace

void Acquirer::Acquire(AcquireRequest request, Done done) {
  ++state_.stats.acquires;
  Operation operation;
  operation.request = std::move(request);
  operation.done = std::move(done);
  operation.deadline_ms = state_.env.clock->MonotonicMs() + state_.options.max_wait_ms;
  CachePool* pool = state_.FindPool(operation.request.pool);
  KVT_CHECK(pool != nullptr);
  if (LineIsEmpty(pool->id)) {
    if (TryServe(&operation, false)) return;
  } else {
    // Nobody overtakes those who wait, unless he needs nothing that they wait for.
    const Walk walk = FindPrefix(*pool, operation.request);
    const bool needs_room = walk.to_load + operation.request.new_blocks > 0;
    if (!needs_room && TryServe(&operation, false)) return;
    Hold(pool, &operation, walk);
  }
  ++state_.stats.acquires_waited;
  operation.waiting = true;
  state_.trace.WaitBegin(operation.request);
  waiting_[pool->id].push_back(std::move(operation));
}

EntryIndex Acquirer::Servable(EntryIndex before, const BlockKey& key, MissReason* miss) {
  const EntryIndex index = state_.directory.FindAfter(before, key);
  if (index == kNoEntry) {
    *miss = MissReason::kUnknown;
    return kNoEntry;
  }
  const BlockEntry& entry = state_[index];
  if (state_.Expired(entry)) {
    state_.seen_expired.push_back(index);
    *miss = MissReason::kExpired;
    return kNoEntry;
  }
  if (entry.in_pool() || entry.in_host() || entry.on_disk()) return index;
  *miss = MissReason::kUnknown;
  return kNoEntry;
}

Acquirer::Walk Acquirer::FindPrefix(const CachePool& pool, const AcquireRequest& request) {
  Walk walk;
  walk.hits.reserve(request.hashes.size() + 1);
  const auto add = [&](EntryIndex index) {
    walk.hits.push_back(index);
    if (!InPool(pool, index)) ++walk.to_load;
  };
  EntryIndex index = kNoEntry;
  for (const BlockHash& hash : request.hashes) {
    index = Servable(index, {pool.space, hash}, &walk.miss);
    if (index == kNoEntry) return walk;
    add(index);
  }
  MissReason tail_miss = MissReason::kNone;
  for (uint32_t i = 0; i < request.tails.size(); ++i) {
    const EntryIndex tail = Servable(index, {pool.space, request.tails[i]}, &tail_miss);
    if (tail == kNoEntry) continue;
    walk.tail = i;
    add(tail);
    return walk;
  }
  walk.miss = tail_miss;
  return walk;
}

void Acquirer::CutLoads(const CachePool& pool, Walk* walk, uint64_t loads) {
  if (walk->to_load <= loads) return;
  uint32_t seen = 0;
  for (size_t i = 0; i < walk->hits.size(); ++i) {
    if (InPool(pool, walk->hits[i]) || seen++ < loads) continue;
    walk->hits.resize(i);
    break;
  }
  walk->to_load = static_cast<uint32_t>(loads);
  walk->tail.reset();
  walk->miss = MissReason::kPoolFull;
}

Status Acquirer::CheckLimits(const CachePool& pool, const Operation& operation,
                             const Walk& walk) const {
  const AcquireRequest& request = operation.request;
  const uint64_t held = sessions_.references(request.session) - operation.held_count;
  if (held + walk.hits.size() > state_.options.max_references_per_session) {
    return MakeError(ErrorCode::kLimitExceeded, "session_references",
                     fmt::format("{} references held, {} more asked for, {} allowed", held,
                                 walk.hits.size(), state_.options.max_references_per_session));
  }
  if (request.new_blocks > PoolSpace::Obtainable(pool)) {
    return MakeError(
        ErrorCode::kResourceExhausted, "pool_full",
        fmt::format("{} new blocks asked for, {} of {} are free or can be evicted",
                    request.new_blocks, PoolSpace::Obtainable(pool), pool.blocks.size()));
  }
  return {};
}

bool Acquirer::TryServe(Operation* operation, bool force) {
  CachePool* pool = state_.FindPool(operation->request.pool);
  KVT_CHECK(pool != nullptr);
  Walk walk = FindPrefix(*pool, operation->request);
  // From here on the resident hits cannot be evicted.
  Hold(pool, operation, walk);

  const Status allowed = CheckLimits(*pool, *operation, walk);
  if (!allowed) {
    Refuse(pool, operation, allowed.error());
    return true;
  }
  const uint64_t new_blocks = operation->request.new_blocks;
  CutLoads(*pool, &walk, PoolSpace::Obtainable(*pool) - new_blocks);
  operation->blocks_needed = walk.to_load + new_blocks;
  if (!pools_.EnsureFree(pool, operation->blocks_needed)) {
    KeepBelow(*pool, walk);
    if (!force) return false;
    (void)pools_.ForceFree(pool, operation->blocks_needed);
    // Making room may have forgotten blocks that were still to be loaded.
    walk = FindPrefix(*pool, operation->request);
    Hold(pool, operation, walk);
    const uint64_t free = pool->blocks.free();
    if (free < new_blocks) {
      Refuse(pool, operation,
             {ErrorCode::kResourceExhausted, "pool_full",
              fmt::format("{} new blocks asked for, {} could be freed in time", new_blocks, free)});
      return true;
    }
    CutLoads(*pool, &walk, free - new_blocks);
  }
  HoldOnly(pool, operation, walk.hits.size());
  AcquireReply reply = Grant(pool, operation, walk);
  CountAsked(*operation, reply);
  Answer(operation, std::move(reply));
  return true;
}

void Acquirer::KeepBelow(const CachePool& pool, const Walk& walk) {
  for (auto hit = walk.hits.rbegin(); hit != walk.hits.rend(); ++hit) {
    if (InPool(pool, *hit)) continue;
    state_.Refresh(*hit);
    loader_.FreshenBelow(*hit);
  }
}

void Acquirer::Refuse(CachePool* pool, Operation* operation, Error error) {
  HoldOnly(pool, operation, 0);
  ++state_.stats.acquires_refused;
  Answer(operation, tl::unexpected(std::move(error)));
}

void Acquirer::Answer(Operation* operation, Result<AcquireReply> reply) {
  if (operation->waiting) state_.trace.WaitEnd(operation->request);
  operation->done(std::move(reply));
}

AcquireReply Acquirer::Grant(CachePool* pool, Operation* operation, const Walk& walk) {
  const AcquireRequest& request = operation->request;
  const CacheTrace::Together together(&state_.trace);
  AcquireReply reply;
  BeginLoad(*pool, request, walk, &reply);
  const std::vector<EntryIndex> in_layers = TakeBlocks(pool, operation, walk, &reply);
  if (!in_layers.empty()) loader_.QueueLayers(reply.load, pool, in_layers, request.layers);
  // The deepest first, so that the start of the sequence stays youngest.
  for (auto hit = walk.hits.rbegin(); hit != walk.hits.rend(); ++hit) {
    state_.Use(*hit);
    loader_.FreshenLoading(*pool, *hit);
  }
  for (uint32_t i = 0; i < request.new_blocks; ++i) {
    reply.fresh.push_back(sessions_.AllocatePrivate(request.session, pool));
  }
  state_.stats.allocated += request.new_blocks;
  reply.tail = walk.tail;
  reply.miss = walk.miss;
  return reply;
}

void Acquirer::BeginLoad(const CachePool& pool, const AcquireRequest& request, const Walk& walk,
                         AcquireReply* reply) {
  LoadTable::Start load{.session = request.session, .pool = &pool, .layers = request.layers};
  load.waiting.reserve(walk.to_load);
  reply->hits.reserve(walk.hits.size());
  for (uint32_t i = 0; i < walk.hits.size(); ++i) {
    const EntryIndex index = walk.hits[i];
    const BlockEntry& entry = state_[index];
    const BlockIndex block = state_.BlockIn(pool, entry);
    Tier tier = Tier::kPool;
    if (block == kNoBlock || pool.blocks[block].loading) {
      tier = loader_.SourceOf(entry);
      load.waiting.push_back({i, index, block == kNoBlock && InLayers(request, entry)});
    }
    reply->hits.push_back({BlockHandle{}, tier, entry.tokens});
  }
  if (load.waiting.empty()) return;
  load.hits.reserve(reply->hits.size());
  for (const AcquiredBlock& hit : reply->hits) load.hits.push_back({hit.tier, hit.tokens});
  if (request.counters) {
    const auto hits = static_cast<uint32_t>(reply->hits.size());
    load.counter = request.counters->Open(request.layers > 0 ? request.layers : hits);
    if (!load.counter) ++state_.stats.loads_without_counter;
  }
  reply->counter = load.counter;
  const size_t waiting = load.waiting.size();
  reply->load = loads_.Begin(std::move(load));
  state_.trace.LoadBegin(request, reply->load, waiting);
}

std::vector<EntryIndex> Acquirer::TakeBlocks(CachePool* pool, Operation* operation,
                                             const Walk& walk, AcquireReply* reply) {
  const AcquireRequest& request = operation->request;
  std::vector<EntryIndex> in_layers;
  std::vector<BlockIndex> awaited;
  bool prefetched = false;
  for (size_t i = 0; i < walk.hits.size(); ++i) {
    const EntryIndex index = walk.hits[i];
    BlockIndex block = state_.BlockIn(*pool, state_[index]);
    const bool start = block == kNoBlock;
    if (start) block = TakeBlock(pool, index);
    prefetched |= pool->blocks[block].prefetched;
    if (operation->held[i] == kNoBlock) awaited.push_back(block);
    if (start && InLayers(request, state_[index])) {
      loader_.StartInLayers(pool, index);
      in_layers.push_back(index);
    } else if (start) {
      loader_.Start(pool, index);
    }
    if (start) state_.trace.BlockLoadBegin({request.session, request.request_id}, index);
    reply->hits[i].handle = pool->blocks.HandleOf(block);
    if (awaited.size() < kBlocksTakenTogether) continue;
    sessions_.AddReferences(request.session, pool, awaited);
    awaited.clear();
    loader_.StartSoundCopies();
  }
  sessions_.AddReferences(request.session, pool, awaited);
  if (prefetched) loader_.HastenReferenced();
  loader_.StartSoundCopies();
  operation->held.clear();
  operation->held_count = 0;
  return in_layers;
}

BlockIndex Acquirer::TakeBlock(CachePool* pool, EntryIndex index) {
  const BlockIndex block = pool->blocks.TakeCommitted(index);
  state_.AddPlace(pool, block);
  return block;
}

void Acquirer::CountAsked(const Operation& operation, const AcquireReply& reply) {
  CacheStats& stats = state_.stats;
  const AcquireRequest& request = operation.request;
  const uint64_t asked = request.hashes.size() + (reply.tail ? 1 : 0);
  const SpaceId space = state_.FindPool(request.pool)->space;
  if (reply.hits.size() < request.hashes.size()) {
    state_.history.NoteMiss({space, request.hashes[reply.hits.size()]},
                            {state_.NowS(), reply.miss});
  }
  stats.CountMisses(reply.miss, asked - reply.hits.size(), request.block_tokens);
  state_.endless.Ask(space, request.hashes);
  if (reply.tail) state_.endless.Ask(space, std::span(&request.tails[*reply.tail], 1));
  // What is being loaded is a hit or a miss only when the load has ended.
  if (reply.load.value != 0) return;
  for (const AcquiredBlock& hit : reply.hits) stats.CountHit(hit.tier, hit.tokens);
}

void Acquirer::Hold(CachePool* pool, Operation* operation, const Walk& walk) {
  const std::vector<BlockIndex> before = std::move(operation->held);
  operation->held.clear();
  operation->held_count = 0;
  operation->held.reserve(walk.hits.size());
  for (const EntryIndex index : walk.hits) {
    operation->held.push_back(state_.BlockIn(*pool, state_[index]));
    if (operation->held.back() != kNoBlock) ++operation->held_count;
  }
  sessions_.AddReferences(operation->request.session, pool, operation->held);
  sessions_.DropReferences(operation->request.session, pool, before);
}

void Acquirer::HoldOnly(CachePool* pool, Operation* operation, size_t hits) {
  const std::span<const BlockIndex> surplus = std::span(operation->held).subspan(hits);
  sessions_.DropReferences(operation->request.session, pool, surplus);
  operation->held_count -=
      static_cast<uint32_t>(surplus.size() - std::count(surplus.begin(), surplus.end(), kNoBlock));
  operation->held.resize(hits);
}

uint32_t Acquirer::Prefetch(CachePool* pool, std::span<const BlockHash> hashes, RequestTag tag) {
  uint32_t count = 0;
  MissReason miss = MissReason::kNone;
  EntryIndex index = kNoEntry;
  for (const BlockHash& hash : hashes) {
    index = Servable(index, {pool->space, hash}, &miss);
    if (index == kNoEntry) break;
    if (!InPool(*pool, index)) {
      if (!LineIsEmpty(pool->id) || !pools_.EnsureFree(pool, 1)) break;
      // Making room may have forgotten this very block.
      index = Servable(kNoEntry, {pool->space, hash}, &miss);
      if (index == kNoEntry) break;
      pool->blocks[TakeBlock(pool, index)].prefetched = true;
      loader_.Start(pool, index);
      state_.trace.BlockLoadBegin(tag, index);
      loader_.FreshenLoading(*pool, index);
    }
    state_.Use(index);
    ++count;
  }
  return count;
}

void Acquirer::CancelSession(SessionId session) {
  std::vector<Operation> cancelled;
  for (auto& [pool_id, line] : waiting_) {
    std::erase_if(line, [&](Operation& operation) {
      if (operation.request.session != session) return false;
      HoldOnly(state_.FindPool(pool_id), &operation, 0);
      cancelled.push_back(std::move(operation));
      return true;
    });
  }
  for (Operation& operation : cancelled) {
    Answer(&operation, MakeError(ErrorCode::kCancelled, "session_closed"));
  }
}

bool Acquirer::LineIsEmpty(PoolId pool) const {
  const auto line = waiting_.find(pool);
  return line == waiting_.end() || line->second.empty();
}

size_t Acquirer::waiting() const {
  size_t total = 0;
  for (const auto& [pool, line] : waiting_) total += line.size();
  return total;
}

bool Acquirer::Pump() {
  bool served = false;
  for (auto& [pool_id, line] : waiting_) {
    CachePool* pool = state_.FindPool(pool_id);
    while (!line.empty()) {
      if (!pools_.EnsureFree(pool, line.front().blocks_needed)) break;
      if (!TryServe(&line.front(), false)) break;
      line.pop_front();
      served = true;
    }
  }
  return served;
}

void Acquirer::Tick() {
  const int64_t now_ms = state_.env.clock->MonotonicMs();
  for (auto& [pool_id, line] : waiting_) {
    while (!line.empty() && now_ms >= line.front().deadline_ms) {
      if (!TryServe(&line.front(), true)) break;
      line.pop_front();
    }
  }
}

}  // namespace kvtier
