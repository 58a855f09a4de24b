// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/digest.h"
#include "tests/fakes/derived_bytes.h"
#include "tests/sim/sim_check.h"

namespace kvtier {
namespace {

// The content of a private block until it is filled: differs between any two handles.
BlockHash PatternOf(SimPool pool, BlockHandle block) {
  return TestHash(0x9a77e59 + pool.name_space + 16 * pool.device,
                  uint64_t{block.index.value} << 32 | block.generation);
}

}  // namespace

void SimClient::Open() {
  context_.world.cache().OpenSession(session_, [this](const LoadProgress& p) { OnProgress(p); });
}

std::vector<SimBlock> SimClient::Close() {
  // Called before the call: blocks that it lets go may go to a waiting client within it.
  std::vector<SimBlock> quarantined;
  for (auto& [id, sequence] : sequences_) {
    for (const Held& held : sequence.held) {
      context_.oracle.OnReferenceDropped({sequence.pool, held.handle});
      context_.oracle.OnClosing(sequence.pool.name_space, held.hash);
    }
    // The blocks that an acquire held while it waited are given back in the same parts.
    if (!sequence.answered) {
      ForEachRequested(sequence, [&](const BlockHash& hash) {
        context_.oracle.OnClosing(sequence.pool.name_space, hash);
      });
    }
    for (const BlockHandle block : sequence.new_blocks) {
      quarantined.push_back({sequence.pool, block});
      context_.oracle.OnQuarantined(quarantined.back());
    }
  }
  context_.world.cache().CloseSession(session_);
  for (const auto& [id, sequence] : sequences_) {
    SIM_CHECK(sequence.answered, "an acquire was not answered when its session closed");
  }
  sequences_.clear();
  return quarantined;
}

void SimClient::BeginSequence() {
  Sequence sequence;
  sequence.pool.name_space = static_cast<uint32_t>(random_.Below(context_.plan.namespaces.size()));
  sequence.pool.device = static_cast<uint32_t>(random_.Below(context_.plan.sizes.devices));
  sequence.stream = static_cast<uint32_t>(random_.Below(SimUniverse::kStreams));
  const auto length = static_cast<uint32_t>(random_.Between(0, SimUniverse::kDepth));
  for (uint32_t depth = 0; depth < length; ++depth) {
    sequence.request.hashes.push_back(context_.universe.HashAt(sequence.stream, depth));
  }
  for (uint64_t which = random_.Below(SimUniverse::kPartialBlocks + 1); which > 0; --which) {
    sequence.request.partial_blocks.push_back(context_.universe.PartialBlockAt(
        sequence.stream, length, static_cast<uint32_t>(which - 1)));
  }
  sequence.request.new_blocks = static_cast<uint32_t>(random_.Below(10));
  Acquire(std::move(sequence));
}

void SimClient::Fork() {
  const Sequence* parent = PickAnswered();
  if (parent == nullptr) return;
  Sequence sequence;
  sequence.pool = parent->pool;
  sequence.stream = parent->stream;
  sequence.request.hashes = parent->request.hashes;
  sequence.request.new_blocks = static_cast<uint32_t>(random_.Below(3));
  Acquire(std::move(sequence));
}

void SimClient::Acquire(Sequence sequence) {
  sequence.request.session = session_;
  sequence.request.pool = context_.world.pool(sequence.pool).id;
  sequence.erasures = context_.oracle.erasures();
  sequence.asked_ms = context_.oracle.NowMs();
  if (random_.Chance(0.7)) sequence.request.counters = counters_;
  if (random_.Chance(0.4)) sequence.request.layers = random_.Chance(0.5) ? 2 : 8;
  const uint64_t id = next_sequence_++;
  // Drawn from a stream of its own, so that seeds from before there were wishes still play the
  // same.
  SeededRandom wishes(context_.plan.seed ^ (session_.value << 20) ^ id);
  if (wishes.Chance(context_.plan.wish_rate)) {
    sequence.request.block_tokens = 16;
    sequence.request.wish = {
        .plan = wishes.Below(3) == 0 ? HitPlan::kAll : HitPlan::kCut,
        .deadline_ms = static_cast<uint32_t>(wishes.Chance(0.3) ? 1 + wishes.Below(200) : 0),
        .tokens = static_cast<uint32_t>(wishes.Below(600)),
        .cost = {.per_token_us = static_cast<float>(wishes.Below(5000)),
                 .per_pair_us = static_cast<float>(wishes.Below(10)),
                 .fixed_us = static_cast<float>(wishes.Below(1000))}};
  }
  const AcquireRequest request = sequence.request;
  sequences_.emplace(id, std::move(sequence));
  context_.world.cache().Acquire(request,
                                 [self = weak_from_this(), id](const Result<AcquireReply>& result) {
                                   if (const auto client = self.lock())
                                     client->OnAcquired(id, result);
                                 });
}

void SimClient::OnAcquired(uint64_t id, const Result<AcquireReply>& result) {
  const auto found = sequences_.find(id);
  SIM_CHECK(found != sequences_.end(), "an acquire was answered that this client did not make");
  Sequence& sequence = found->second;
  SIM_CHECK(!sequence.answered, "an acquire was answered twice");
  if (!result) {
    const ErrorCode code = result.error().code;
    SIM_CHECK(code == ErrorCode::kResourceExhausted || code == ErrorCode::kLimitExceeded ||
                  code == ErrorCode::kCancelled,
              result.error().ToString());
    TouchRequested(sequence);
    sequences_.erase(found);
    return;
  }
  CheckReply(sequence, *result);
  sequence.answered = true;
  TakeHits(&sequence, *result);
  TakeNewBlocks(&sequence, *result);
  TouchRequested(sequence);
}

void SimClient::CheckReply(const Sequence& sequence, const AcquireReply& reply) const {
  const AcquireRequest& request = sequence.request;
  SIM_CHECK(reply.new_blocks.size() == request.new_blocks, "private blocks are all or nothing");
  const size_t full_hits = reply.hits.size() - (reply.partial_block ? 1 : 0);
  SIM_CHECK(full_hits <= request.hashes.size(), "more hits than hashes");
  SIM_CHECK(!reply.partial_block || (*reply.partial_block < request.partial_blocks.size() &&
                                     full_hits == request.hashes.size()),
            "a tail without its prefix");
  const bool all_served =
      full_hits == request.hashes.size() && (request.partial_blocks.empty() || reply.partial_block);
  SIM_CHECK(!all_served || reply.miss == MissReason::kNone, "a reason without a miss");
  SIM_CHECK(full_hits == request.hashes.size() || reply.miss != MissReason::kNone,
            "a miss without a reason");
  const bool below = std::ranges::any_of(
      reply.hits, [](const AcquiredBlock& hit) { return hit.tier != Tier::kPool; });
  SIM_CHECK(below == (reply.load.value != 0), "a load for nothing, or none for something");
  SIM_CHECK(!reply.counter || below, "a counter without a load");
}

void SimClient::TakeHits(Sequence* sequence, const AcquireReply& reply) {
  sequence->load = reply.load;
  if (reply.counter) {
    sequence->counter = {reply.counter->offset(), reply.counter->base(), reply.counter->steps()};
  }
  sequence->load_finished = reply.load.value == 0;
  sequence->hits = static_cast<uint32_t>(reply.hits.size());
  sequence->ended = reply.partial_block.has_value();
  for (size_t i = 0; i < reply.hits.size(); ++i) {
    const bool is_partial = i == sequence->request.hashes.size();
    const BlockHash& hash = is_partial ? sequence->request.partial_blocks[*reply.partial_block]
                                       : sequence->request.hashes[i];
    sequence->held.push_back({reply.hits[i].handle, hash});
    context_.oracle.CheckNotErased(sequence->pool.name_space, hash, sequence->erasures);
    context_.oracle.OnHit({sequence->pool, reply.hits[i].handle}, hash, sequence->asked_ms);
    if (reply.hits[i].tier == Tier::kPool) MarkUsable(*sequence, &sequence->held.back());
  }
  if (sequence->load_finished) sequence->good = sequence->hits;
}

void SimClient::CheckCounters() {
  for (auto& [id, sequence] : sequences_) {
    if (sequence.counter && !sequence.load_finished) CheckCounter(&sequence);
  }
}

void SimClient::CheckCounter(Sequence* sequence) {
  Counter& counter = *sequence->counter;
  const auto* const word =
      reinterpret_cast<const uint32_t*>(counters_->memory().data() + counter.offset);
  const uint32_t done = *word - counter.base;
  SIM_CHECK(done >= counter.done, "a counter went backwards");
  counter.done = done;
  // The load has ended; the report says how.
  if (done > counter.steps) return;
  const uint32_t layers = sequence->request.layers;
  const uint32_t blocks = layers > 0 && done > 0 ? sequence->hits : done;
  for (uint32_t i = 0; i < blocks && i < sequence->held.size(); ++i) {
    const Held& held = sequence->held[i];
    context_.oracle.CheckPart({sequence->pool, held.handle}, held.hash, layers > 0 ? done : 1,
                              layers > 0 ? layers : 1);
  }
}

void SimClient::MarkUsable(const Sequence& sequence, Held* held) {
  if (held->usable) return;
  held->usable = true;
  context_.oracle.CheckBytes({sequence.pool, held->handle}, held->hash);
}

void SimClient::TakeNewBlocks(Sequence* sequence, const AcquireReply& reply) {
  for (const BlockHandle block : reply.new_blocks) {
    context_.oracle.OnPrivate({sequence->pool, block});
    FillFromHash(PatternOf(sequence->pool, block), context_.world.Bytes(sequence->pool, block));
    sequence->new_blocks.push_back(block);
  }
}

void SimClient::OnProgress(const LoadProgress& progress) {
  if (forgotten_loads_.contains(progress.load)) return;
  const auto found = std::ranges::find_if(sequences_, [&](const auto& entry) {
    return entry.second.answered && entry.second.load == progress.load;
  });
  SIM_CHECK(found != sequences_.end(), "progress of an unknown load");
  Sequence& sequence = found->second;
  SIM_CHECK(!sequence.load_finished, "progress after the end");
  SIM_CHECK(progress.ready >= sequence.ready && progress.ready <= sequence.hits,
            fmt::format("ready {} after {} of {}", progress.ready, sequence.ready, sequence.hits));
  SIM_CHECK(!progress.finished ||
                (progress.ready == sequence.hits) == (progress.miss == MissReason::kNone),
            "an unfinished load without a reason, or a reason without cause");
  sequence.ready = progress.ready;
  sequence.load_finished = progress.finished;
  for (uint32_t i = 0; i < progress.ready && i < sequence.held.size(); ++i) {
    MarkUsable(sequence, &sequence.held[i]);
  }
  if (!progress.finished) return;
  sequence.good = progress.ready;
  if (progress.ready == sequence.hits) return;
  sequence.ended = false;
}

SimClient::Sequence* SimClient::PickAnswered() {
  std::vector<Sequence*> answered;
  for (auto& [id, sequence] : sequences_) {
    if (sequence.answered) answered.push_back(&sequence);
  }
  return answered.empty() ? nullptr : answered[random_.Below(answered.size())];
}

void SimClient::CommitSome() {
  Sequence* const sequence = PickAnswered();
  if (sequence == nullptr || !sequence->load_finished) return;
  for (uint64_t count = random_.Between(1, 6); count > 0 && !sequence->new_blocks.empty();
       --count) {
    if (sequence->ended || sequence->good >= SimUniverse::kDepth) return;
    CommitNext(sequence);
  }
}

void SimClient::CommitNext(Sequence* sequence) {
  const uint32_t depth = sequence->good;
  const bool partial = random_.Chance(0.05);
  const BlockHash hash = partial ? context_.universe.PartialBlockAt(sequence->stream, depth, 0)
                                 : context_.universe.HashAt(sequence->stream, depth);
  const BlockHandle block = sequence->new_blocks.back();
  CheckPattern(sequence->pool, block);
  const std::span<std::byte> bytes = context_.world.Bytes(sequence->pool, block);
  FillFromHash(SimUniverse::ContentsOf(sequence->pool.name_space, hash), bytes);
  CommitRequest request{.block = block, .hash = hash, .tokens = 16, .depth = depth};
  request.tokens = partial ? 5 : 16;
  request.retention = SimUniverse::RetentionOf(hash);
  if (depth > 0) request.parent = context_.universe.HashAt(sequence->stream, depth - 1);
  if (random_.Chance(0.5)) request.checksum = ChecksumPayload(bytes);
  const auto reply =
      context_.world.cache().Commit(session_, context_.world.pool(sequence->pool).id, request);
  SIM_CHECK(reply.has_value(), reply.error().ToString());
  sequence->ended = partial || reply->duplicate;
  context_.oracle.OnTouched(sequence->pool.name_space, hash);
  if (reply->duplicate) {
    context_.oracle.OnComputed(sequence->pool.name_space, hash);
    FillFromHash(PatternOf(sequence->pool, block), bytes);
    return;
  }
  sequence->new_blocks.pop_back();
  sequence->held.push_back({block, hash, true});
  ++sequence->good;
  context_.oracle.OnCommitted({sequence->pool, block}, hash);
}

void SimClient::CheckPattern(SimPool pool, BlockHandle block) {
  SIM_CHECK(MatchesHash(PatternOf(pool, block), context_.world.Bytes(pool, block)),
            "a private block was written to by another than its owner");
}

void SimClient::ReleaseSome() {
  Sequence* const sequence = PickAnswered();
  if (sequence == nullptr) return;
  const size_t all = sequence->held.size() + sequence->new_blocks.size();
  const size_t count = random_.Chance(0.8) ? all : random_.Below(all + 1);
  ReleaseLast(sequence, count);
  EraseIfEmpty(sequence);
}

void SimClient::EraseIfEmpty(Sequence* sequence) {
  if (!sequence->held.empty() || !sequence->new_blocks.empty()) return;
  if (!sequence->load_finished) forgotten_loads_.insert(sequence->load);
  std::erase_if(sequences_, [&](const auto& entry) { return &entry.second == sequence; });
}

void SimClient::ReleaseLast(Sequence* sequence, size_t count) {
  std::vector<BlockHandle> blocks;
  while (blocks.size() < count && !sequence->new_blocks.empty()) {
    const BlockHandle block = sequence->new_blocks.back();
    CheckPattern(sequence->pool, block);
    context_.oracle.OnPrivateReleased({sequence->pool, block});
    given_back_.push_back({sequence->pool, block});
    blocks.push_back(block);
    sequence->new_blocks.pop_back();
  }
  while (blocks.size() < count) {
    const Held& held = sequence->held.back();
    const SimBlock block{sequence->pool, held.handle};
    if (held.usable) context_.oracle.CheckBytes(block, held.hash);
    context_.oracle.OnReferenceDropped(block);
    given_back_.push_back(block);
    blocks.push_back(held.handle);
    sequence->held.pop_back();
    sequence->ended = true;
  }
  ReleaseBlocks(sequence->pool, blocks);
}

void SimClient::ReleaseBlocks(SimPool pool, const std::vector<BlockHandle>& blocks) {
  const auto errors =
      context_.world.cache().Release(session_, context_.world.pool(pool).id, blocks);
  SIM_CHECK(errors.empty(), errors.front().error.ToString());
}

void SimClient::Misbehave() {
  if (!given_back_.empty()) ExpectRefused(given_back_[random_.Below(given_back_.size())]);
  if (const auto others = context_.oracle.AnyOwned(random_)) ExpectRefused(*others);
  ReleaseTwice();
  const Sequence* const sequence = PickAnswered();
  if (sequence == nullptr || sequence->held.empty()) return;
  const BlockHandle held = sequence->held[random_.Below(sequence->held.size())].handle;
  const PoolId pool = context_.world.pool(sequence->pool).id;
  Cache& cache = context_.world.cache();
  SIM_CHECK(!cache.Commit(session_, pool, {.block = held, .hash = {}, .tokens = 1}),
            "a committed block was committed again");
  const BlockHandle wrong{held.index, held.generation + 1};
  SIM_CHECK(cache.Release(session_, pool, std::vector{wrong}).size() == 1,
            "a handle of another generation was released");
}

void SimClient::ExpectRefused(const SimBlock& block) {
  if (ReferencesTo(block) > 0) return;
  Cache& cache = context_.world.cache();
  const PoolId pool = context_.world.pool(block.pool).id;
  const std::vector<BlockHandle> twice{block.handle, block.handle};
  SIM_CHECK(cache.Release(session_, pool, twice).size() == 2,
            "a block was released that the session does not hold");
  SIM_CHECK(!cache.Commit(session_, pool, {.block = block.handle, .hash = {}, .tokens = 1}),
            "a block was committed that the session does not hold");
}

// While an acquire that waits may hold it, too: that reference is not the client's yet.
void SimClient::ReleaseTwice() {
  Sequence* const sequence = PickAnswered();
  if (sequence == nullptr || sequence->held.empty()) return;
  const Held last = sequence->held.back();
  const SimBlock block{sequence->pool, last.handle};
  if (ReferencesTo(block) != 1) return;
  context_.oracle.OnReferenceDropped(block);
  sequence->held.pop_back();
  sequence->ended = true;
  given_back_.push_back(block);
  const std::vector<BlockHandle> twice{last.handle, last.handle};
  const auto errors =
      context_.world.cache().Release(session_, context_.world.pool(block.pool).id, twice);
  SIM_CHECK(errors.size() == 1 && errors.front().position == 1, "one reference was released twice");
  EraseIfEmpty(sequence);
}

uint32_t SimClient::ReferencesTo(const SimBlock& block) const {
  uint32_t count = 0;
  for (const auto& [id, sequence] : sequences_) {
    if (sequence.pool != block.pool) continue;
    count += std::ranges::count(sequence.held, block.handle, &Held::handle);
    count += std::ranges::count(sequence.new_blocks, block.handle);
  }
  return count;
}

void SimClient::TouchAwaited() {
  for (const auto& [id, sequence] : sequences_) {
    if (!sequence.answered) TouchRequested(sequence);
  }
}

// While it waited it may have held more than it was given in the end.
void SimClient::TouchRequested(const Sequence& sequence) {
  ForEachRequested(sequence, [&](const BlockHash& hash) {
    context_.oracle.OnTouched(sequence.pool.name_space, hash);
  });
}

void SimClient::ForEachRequested(const Sequence& sequence,
                                 const std::function<void(const BlockHash&)>& visit) {
  std::ranges::for_each(sequence.request.hashes, visit);
  std::ranges::for_each(sequence.request.partial_blocks, visit);
}

void SimClient::CheckOne() {
  const Sequence* const sequence = PickAnswered();
  if (sequence == nullptr) return;
  for (const BlockHandle block : sequence->new_blocks) CheckPattern(sequence->pool, block);
  if (sequence->held.empty()) return;
  const Held& held = sequence->held[random_.Below(sequence->held.size())];
  if (held.usable) context_.oracle.CheckBytes({sequence->pool, held.handle}, held.hash);
}

}  // namespace kvtier
