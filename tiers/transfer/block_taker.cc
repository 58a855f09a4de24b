// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/block_taker.h"

#include <algorithm>
#include <utility>

namespace kvtier {
namespace {

// Blocks are taken in groups of so many: the copies of one group run while the next is looked at.
constexpr size_t kTakenTogether = 64;

}  // namespace

// Positions without a block in the pool are kNoBlock and hold nothing until they are loaded.
void BlockTaker::Hold(CachePool* pool, AcquireOperation* operation) {
  std::vector<BlockIndex> resident;
  resident.reserve(operation->found.hits.size());
  for (const EntryIndex index : operation->found.hits) {
    resident.push_back(state_.blocks.BlockIn(*pool, state_[index]));
  }
  operation->held.Assign(std::move(resident));
}

void BlockTaker::Cut(AcquireOperation* operation, size_t hits, MissReason miss) {
  operation->held.Truncate(hits);
  FoundPrefix& found = operation->found;
  found.hits.resize(hits);
  found.partial_block.reset();
  found.to_load = 0;
  found.miss = miss;
  found.ends_declined = false;
}

void BlockTaker::Take(CachePool* pool, AcquireOperation* operation, uint64_t room) {
  const CacheTrace::Together together(&state_.trace);
  const size_t taken_before = operation->taken();
  bool prefetched = false;
  size_t left = state_.options.acquire_part_blocks;
  for (bool more = true; more && left > 0;) {
    Batch batch;
    for (; more && left > 0 && batch.hits.size() < kTakenTogether; --left) {
      more = TakeHit(pool, operation, &room, &batch);
    }
    EndBatch(pool, operation, batch);
    prefetched |= batch.prefetched;
  }
  // Hits that others have brought into the pool meanwhile began no load, and none is left to begin.
  if (operation->all_hits_taken()) operation->found.to_load = 0;
  if (prefetched) {
    loader_.PromoteReferenced(*pool);
    loader_.StartVerifiedCopies();
  }
  if (Complete(*pool, *operation)) return;
  // A block that loads has a place in host's order when an event ends; all get their final ones
  // together.
  for (size_t i = operation->taken(); i > taken_before; --i) {
    loader_.TouchLoading(*pool, operation->found.hits[i - 1]);
  }
}

bool BlockTaker::TakeHit(CachePool* pool, AcquireOperation* operation, uint64_t* room,
                         Batch* batch) {
  FoundPrefix& found = operation->found;
  const size_t position = operation->taken();
  if (position == found.hits.size()) return false;
  MissReason miss = MissReason::kNone;
  // Within the event that found it, nothing that could be a hit was dropped.
  const EntryIndex index =
      operation->begun ? finder_.FindAgain(*pool, operation->request, found, position, &miss)
                       : found.hits[position];
  if (index == kNoEntry) {
    Cut(operation, position, miss);
    return false;
  }
  found.hits[position] = index;
  const BlockEntry& entry = state_[index];
  BlockIndex block = state_.blocks.BlockIn(*pool, entry);
  HeldReferences& held = operation->held;
  // The pool may have lost the block that was found, or have another one for the hash by now.
  if (held[position] != kNoBlock && held[position] != block) held.Drop(position);
  const bool start = block == kNoBlock;
  if (start && found.to_load == 0) {
    Cut(operation, position, MissReason::kPoolFull);
    return false;
  }
  if (start && *room == 0) return false;
  const bool arrives = start || pool->blocks[block].loading();
  const LoadTable::Hit hit{arrives ? state_.blocks.SourceOf(entry) : Tier::kPool, entry.tokens,
                           arrives && state_.blocks.FromCold(entry)};
  const bool in_layers = start && InLayers(*pool, operation->request, index);
  if (start) {
    block = StartLoad(pool, operation, index, in_layers);
    --*room;
    --found.to_load;
  }
  if (held[position] == kNoBlock) held.Add(position, block);
  batch->prefetched |= pool->blocks[block].prefetched();
  batch->hits.push_back({hit, arrives ? index : kNoEntry, in_layers});
  operation->reply.hits.push_back({pool->blocks.HandleOf(block), hit.tier, hit.tokens});
  return true;
}

BlockIndex BlockTaker::StartLoad(CachePool* pool, AcquireOperation* operation, EntryIndex index,
                                 bool in_layers) {
  const AcquireRequest& request = operation->request;
  const BlockIndex block = TakeBlock(pool, index);
  if (in_layers) {
    operation->in_layers.push_back(loader_.StartInLayers(pool, index));
  } else {
    loader_.Start(pool, index);
  }
  state_.trace.BlockLoadBegin({request.session, request.request_id}, index);
  return block;
}

BlockIndex BlockTaker::TakeBlock(CachePool* pool, EntryIndex index) {
  const BlockIndex block = pool->blocks.TakeCommitted(index);
  state_.AddPlace(pool, block);
  return block;
}

void BlockTaker::EndBatch(CachePool* pool, AcquireOperation* operation, const Batch& batch) {
  const bool awaited = std::ranges::any_of(
      batch.hits, [](const LoadTable::Added& hit) { return hit.entry != kNoEntry; });
  AcquireReply& reply = operation->reply;
  if (awaited && reply.load.value == 0) {
    OpenLoad(pool, operation, reply.hits.size() - batch.hits.size());
  }
  if (reply.load.value != 0) loads_.Add(reply.load, batch.hits);
  if (awaited) loader_.StartVerifiedCopies();
}

void BlockTaker::OpenLoad(CachePool* pool, AcquireOperation* operation, size_t hits_before) {
  const AcquireRequest& request = operation->request;
  AcquireReply& reply = operation->reply;
  LoadTable::Start load{.session = request.session, .pool = pool, .layers = request.layers};
  if (request.counters) {
    const auto hits = static_cast<uint32_t>(operation->found.hits.size());
    load.counter = request.counters->Open(request.layers > 0 ? request.layers : hits);
    if (!load.counter) ++state_.stats.loads_without_counter;
  }
  reply.counter = load.counter;
  reply.load = loads_.Open(std::move(load));
  state_.trace.LoadBegin(request, reply.load, operation->found.to_arrive);
  std::vector<LoadTable::Added> before;
  before.reserve(hits_before);
  for (size_t i = 0; i < hits_before; ++i) {
    before.push_back({{reply.hits[i].tier, reply.hits[i].tokens, false}, kNoEntry});
  }
  loads_.Add(reply.load, before);
}

// The deepest first, so that the start of the sequence stays youngest.
bool BlockTaker::UseSome(CachePool* pool, AcquireOperation* operation) {
  const std::vector<AcquiredBlock>& hits = operation->reply.hits;
  size_t left = state_.options.acquire_part_blocks;
  for (; left > 0 && operation->used < hits.size(); --left) {
    const size_t position = hits.size() - ++operation->used;
    const AcquiredBlock& hit = hits[position];
    const PoolBlock& block = pool->blocks[hit.handle.index];
    if (block.state() != PoolBlockState::kCommitted) {
      UseFailed(pool, *operation, position);
      continue;
    }
    state_.Use(pool, block.entry);
    if (position > 0) LinkTo(*pool, hits[position - 1], block.entry);
    if (block.loading()) {
      loader_.TouchLoading(*pool, block.entry);
    } else if (hit.tier != Tier::kPool) {
      loader_.TouchHost(block.entry);
    }
  }
  return operation->used == hits.size();
}

void BlockTaker::HandOver(CachePool* pool, AcquireOperation* operation) {
  AcquireReply& reply = operation->reply;
  QueueLayers(pool, operation);
  for (uint64_t i = 0; i < operation->request.new_blocks; ++i) {
    reply.new_blocks.push_back(sessions_.AllocatePrivate(operation->request.session, pool));
  }
  state_.stats.allocated += reply.new_blocks.size();
  reply.partial_block = operation->found.partial_block;
  const FoundPrefix& found = operation->found;
  reply.miss = found.ends_declined ? found.declined_for : found.miss;
  reply.forecast = found.forecast;
  if (reply.load.value != 0) loads_.HasAllHits(reply.load);
  operation->held.HandOver();
}

void BlockTaker::LinkTo(const CachePool& pool, const AcquiredBlock& before, EntryIndex index) {
  const PoolBlock& block = pool.blocks[before.handle.index];
  if (block.state() == PoolBlockState::kCommitted) state_.LinkToParent(index, block.entry);
}

void BlockTaker::UseFailed(CachePool* pool, const AcquireOperation& operation, size_t position) {
  MissReason miss = MissReason::kNone;
  const EntryIndex index =
      finder_.FindAgain(*pool, operation.request, operation.found, position, &miss);
  if (index != kNoEntry) state_.Use(pool, index);
}

void BlockTaker::QueueLayers(CachePool* pool, AcquireOperation* operation) {
  std::vector<PinnedEntry> in_layers = std::exchange(operation->in_layers, {});
  if (in_layers.empty()) return;
  loader_.QueueLayers(loads_.LayersOf(operation->reply.load), pool, std::move(in_layers),
                      operation->request.layers);
}

// Loads that have begun are not called back: their blocks arrive unreferenced, or are given up when
// their turn comes and none waits for them any more.
void BlockTaker::Undo(CachePool* pool, AcquireOperation* operation) {
  DiscardLoad(operation);
  (void)UndoSome(pool, operation, operation->held.size());
  operation->reply = {};
}

void BlockTaker::DiscardLoad(AcquireOperation* operation) {
  if (operation->reply.load.value != 0) loads_.Discard(operation->reply.load);
}

size_t BlockTaker::UndoSome(CachePool* pool, AcquireOperation* operation, size_t most) {
  const size_t in_layers = operation->in_layers.size();
  QueueLayers(pool, operation);
  const size_t held = operation->held.size();
  const size_t dropped = std::min(held, most);
  operation->held.Truncate(held - dropped);
  return in_layers + dropped + 1;
}

}  // namespace kvtier
