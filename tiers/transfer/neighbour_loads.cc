// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/neighbour_loads.h"

#include <span>

#include "base/result.h"

namespace kvtier {

NeighbourBlock::NeighbourBlock(CacheState* state, CachePool* pool, BlockIndex block)
    : state_(state), pool_(pool), block_(block) {
  state_->Reference(pool_, block_);
}

// The block is no younger for having been copied from: its use counts where it was asked for.
NeighbourBlock::~NeighbourBlock() {
  if (pool_ == nullptr || !pool_->blocks.Unreference(block_)) return;
  const PoolBlock& record = pool_->blocks[block_];
  if (record.state() == PoolBlockState::kOrphaned) {
    pool_->blocks.Free(block_, nullptr);
  } else {
    state_->EnterEvictionOrder(pool_, record.entry);
  }
}

NeighbourLoads::NeighbourLoads(CacheState* state, BlockListener* listener)
    : state_(*state), listener_(*listener), copies_(state, CopyLane::kPoolToPool) {
  const std::vector<PoolDevice>& devices = state_.env.devices;
  for (const PoolDevice& reader : devices) {
    uint32_t readable = 0;
    for (size_t i = 0; i < devices.size(); ++i) {
      const bool can = CanReadFrom(reader.device->info(), devices[i].device->info());
      if (can && devices[i].device != reader.device) readable |= uint32_t{1} << i;
    }
    readable_.push_back(readable);
  }
}

uint32_t NeighbourLoads::ReadableBy(DeviceIndex device) const {
  return device.value < readable_.size() ? readable_[device.value] : 0;
}

// A way that was never measured, or long ago, is tried. A region is no source: its engine may
// overwrite it at any time.
CachePool* NeighbourLoads::SourceOf(const CachePool& pool, const BlockEntry& entry) const {
  const uint32_t readable = ReadableBy(pool.device);
  if (readable == 0) return nullptr;
  CachePool* source = nullptr;
  state_.blocks.ForEachPlace(entry, [&](CachePool& holder, BlockIndex block) {
    if (!holder.is_region && !holder.blocks[block].loading() &&
        ((readable >> holder.device.value) & 1) != 0) {
      source = &holder;
    }
  });
  if (source == nullptr || !entry.in_host()) return source;
  const int64_t now_us = state_.clock.PreciseUs();
  const WayPrice price = state_.load_rates.neighbour(pool.device).PriceNow(0, now_us);
  const double by_host = state_.load_rates.bus(pool.device).PriceNow(0, now_us).us_per_byte;
  return price.trial() || price.stale || price.us_per_byte <= by_host ? source : nullptr;
}

void NeighbourLoads::Add(CachePool* pool, EntryIndex index, CachePool* source) {
  Waiting waiting{pool, index,
                  NeighbourBlock(&state_, source, state_.blocks.BlockIn(*source, state_[index]))};
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
      const uint64_t most_bytes = state_.options.max_load_bytes / (demand ? 1 : 2);
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
  while (!line->empty()) {
    Waiting& next = line->front();
    if (TargetOf(next).Cancelled()) {
      const BlockEnd end = EndOf(next, MissReason::kCancelled);
      line->pop_front();
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
  if (!status) {
    state_.incidents.Report(IncidentKind::kCopyFailed, blocks.front().pool->namespace_id,
                            status.error().ToString());
  }
  std::vector<BlockEnd> ends;
  for (const Waiting& waiting : blocks) {
    const bool arrived = status && waiting.source.Holds();
    state_.trace.End(TraceKind::kCopyUp, waiting.entry, !arrived);
    if (arrived) {
      ++state_.stats.neighbour_blocks;
      state_.stats.neighbour_bytes += waiting.pool->block_bytes;
      state_.blocks.CopyCommitChecksum(*waiting.source.pool(), waiting.pool, waiting.entry);
    } else {
      ++state_.stats.neighbour_fallbacks;
    }
    ends.push_back(EndOf(waiting, arrived ? MissReason::kNone : MissReason::kCopyFailed));
  }
  // Let go of before the ends are told: the way that a block goes next may want to evict one.
  blocks.clear();
  listener_.OnEnded(ends);
}

BlockEnd NeighbourLoads::EndOf(const Waiting& waiting, MissReason reason) const {
  return {.move = BlockMove::kFromNeighbour,
          .block = state_.blocks.directory.RefOf(waiting.entry),
          .pool = waiting.pool,
          .reason = reason};
}

}  // namespace kvtier
