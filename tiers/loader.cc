#include "tiers/loader.h"

#include "base/check.h"
#include "tiers/slot_header.h"

namespace kvtier {
namespace {

// As in the offloader: large enough to amortise, small enough to arrive one after the other.
constexpr uint64_t kBatchBytes = 4 * kMiB;
constexpr int kReadAttempts = 2;
// A disk read needs a host slot. If none comes free for this long, the block is a miss.
constexpr int64_t kHostSlotWaitMs = 5'000;

SlotExpectation ExpectationOf(CacheState& state, const BlockEntry& entry) {
  return {state.SpaceOf(entry).identity, entry.hash, entry.disk, entry.disk_generation,
          entry.tokens};
}

}  // namespace

Loader::Loader(CacheState* state, HostSlots* host, DiskSlots* disk, LoadTable* loads)
    : state_(*state),
      host_(*host),
      disk_(*disk),
      loads_(*loads),
      read_queues_(state->tenants.rows()) {}

void Loader::Start(EntryIndex index) {
  BlockEntry& entry = state_[index];
  entry.motion.loading = true;
  ++loading_;
  ++state_.PoolOf(entry).loading;
  if (entry.in_host()) {
    QueueCopy(index);
  } else {
    read_queues_.Push(state_.TenantOf(entry), {index, state_.env.clock->MonotonicMs()});
  }
}

void Loader::FreshenLoading(EntryIndex index) {
  if (state_[index].motion.loading) host_.Freshen(index);
}

void Loader::FreshenBelow(EntryIndex index) {
  if (state_[index].in_host()) host_.Freshen(index);
}

bool Loader::Pump() {
  const bool reads = PumpReads();
  const bool copies = PumpCopies();
  return reads || copies;
}

bool Loader::PumpReads() {
  return read_queues_.TakeTurns([this](std::deque<QueuedRead>* line) {
    return read_bytes_ < state_.options.max_disk_read_bytes && TryRead(line);
  });
}

bool Loader::TryRead(std::deque<QueuedRead>* line) {
  const EntryIndex index = line->front().entry;
  BlockEntry& entry = state_[index];
  KVT_CHECK(state_.directory.Live(index) && entry.motion.loading && !entry.motion.reading);
  if (Abandoned(entry)) {
    line->pop_front();
    Fail(index, MissReason::kCancelled);
  } else if (entry.in_host()) {
    line->pop_front();
    QueueCopy(index);
  } else if (!entry.on_disk()) {
    line->pop_front();
    Fail(index, MissReason::kUnknown);
  } else {
    const HostSlots::Outcome outcome = host_.Allocate(index);
    if (outcome == HostSlots::Outcome::kWait) return false;
    line->pop_front();
    if (outcome == HostSlots::Outcome::kAllocated) {
      StartRead(index);
    } else {
      Fail(index, MissReason::kHostFull);
    }
  }
  return true;
}

void Loader::StartRead(EntryIndex index) {
  BlockEntry& entry = state_[index];
  entry.motion.reading = true;
  const auto read = std::make_shared<Read>();
  read->entry = index;
  read->expected = ExpectationOf(state_, entry);
  read->slot = state_.HostBytes(entry);
  read_bytes_ += read->slot.size();
  ++reads_in_flight_;
  state_.stats.Lane(CopyLane::kDiskToHost).Begin(state_.NowMs());
  IssueRead(read);
}

void Loader::IssueRead(const std::shared_ptr<Read>& read) {
  state_.trace.Begin(TraceKind::kDiskRead, read->entry);
  disk_.Read(read->expected.location, read->slot,
             [this, read](const Status& status) { OnRead(read, status); });
}

void Loader::OnRead(const std::shared_ptr<Read>& read, const Status& status) {
  state_.trace.End(TraceKind::kDiskRead, read->entry, !status);
  if (!status) {
    ++state_.stats.disk_read_errors;
    ReadFailed(read, MissReason::kReadError, DropReason::kReadError);
    return;
  }
  state_.trace.Begin(TraceKind::kCheck, read->entry);
  state_.env.executor->Run([read] { read->verdict = CheckDiskSlot(read->expected, read->slot); },
                           [this, read] { OnChecked(read); });
}

void Loader::OnChecked(const std::shared_ptr<Read>& read) {
  state_.trace.End(TraceKind::kCheck, read->entry, read->verdict != SlotVerdict::kGood);
  if (read->verdict != SlotVerdict::kGood) {
    const bool corrupt = read->verdict == SlotVerdict::kCorrupt;
    ReadFailed(read, corrupt ? MissReason::kChecksumMismatch : MissReason::kIdentityMismatch,
               DropReason::kCorrupt);
    return;
  }
  ++state_.stats.disk_read_blocks;
  state_.stats.disk_read_bytes += read->slot.size();
  if (read->attempt > 1) ++state_.stats.disk_read_repaired;
  disk_.Proven(read->entry);
  EndRead(*read);
  host_.Ready(read->entry);
  QueueCopy(read->entry);
}

void Loader::ReadFailed(const std::shared_ptr<Read>& read, MissReason miss, DropReason drop) {
  if (read->attempt < kReadAttempts) {
    ++read->attempt;
    ++state_.stats.disk_read_retries;
    IssueRead(read);
    return;
  }
  EndRead(*read);
  host_.Abandon(read->entry);
  // A verification that failed meanwhile may have dropped it already.
  if (state_[read->entry].disk == read->expected.location) {
    disk_.Drop(read->entry, drop, IndexCommitter::Slot::kKeep);
  }
  Fail(read->entry, miss);
}

void Loader::EndRead(const Read& read) {
  state_.SchedulePump();
  state_[read.entry].motion.reading = false;
  read_bytes_ -= read.slot.size();
  --reads_in_flight_;
  state_.stats.Lane(CopyLane::kDiskToHost).End(state_.NowMs());
}

void Loader::QueueCopy(EntryIndex index) {
  ++state_[index].host_pins;
  copy_queue_.push_back(index);
}

bool Loader::PumpCopies() {
  bool progressed = false;
  while (copy_bytes_ < state_.options.max_load_bytes) {
    const std::shared_ptr<CopyBatch> batch = NextCopyBatch();
    if (!batch) break;
    progressed = true;
    CopyRequest request;
    request.pool = batch->pool->memory.get();
    request.direction = CopyDirection::kHostToPool;
    request.priority = CopyPriority::kPrefetch;
    for (const EntryIndex index : batch->entries) {
      const BlockEntry& entry = state_[index];
      if (!entry.prefetched) request.priority = CopyPriority::kDemand;
      const uint64_t block_bytes = batch->pool->block_bytes;
      request.copies.push_back({batch->pool->OffsetOf(entry.pool_block),
                                state_.HostBytes(entry).data() + kSlotHeaderBytes, block_bytes});
    }
    copy_bytes_ += batch->bytes;
    state_.stats.Lane(CopyLane::kHostToPool).Begin(state_.NowMs());
    request.done = [this, batch](const Status& status) { OnCopied(batch, status); };
    state_.env.device->Copy(std::move(request));
  }
  return progressed;
}

std::shared_ptr<Loader::CopyBatch> Loader::NextCopyBatch() {
  const auto batch = std::make_shared<CopyBatch>();
  while (!copy_queue_.empty() && batch->bytes < kBatchBytes) {
    const EntryIndex index = copy_queue_.front();
    BlockEntry& entry = state_[index];
    CachePool* pool = &state_.PoolOf(entry);
    if (batch->pool != nullptr && batch->pool != pool) break;
    copy_queue_.pop_front();
    const bool sound =
        CheckHostSlot(ExpectationOf(state_, entry), state_.HostBytes(entry)) == SlotVerdict::kGood;
    if (Abandoned(entry) || !sound) {
      --entry.host_pins;
      Fail(index, sound ? MissReason::kCancelled : MissReason::kIdentityMismatch);
      continue;
    }
    batch->pool = pool;
    batch->entries.push_back(index);
    state_.trace.Begin(TraceKind::kCopyUp, index);
    batch->bytes += pool->block_bytes;
  }
  return batch->entries.empty() ? nullptr : batch;
}

void Loader::OnCopied(const std::shared_ptr<CopyBatch>& batch, const Status& status) {
  state_.SchedulePump();
  copy_bytes_ -= batch->bytes;
  state_.stats.Lane(CopyLane::kHostToPool).End(state_.NowMs());
  for (const EntryIndex index : batch->entries) {
    --state_[index].host_pins;
    state_.trace.End(TraceKind::kCopyUp, index, !status);
    if (status) {
      Arrived(batch->pool, index);
    } else {
      Fail(index, MissReason::kCopyFailed);
    }
  }
}

void Loader::Arrived(CachePool* pool, EntryIndex index) {
  BlockEntry& entry = state_[index];
  StopLoading(index);
  state_.trace.BlockLoadEnd(index, MissReason::kNone);
  pool->blocks[entry.pool_block].since_ds = state_.NowDs();
  ++state_.stats.onload_blocks;
  state_.stats.onload_bytes += pool->block_bytes;
  if (pool->blocks[entry.pool_block].references == 0) pool->victims.Insert(index, entry.facts());
  loads_.BlockReady(index);
}

bool Loader::Abandoned(const BlockEntry& entry) {
  return !entry.prefetched && state_.PoolOf(entry).blocks[entry.pool_block].references == 0;
}

void Loader::StopLoading(EntryIndex index) {
  BlockEntry& entry = state_[index];
  entry.motion.loading = false;
  entry.prefetched = false;
  --loading_;
  --state_.PoolOf(entry).loading;
}

void Loader::Fail(EntryIndex index, MissReason reason) {
  StopLoading(index);
  state_.trace.BlockLoadEnd(index, reason);
  if (!state_[index].in_host()) host_.Withdraw(index);
  state_.LosePoolBlock(index);
  state_.history.NoteMiss({state_[index].space, state_[index].hash}, {state_.NowS(), reason});
  loads_.BlockFailed(index, reason);
  state_.ForgetIfGone(index);
}

void Loader::Tick() {
  const int64_t now_ms = state_.env.clock->MonotonicMs();
  read_queues_.ForEachLane([&](std::deque<QueuedRead>* line) {
    while (!line->empty() && now_ms - line->front().since_ms > kHostSlotWaitMs) {
      const EntryIndex index = line->front().entry;
      line->pop_front();
      Fail(index, MissReason::kHostFull);
    }
  });
}

}  // namespace kvtier
