// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/loader.h"

#include <algorithm>
#include <utility>

#include "base/result.h"
#include "tiers/transfer/copy_batch.h"
#include "tiers/transfer/host_source.h"

namespace kvtier {
namespace {

// Prefetches leave room for those who come to wait.
constexpr uint64_t kPrefetchShare = 2;
constexpr int kReadAttempts = 2;
// A disk read needs a host slot. If none comes free for this long, the block is a miss.
constexpr int64_t kHostSlotWaitMs = 5'000;

}  // namespace

Loader::Loader(CacheState* state, HostSlots* host, Offloader* offloader, DiskSlots* disk,
               LoadTable* loads)
    : state_(*state),
      host_(*host),
      offloader_(*offloader),
      disk_(*disk),
      loads_(*loads),
      layers_(
          state, loads,
          [this](CachePool* pool, EntryIndex entry) { Arrived(pool, std::span(&entry, 1)); },
          [this](CachePool* pool, EntryIndex entry, MissReason reason) {
            Fail({pool, entry}, reason);
          }),
      read_queues_(state->tenants.rows()) {}

PoolBlock& Loader::BlockOf(const Arrival& arrival) const {
  return arrival.pool->blocks[state_.BlockIn(*arrival.pool, state_[arrival.entry])];
}

Tier Loader::SourceOf(const BlockEntry& entry) const {
  return entry.in_host() || state_.ReadyPool(entry) != nullptr ? Tier::kHost : Tier::kDisk;
}

void Loader::Start(CachePool* pool, EntryIndex index) {
  Arrival arrival{pool, index, state_.env.clock->MonotonicMs()};
  StartLoading(arrival);
  const BlockEntry& entry = state_[index];
  if (entry.in_host()) {
    QueueCopy(arrival);
  } else if (ComesToHost(&arrival)) {
    waiting_[index].push_back(arrival);
  } else {
    QueueRead(arrival);
  }
}

void Loader::StartInLayers(CachePool* pool, EntryIndex index) {
  StartLoading({pool, index});
  state_.Apply(index, BlockEvent::kPinHost);
}

void Loader::QueueLayers(LoadId load, CachePool* pool, const std::vector<EntryIndex>& entries,
                         uint32_t layers) {
  layers_.Add(load, pool, entries, layers);
}

void Loader::FreshenLoading(const CachePool& pool, EntryIndex index) {
  const BlockIndex block = state_.BlockIn(pool, state_[index]);
  if (block != kNoBlock && pool.blocks[block].loading()) host_.Touch(index);
}

void Loader::FreshenBelow(EntryIndex index) {
  if (state_[index].in_host()) host_.Touch(index);
}

bool Loader::Pump() {
  const bool woken = WakeWaiting();
  const bool reads = PumpReads();
  const bool copies = PumpCopies();
  return woken || reads || copies;
}

bool Loader::ComesToHost(Arrival* arrival) {
  const BlockEntry& entry = state_[arrival->entry];
  if (entry.reading() || entry.offloading()) return true;
  if (arrival->asked_pool || !offloader_.WantNow(arrival->entry)) return false;
  arrival->asked_pool = true;
  return true;
}

bool Loader::WakeWaiting() {
  const std::vector<EntryIndex> ended = offloader_.TakeEnded();
  for (const EntryIndex index : ended) Wake(index);
  return !ended.empty();
}

void Loader::Wake(EntryIndex index) {
  auto node = waiting_.extract(index);
  if (node.empty()) return;
  for (const Arrival& arrival : node.mapped()) {
    if (state_[index].in_host()) {
      QueueCopy(arrival);
    } else {
      QueueRead(arrival);
    }
  }
}

void Loader::PromoteReferenced() {
  const auto referenced = [this](const Arrival& arrival) { return !CanWait(arrival); };
  read_queues_.Promote(referenced);
  copy_queue_.Promote(referenced);
}

void Loader::QueueRead(const Arrival& arrival) {
  const TenantId tenant = state_.TenantOf(state_[arrival.entry]);
  if (CanWait(arrival)) {
    read_queues_.PushLater(tenant, arrival);
  } else {
    read_queues_.Push(tenant, arrival);
  }
}

bool Loader::PumpReads() {
  return read_queues_.TakeTurns([this](std::deque<Arrival>* line) {
    uint64_t most_bytes = state_.options.max_disk_read_bytes;
    if (CanWait(line->front())) most_bytes /= kPrefetchShare;
    if (read_bytes_ >= most_bytes || !TryRead(line->front())) return false;
    line->pop_front();
    return true;
  });
}

bool Loader::TryRead(Arrival arrival) {
  const EntryIndex index = arrival.entry;
  const BlockEntry& entry = state_[index];
  KVT_CHECK(state_.directory.Live(index) && BlockOf(arrival).loading());
  if (Abandoned(arrival)) {
    Fail(arrival, MissReason::kCancelled);
  } else if (entry.in_host()) {
    QueueCopy(arrival);
  } else if (ComesToHost(&arrival)) {
    waiting_[index].push_back(arrival);
  } else if (!entry.on_disk()) {
    // If a pool has it still, host had no room for its copy.
    Fail(arrival, state_.ReadyPool(entry) ? MissReason::kHostFull : MissReason::kUnknown);
  } else {
    const HostSlots::Outcome outcome = host_.Allocate(index);
    if (outcome == HostSlots::Outcome::kWait) return false;
    if (outcome == HostSlots::Outcome::kAllocated) {
      StartRead(arrival);
    } else {
      Fail(arrival, MissReason::kHostFull);
    }
  }
  return true;
}

void Loader::StartRead(const Arrival& arrival) {
  const BlockEntry& entry = state_[arrival.entry];
  state_.Apply(arrival.entry, BlockEvent::kBeginRead);
  const auto read = std::make_shared<Read>();
  read->arrival = arrival;
  read->expected = state_.ExpectationOf(entry);
  read->slot = state_.HostBytes(entry);
  read_bytes_ += read->slot.size();
  ++reads_in_flight_;
  state_.stats.Lane(CopyLane::kDiskToHost).Begin(state_.NowMs());
  IssueRead(read);
}

void Loader::IssueRead(const std::shared_ptr<Read>& read) {
  state_.trace.Begin(TraceKind::kDiskRead, read->arrival.entry);
  disk_.Read(read->expected.location, read->slot,
             [this, read](const Status& status) { OnRead(read, status); });
}

void Loader::OnRead(const std::shared_ptr<Read>& read, const Status& status) {
  state_.trace.End(TraceKind::kDiskRead, read->arrival.entry, !status);
  if (!status) {
    ++state_.stats.disk_read_errors;
    ReadFailed(read, MissReason::kReadError, DropReason::kReadError);
    return;
  }
  state_.trace.Begin(TraceKind::kCheck, read->arrival.entry);
  state_.env.executor->Run([read] { read->verdict = CheckDiskSlot(read->expected, read->slot); },
                           [this, read] { OnChecked(read); });
}

void Loader::OnChecked(const std::shared_ptr<Read>& read) {
  state_.trace.End(TraceKind::kCheck, read->arrival.entry, read->verdict != SlotVerdict::kGood);
  if (read->verdict != SlotVerdict::kGood) {
    const bool corrupt = read->verdict == SlotVerdict::kCorrupt;
    ReadFailed(read, corrupt ? MissReason::kChecksumMismatch : MissReason::kIdentityMismatch,
               DropReason::kCorrupt);
    return;
  }
  const EntryIndex index = read->arrival.entry;
  ++state_.stats.disk_read_blocks;
  state_.stats.disk_read_bytes += read->slot.size();
  if (read->attempt > 1) ++state_.stats.disk_read_repaired;
  disk_.MarkVerified(index);
  EndRead(*read);
  host_.Ready(index);
  QueueCopy(read->arrival);
  Wake(index);
}

void Loader::ReadFailed(const std::shared_ptr<Read>& read, MissReason miss, DropReason drop) {
  if (read->attempt < kReadAttempts) {
    ++read->attempt;
    ++state_.stats.disk_read_retries;
    IssueRead(read);
    return;
  }
  const EntryIndex index = read->arrival.entry;
  EndRead(*read);
  host_.RollBack(index);
  // A verification that failed meanwhile may have dropped it already.
  if (state_[index].disk == read->expected.location) {
    disk_.Drop(index, drop, IndexCommitter::Slot::kKeep);
  }
  // Other pools' loads waited for the same bytes.
  auto others = waiting_.extract(index);
  Fail(read->arrival, miss);
  if (others.empty()) return;
  for (const Arrival& other : others.mapped()) Fail(other, miss);
}

void Loader::EndRead(const Read& read) {
  state_.SchedulePump();
  state_.Apply(read.arrival.entry, BlockEvent::kEndRead);
  read_bytes_ -= read.slot.size();
  --reads_in_flight_;
  state_.stats.Lane(CopyLane::kDiskToHost).End(state_.NowMs());
}

void Loader::QueueCopy(const Arrival& arrival) {
  state_.Apply(arrival.entry, BlockEvent::kPinHost);
  if (CanWait(arrival)) {
    copy_queue_.PushLater(arrival);
  } else {
    copy_queue_.Push(arrival);
  }
}

bool Loader::MayCopy(uint64_t share) const {
  return copy_bytes_ + layers_.bytes_in_flight() < state_.options.max_load_bytes / share &&
         copy_blocks_ + layers_.pieces_in_flight() < kCopyPiecesInFlight;
}

bool Loader::PumpCopies() {
  bool progressed = false;
  // Those that load in layers and the others in turn.
  while (MayCopy(1)) {
    const bool layers = layers_.StartOne();
    std::shared_ptr<CopyBatch> batch = NextCopyBatch(CopyPriority::kDemand, Unsound::kFail);
    if (!batch && !layers && MayCopy(kPrefetchShare)) {
      batch = NextCopyBatch(CopyPriority::kPrefetch, Unsound::kFail);
    }
    if (batch) StartCopy(batch);
    if (!batch && !layers) break;
    progressed = true;
  }
  return progressed;
}

void Loader::StartSoundCopies() {
  while (MayCopy(1)) {
    const std::shared_ptr<CopyBatch> batch = NextCopyBatch(CopyPriority::kDemand, Unsound::kLeave);
    if (!batch) return;
    StartCopy(batch);
  }
}

void Loader::StartCopy(const std::shared_ptr<CopyBatch>& batch) {
  const CachePool& pool = *batch->pool;
  CopyRequest request;
  request.pool = pool.memory.get();
  request.direction = CopyDirection::kHostToPool;
  request.priority = batch->priority;
  request.copies.reserve(batch->entries.size());
  for (const EntryIndex index : batch->entries) {
    const BlockEntry& entry = state_[index];
    const BlockIndex block = state_.BlockIn(pool, entry);
    request.copies.push_back({pool.OffsetOf(block),
                              state_.HostBytes(entry).data() + kSlotHeaderBytes, pool.block_bytes});
  }
  // What others may overtake cannot be foretold.
  if (request.priority == CopyPriority::kDemand) {
    request.counted = loads_.BlocksQueued(pool, batch->entries);
  }
  copy_bytes_ += batch->bytes;
  copy_blocks_ += batch->entries.size();
  state_.stats.Lane(CopyLane::kHostToPool).Begin(state_.NowMs());
  request.done = [this, batch](const Status& status) { OnCopied(batch, status); };
  state_.DeviceOf(pool).Copy(std::move(request));
}

std::shared_ptr<Loader::CopyBatch> Loader::NextCopyBatch(CopyPriority priority, Unsound unsound) {
  const bool demand = priority == CopyPriority::kDemand;
  std::deque<Arrival>& line = demand ? *copy_queue_.now() : *copy_queue_.later();
  const uint64_t most_bytes = std::min(kCopyBatchBytes, state_.options.max_load_bytes);
  const CacheTrace::Together together(&state_.trace);
  const auto batch = std::make_shared<CopyBatch>();
  batch->priority = priority;
  while (!line.empty() && batch->bytes < most_bytes && batch->entries.size() < kCopyBatchPieces) {
    const Arrival arrival = line.front();
    const BlockEntry& entry = state_[arrival.entry];
    if (batch->pool != nullptr && batch->pool != arrival.pool) break;
    if (line.size() > kHeadersAhead) FetchHostHeader(state_, state_[line[kHeadersAhead].entry]);
    const bool sound = HostSlotIsOf(state_, entry);
    if (Abandoned(arrival) || !sound) {
      if (unsound == Unsound::kLeave) break;
      line.pop_front();
      state_.Apply(arrival.entry, BlockEvent::kUnpinHost);
      Fail(arrival, sound ? MissReason::kCancelled : MissReason::kIdentityMismatch);
      continue;
    }
    line.pop_front();
    batch->pool = arrival.pool;
    batch->entries.push_back(arrival.entry);
    state_.trace.Begin(TraceKind::kCopyUp, arrival.entry);
    batch->bytes += arrival.pool->block_bytes;
  }
  return batch->entries.empty() ? nullptr : batch;
}

void Loader::OnCopied(const std::shared_ptr<CopyBatch>& batch, const Status& status) {
  const CacheTrace::Together together(&state_.trace);
  state_.SchedulePump();
  copy_bytes_ -= batch->bytes;
  copy_blocks_ -= batch->entries.size();
  state_.stats.Lane(CopyLane::kHostToPool).End(state_.NowMs());
  for (const EntryIndex entry : batch->entries) {
    state_.Apply(entry, BlockEvent::kUnpinHost);
    state_.trace.End(TraceKind::kCopyUp, entry, !status);
  }
  if (status) return Arrived(batch->pool, batch->entries);
  for (const EntryIndex entry : batch->entries) {
    Fail({batch->pool, entry}, MissReason::kCopyFailed);
  }
}

void Loader::Arrived(CachePool* pool, std::span<const EntryIndex> entries) {
  const uint32_t now_ds = state_.NowDs();
  for (const EntryIndex entry : entries) {
    StopLoading({pool, entry});
    state_.trace.BlockLoadEnd(entry, MissReason::kNone);
    PoolBlock& block = BlockOf({pool, entry});
    block.since_ds = now_ds;
    if (block.references == 0) pool->victims.Insert(entry, state_[entry].facts());
  }
  state_.stats.onload_blocks += entries.size();
  state_.stats.onload_bytes += entries.size() * pool->block_bytes;
  loads_.BlocksReady(*pool, entries);
}

bool Loader::CanWait(const Arrival& arrival) const { return BlockOf(arrival).CanWait(); }

bool Loader::Abandoned(const Arrival& arrival) const { return BlockOf(arrival).Abandoned(); }

void Loader::StartLoading(const Arrival& arrival) {
  state_.BeginLoad(arrival.pool, arrival.entry);
  ++loading_;
}

void Loader::StopLoading(const Arrival& arrival) {
  state_.EndLoad(arrival.pool, arrival.entry);
  --loading_;
}

void Loader::Fail(const Arrival& arrival, MissReason reason) {
  const EntryIndex index = arrival.entry;
  StopLoading(arrival);
  state_.trace.BlockLoadEnd(index, reason);
  host_.CancelArrival(index);
  state_.LosePoolBlock(arrival.pool, index);
  state_.history.NoteMiss({state_[index].namespace_id, state_[index].hash},
                          {state_.ToWallS(state_.NowS()), reason});
  loads_.BlockFailed(*arrival.pool, index, reason);
  state_.ForgetIfGone(index);
}

void Loader::Tick() {
  const int64_t now_ms = state_.env.clock->MonotonicMs();
  const auto late = [&](const Arrival& arrival) {
    return now_ms - arrival.since_ms > kHostSlotWaitMs;
  };
  read_queues_.ForEachLine([&](std::deque<Arrival>* line) {
    while (!line->empty() && late(line->front())) {
      const Arrival arrival = line->front();
      line->pop_front();
      Fail(arrival, MissReason::kHostFull);
    }
  });
  std::vector<EntryIndex> stuck;
  for (const auto& [index, arrivals] : waiting_) {
    const BlockEntry& entry = state_[index];
    if (late(arrivals.front()) && !entry.reading() && !entry.offloading()) stuck.push_back(index);
  }
  for (const EntryIndex index : stuck) {
    const auto node = waiting_.extract(index);
    for (const Arrival& arrival : node.mapped()) Fail(arrival, MissReason::kHostFull);
  }
}

}  // namespace kvtier
