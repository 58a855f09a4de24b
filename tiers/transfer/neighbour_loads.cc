// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/neighbour_loads.h"

#include <span>

#include "base/result.h"

namespace kvtier {
namespace {

// So long a look at what an engine publishes may take: it reads some words of memory.
constexpr int64_t kLookPatienceMs = 500;
// After as many copies of a device that failed one after the other, it reads no neighbour any more.
constexpr uint32_t kMostFailures = 8;

}  // namespace

NeighbourBlock::NeighbourBlock(CacheState* state, NeighbourSource source)
    : state_(state), source_(source) {
  if (source_.pool->is_region) {
    ++source_.pool->readers;
  } else {
    state_->Reference(source_.pool, source_.block);
  }
}

// Its use counts where it was asked for; in its own pool it is among the youngest.
NeighbourBlock::~NeighbourBlock() {
  CachePool* const pool = source_.pool;
  if (pool == nullptr) return;
  if (pool->is_region) {
    // It may wait for this to be gone.
    if (--pool->readers == 0) state_->SchedulePart();
    return;
  }
  if (!pool->blocks.Unreference(source_.block)) return;
  const PoolBlock& record = pool->blocks[source_.block];
  if (record.state() == PoolBlockState::kOrphaned) {
    pool->blocks.Free(source_.block, nullptr);
  } else {
    state_->EnterEvictionOrder(pool, record.entry);
  }
}

NeighbourLoads::NeighbourLoads(CacheState* state, BlockListener* listener)
    : state_(*state), listener_(*listener), regions_(state), copies_(state, CopyLane::kPoolToPool) {
  const std::vector<PoolDevice>& devices = state_.env.devices;
  for (const PoolDevice& reader : devices) {
    uint32_t readable = 0;
    for (size_t i = 0; i < devices.size(); ++i) {
      const bool can = CanReadFrom(reader.device->info(), devices[i].device->info());
      if (can && devices[i].device != reader.device) readable |= uint32_t{1} << i;
    }
    readable_.push_back(readable);
  }
  failures_.resize(devices.size());
}

uint32_t NeighbourLoads::ReadableBy(DeviceIndex device) const {
  const bool reads = device.value < readable_.size() && failures_[device.value] < kMostFailures;
  return reads ? readable_[device.value] : 0;
}

std::optional<NeighbourSource> NeighbourLoads::AnySource(const CachePool& pool,
                                                         EntryIndex index) const {
  const uint32_t readable = ReadableBy(pool.device);
  const BlockEntry& entry = state_[index];
  std::optional<NeighbourSource> source;
  state_.blocks.ForEachPlace(entry, [&](CachePool& holder, BlockIndex block) {
    if (!holder.is_region && !holder.blocks[block].loading() &&
        ((readable >> holder.device.value) & 1) != 0) {
      source = NeighbourSource{&holder, block};
    }
  });
  if (source) return source;
  source = regions_.Find(pool, index);
  if (!source || source->pool->device == pool.device) return source;
  return ((readable >> source->pool->device.value) & 1) != 0 ? source : std::nullopt;
}

// A way that was never measured, or long ago, is tried. A region in host memory has no device that
// could read another's.
std::optional<NeighbourSource> NeighbourLoads::SourceOf(const CachePool& pool,
                                                        EntryIndex index) const {
  const std::vector<PoolDevice>& devices = state_.env.devices;
  if (pool.device.value >= devices.size() || pool.copier != devices[pool.device.value].device) {
    return {};
  }
  if (failures_[pool.device.value] >= kMostFailures) return {};
  // The usual case costs next to nothing: one GPU, and no engine that publishes.
  if (readable_[pool.device.value] == 0 && regions_.empty()) return {};
  const std::optional<NeighbourSource> source = AnySource(pool, index);
  if (!source || !state_[index].in_host()) return source;
  const int64_t now_us = state_.clock.PreciseUs();
  const WayPrice price =
      state_.load_rates.neighbour(pool.device, source->pool->device).PriceNow(0, now_us);
  const double by_host = state_.load_rates.bus(pool.device).PriceNow(0, now_us).us_per_byte;
  const bool is_faster = price.trial() || price.stale || price.us_per_byte <= by_host;
  return is_faster ? source : std::nullopt;
}

void NeighbourLoads::Add(CachePool* pool, EntryIndex index, NeighbourSource source) {
  Waiting waiting{pool, index, NeighbourBlock(&state_, source),
                  state_[index].in_host() ? HostPin(&state_, index) : HostPin()};
  if (TargetOf(waiting).CanWait()) {
    queue_.PushLater(pool->copy_line, std::move(waiting));
  } else {
    queue_.Push(pool->copy_line, std::move(waiting));
  }
}

void NeighbourLoads::PromoteReferenced(const CachePool& pool) {
  queue_.Promote(pool.copy_line,
                 [this](const Waiting& waiting) { return !TargetOf(waiting).CanWait(); });
}

bool NeighbourLoads::Pump() {
  const uint64_t most = copies_.pieces_started() + kCopyPiecesPerEvent;
  bool progressed = false;
  for (int i = 0; i < kCopyBatchesPerEvent && copies_.pieces_started() < most; ++i) {
    const bool started = queue_.TakeTurn([this](CopyLine line, PriorityQueue<Waiting>* waiting) {
      const bool demand = !waiting->now()->empty();
      const uint64_t most_bytes = state_.options.max_load_bytes / (demand ? 1 : kPrefetchShare);
      if (!copies_.MayStart(line, most_bytes)) return false;
      Start(waiting->next(), demand ? CopyPriority::kDemand : CopyPriority::kPrefetch);
      return true;
    });
    if (!started) return progressed;
    progressed = true;
  }
  state_.SchedulePart();
  return false;
}

// The client's counter is set when the blocks have arrived, not by the device: a copy that fails is
// followed by another way, and a counter that its device has stopped stays so.
void NeighbourLoads::Start(std::deque<Waiting>* line, CopyPriority priority) {
  Batch batch{CopyBatch(&state_, CopyDirection::kPoolToPool, priority,
                        CopyBatchBytesOf(line->size() * line->front().pool->block_bytes)),
              {}};
  int failed = 0;
  while (!line->empty() && failed < kMostFailedOfBatch) {
    Waiting& next = line->front();
    if (TargetOf(next).Cancelled()) {
      const BlockEnd end = EndOf(next, MissReason::kCancelled);
      line->pop_front();
      ++failed;
      listener_.OnEnded(std::span(&end, 1));
      continue;
    }
    if (!batch.copies.AdmitsFrom(*next.pool, *next.source.pool())) break;
    batch.copies.AddFrom(next.pool, next.entry, *next.source.pool(), next.source.block());
    state_.trace.Begin(TraceKind::kCopyUp, next.entry);
    batch.blocks.push_back(std::move(next));
    line->pop_front();
  }
  if (batch.blocks.empty()) return;
  const auto started = batches_.insert(batches_.end(), std::move(batch));
  copies_.Start(std::move(started->copies),
                [this, started](const Status& status) { OnCopied(started, status); });
}

void NeighbourLoads::OnCopied(std::list<Batch>::iterator landed, const Status& status) {
  const CacheTrace::Together together(&state_.trace);
  std::vector<Waiting> blocks = std::move(landed->blocks);
  batches_.erase(landed);
  uint32_t& failures = failures_[blocks.front().pool->device.value];
  const bool failed = !status && status.error().code != ErrorCode::kCancelled;
  failures = failed ? failures + 1 : 0;
  if (status && blocks.front().source.pool()->is_region) return LookAgain(std::move(blocks));
  std::vector<bool> held;
  for (const Waiting& waiting : blocks) held.push_back(status && waiting.source.Holds());
  EndAll(std::move(blocks), held);
}

void NeighbourLoads::LookAgain(std::vector<Waiting> blocks) {
  const PublishedBlocks& published = *blocks.front().source.pool()->published;
  std::vector<PublishedBlocks::Asked> asked;
  for (const Waiting& waiting : blocks) {
    asked.push_back({waiting.source.block(), state_[waiting.entry].hash});
  }
  const uint64_t look = ++last_look_;
  looks_.emplace(look, Landed{std::move(blocks), state_.clock.NowMs() + kLookPatienceMs});
  published.Look(std::move(asked),
                 gate_.WhileOpen([this, look](const std::vector<uint64_t>& numbers) {
                   OnLooked(look, numbers);
                 }));
}

void NeighbourLoads::OnLooked(uint64_t look, const std::vector<uint64_t>& numbers) {
  auto landed = looks_.extract(look);
  if (landed.empty()) return;
  std::vector<Waiting>& blocks = landed.mapped().blocks;
  std::vector<bool> held;
  for (size_t i = 0; i < blocks.size(); ++i) {
    held.push_back(numbers[i] == blocks[i].source.number());
    if (!held.back()) regions_.Drop(blocks[i].entry);
  }
  EndAll(std::move(blocks), held);
}

// Blocks of an engine that holds up the readers of its table are not looked for there any more, nor
// others until a look is answered.
void NeighbourLoads::Tick() {
  const int64_t now_ms = state_.clock.NowMs();
  while (!looks_.empty() && looks_.begin()->second.deadline_ms <= now_ms) {
    std::vector<Waiting> blocks = std::move(looks_.begin()->second.blocks);
    looks_.erase(looks_.begin());
    regions_.DropAll(blocks.front().source.pool()->id);
    EndAll(std::move(blocks), std::vector<bool>(blocks.size()));
  }
}

void NeighbourLoads::EndAll(std::vector<Waiting> blocks, const std::vector<bool>& held) {
  const CacheTrace::Together together(&state_.trace);
  std::vector<BlockEnd> ends;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const Waiting& waiting = blocks[i];
    state_.trace.End(TraceKind::kCopyUp, waiting.entry, !held[i]);
    if (!held[i]) {
      ++state_.stats.neighbour_fallbacks;
    } else {
      ++state_.stats.neighbour_blocks;
      state_.stats.neighbour_bytes += waiting.pool->block_bytes;
      if (!waiting.source.pool()->is_region) {
        state_.blocks.CopyCommitChecksum(*waiting.source.pool(), waiting.pool, waiting.entry);
      }
    }
    ends.push_back(EndOf(waiting, held[i] ? MissReason::kNone : MissReason::kCopyFailed));
  }
  // Let go of before the ends are told: the way that a block goes next may want to evict one. The
  // deepest of a sequence is the first, and so the coldest in its pool.
  while (!blocks.empty()) blocks.pop_back();
  listener_.OnEnded(ends);
}

BlockEnd NeighbourLoads::EndOf(const Waiting& waiting, MissReason reason) const {
  return {.move = BlockMove::kFromNeighbour,
          .block = state_.blocks.directory.RefOf(waiting.entry),
          .pool = waiting.pool,
          .reason = reason};
}

}  // namespace kvtier
