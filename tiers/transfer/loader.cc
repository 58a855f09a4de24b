// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/loader.h"

#include <algorithm>
#include <utility>

#include "base/result.h"

namespace kvtier {
namespace {

// Prefetches get one part of so many of the bytes that may be read or copied at once, so that a
// load which a client waits for finds capacity to spare.
constexpr uint64_t kPrefetchShare = 2;
// The cold store gets one part of so many of what may be read from disk at once.
constexpr uint64_t kFetchShare = 2;
constexpr int kReadAttempts = 2;
// A disk read needs a host slot. If none comes free for this long, the block is a miss.
constexpr int64_t kHostSlotWaitMs = 5'000;
// So many of a line fail with one tick, the others with the next.
constexpr size_t kLatePerTick = 1024;
// More blocks than may be read at once arrive within `read_slot_wait_ms` only if that is set high,
// for host to keep what arrives.
constexpr size_t kMostInWait = 4096;

// The bytes that a read brings of a block, in which all rates are counted.
uint64_t PayloadOf(std::span<const std::byte> slot) { return slot.size() - kSlotHeaderBytes; }

}  // namespace

Loader::Loader(CacheState* state, HostSlots* host, Offloader* offloader, DiskSlots* disk,
               LoadTable* loads)
    : state_(*state),
      host_(*host),
      offloader_(*offloader),
      disk_(*disk),
      loads_(*loads),
      fetch_(state),
      copies_(state, CopyDirection::kHostToPool),
      layers_(
          state, &copies_,
          [this](CachePool* pool, EntryIndex entry) { Arrived(pool, std::span(&entry, 1)); },
          [this](CachePool* pool, EntryIndex entry, MissReason reason) {
            Fail({pool, entry}, reason);
          }) {}

const PoolBlock& Loader::BlockOf(const Arrival& arrival) const {
  return arrival.pool->blocks[state_.blocks.BlockIn(*arrival.pool, state_[arrival.entry])];
}

Tier Loader::SourceOf(const BlockEntry& entry) const {
  return entry.in_host() || state_.blocks.ReadyPool(entry) != nullptr ? Tier::kHost : Tier::kDisk;
}

// Host is looked at first, then ways that others have begun, and the disk last: a block is read
// from disk once, however many pools wait for it.
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

PinnedEntry Loader::StartInLayers(CachePool* pool, EntryIndex index) {
  StartLoading({pool, index});
  return {index, HostPin(&state_, index)};
}

void Loader::QueueLayers(std::shared_ptr<LayerCount> count, CachePool* pool,
                         std::vector<PinnedEntry> blocks, uint32_t layers) {
  layers_.Add(std::move(count), pool, std::move(blocks), layers);
}

void Loader::TouchLoading(const CachePool& pool, EntryIndex index) {
  const BlockIndex block = state_.blocks.BlockIn(pool, state_[index]);
  if (block != kNoBlock && pool.blocks[block].loading()) host_.Touch(index);
}

void Loader::TouchHost(EntryIndex index) {
  if (state_[index].in_host()) host_.Touch(index);
}

bool Loader::Pump() {
  const bool woken = WakeWaiting();
  const bool reads = PumpReads() | PumpFetches();
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
  const std::vector<EntryRef> ended = offloader_.TakeEnded();
  for (const EntryRef block : ended) {
    if (const EntryIndex index = state_.blocks.directory.Resolve(block); index != kNoEntry)
      Wake(index);
  }
  return !ended.empty();
}

// Taken out first: an arrival stands in the table or in a line, never in both.
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

void Loader::QueueRead(const Arrival& arrival) {
  const TenantLine tenant = state_.blocks.LineOf(state_[arrival.entry]);
  QueuedRead read{arrival, Ahead(&reads_ahead_, arrival)};
  if (CanWait(arrival)) {
    read_queues_.PushLater(tenant, std::move(read));
  } else {
    read_queues_.Push(tenant, std::move(read));
  }
}

InFlightBytes Loader::Ahead(InFlight* line, const Arrival& arrival) const {
  if (CanWait(arrival)) return {};
  return {line, arrival.pool->block_bytes, 1};
}

// Loads under way count as well, see RateMeter::PriceNow.
LoadPrices Loader::PricesNow(DeviceIndex device) const {
  const int64_t now_us = state_.clock.PreciseUs();
  const uint64_t copies =
      copies_ahead_[LoadRates::SlotOf(device)].bytes + layers_.queued_bytes(device);
  LoadPrices prices;
  prices[static_cast<size_t>(LoadWay::kDisk)] =
      state_.load_rates.disk().PriceNow(reads_ahead_.bytes, now_us);
  prices[static_cast<size_t>(LoadWay::kCold)] =
      state_.load_rates.cold().PriceNow(fetches_ahead_.bytes, now_us);
  prices[static_cast<size_t>(LoadWay::kBus)] =
      state_.load_rates.bus(device).PriceNow(copies, now_us);
  return prices;
}

bool Loader::PumpReads() {
  PassSlotsOn();
  const int64_t waited_since_ms = std::exchange(host_wait_since_ms_, kNoWait);
  const bool progressed =
      read_queues_.TakeTurns([this](TenantLine, PriorityQueue<QueuedRead>* of_tenant) {
        std::deque<QueuedRead>* const line = of_tenant->next();
        uint64_t most_bytes = state_.options.max_disk_read_bytes;
        if (CanWait(line->front().arrival)) most_bytes /= kPrefetchShare;
        if (in_flight_.bytes >= most_bytes || !TryRead(line->front().arrival)) return false;
        line->pop_front();
        return true;
      });
  // If some reads got slots meanwhile while others still wait, the wait counts from its beginning.
  if (host_wait_since_ms_ == kNoWait) {
    arrived_in_wait_.clear();
    return progressed;
  }
  host_wait_since_ms_ = std::min(host_wait_since_ms_, waited_since_ms);
  return progressed;
}

bool Loader::TryRead(Arrival arrival) {
  const EntryIndex index = arrival.entry;
  const BlockEntry& entry = state_[index];
  // A block that loads cannot leave the directory, so that rows in the lines stay valid.
  KVT_CHECK(state_.blocks.directory.Live(index) && BlockOf(arrival).loading());
  if (Cancelled(arrival)) {
    Fail(arrival, MissReason::kCancelled);
  } else if (entry.in_host()) {
    QueueCopy(arrival);
  } else if (ComesToHost(&arrival)) {
    waiting_[index].push_back(arrival);
  } else if (!entry.on_disk() && entry.offered()) {
    // A line of its own, so that no read from disk stands behind a store that does not answer.
    fetch_queue_.push_back({arrival, Ahead(&fetches_ahead_, arrival)});
  } else if (!entry.on_disk()) {
    // If a pool has it still, host had no room for its copy.
    Fail(arrival, state_.blocks.ReadyPool(entry) ? MissReason::kHostFull : MissReason::kUnknown);
  } else {
    const HostSlots::Outcome outcome = host_.Allocate(index);
    if (outcome == HostSlots::Outcome::kWait) {
      host_wait_since_ms_ = state_.clock.NowMs();
      return false;
    }
    if (outcome == HostSlots::Outcome::kAllocated) {
      StartRead(arrival);
    } else {
      Fail(arrival, MissReason::kHostFull);
    }
  }
  return true;
}

Loader::HostRead Loader::ReadToHost(EntryIndex index) {
  if (in_flight_.bytes >= state_.options.max_disk_read_bytes / kPrefetchShare) {
    return HostRead::kLater;
  }
  const HostSlots::Outcome outcome = host_.Allocate(index);
  if (outcome == HostSlots::Outcome::kAllocated) {
    StartRead({.entry = index});
    return HostRead::kBegun;
  }
  return outcome == HostSlots::Outcome::kWait ? HostRead::kLater : HostRead::kRefused;
}

void Loader::StartRead(const Arrival& arrival) {
  const BlockEntry& entry = state_[arrival.entry];
  state_.Apply(arrival.entry, BlockEvent::kBeginRead);
  const std::span<std::byte> slot = state_.tables.HostBytes(entry);
  const auto read = reads_.insert(reads_.end(), {.arrival = arrival,
                                                 .expected = state_.tables.ExpectationOf(entry),
                                                 .slot = slot,
                                                 .in_flight = {&in_flight_, slot.size(), 1}});
  state_.stats.Lane(CopyLane::kDiskToHost).Begin(state_.clock.NowMs());
  state_.load_rates.disk().Begin(PayloadOf(slot), state_.clock.PreciseUs());
  IssueRead(read);
}

bool Loader::PumpFetches() {
  bool progressed = false;
  const uint64_t most_bytes = state_.options.max_disk_read_bytes;
  while (!fetch_queue_.empty() && kFetchShare * fetching_.bytes < most_bytes &&
         TryFetch(fetch_queue_.front().arrival)) {
    fetch_queue_.pop_front();
    progressed = true;
  }
  return progressed;
}

bool Loader::TryFetch(const Arrival& arrival) {
  const EntryIndex index = arrival.entry;
  const BlockEntry& entry = state_[index];
  // It may have come to host or to the disk by another way meanwhile.
  if (entry.has_host_slot() || entry.on_disk() || !entry.offered()) {
    QueueRead(arrival);
    return true;
  }
  if (Cancelled(arrival)) {
    Fail(arrival, MissReason::kCancelled);
    return true;
  }
  const HostSlots::Outcome outcome = host_.Allocate(index);
  if (outcome == HostSlots::Outcome::kWait) return false;
  if (outcome == HostSlots::Outcome::kAllocated) {
    StartFetch(arrival);
  } else {
    Fail(arrival, MissReason::kHostFull);
  }
  return true;
}

// From the cold store. The bytes come into memory of their own and are checked there and copied: a
// store that answers late finds nothing to write to.
void Loader::StartFetch(const Arrival& arrival) {
  const BlockEntry& entry = state_[arrival.entry];
  state_.Apply(arrival.entry, BlockEvent::kBeginFetch);
  const std::span<std::byte> slot = state_.tables.HostBytes(entry);
  const auto read = reads_.insert(reads_.end(), {.arrival = arrival,
                                                 .expected = state_.tables.ExpectationOf(entry),
                                                 .slot = slot,
                                                 .in_flight = {&fetching_, slot.size(), 1}});
  state_.load_rates.cold().Begin(PayloadOf(slot), state_.clock.PreciseUs());
  fetch_.Begin(read->expected, slot,
               [this, read](const ColdVerdict& verdict) { OnFetched(read, verdict); });
}

void Loader::OnFetched(Reads::iterator read, const ColdVerdict& verdict) {
  const uint64_t bytes = read->slot.size();
  const EntryIndex index = read->arrival.entry;
  const MissReason miss = fetch_.Accept(index, verdict, bytes);
  state_.load_rates.cold().End(PayloadOf(read->slot), miss == MissReason::kNone,
                               state_.clock.PreciseUs());
  const Arrival arrival = EndRead(read);
  if (miss == MissReason::kNone) return OnInHost(arrival);
  host_.RollBack(index);
  FailAll(arrival, miss);
}

// The check runs on another thread. It touches only this Read, which stays in the list until
// OnRead, and the host slot, which is not in host's order yet and so cannot be evicted.
void Loader::IssueRead(Reads::iterator read) {
  state_.trace.Begin(TraceKind::kDiskRead, read->arrival.entry);
  const auto check = [read, tracer = state_.env.tracer] {
    if (tracer != nullptr) read->check_begun_us = tracer->NowUs();
    read->verdict = CheckDiskSlot(read->expected, read->slot);
  };
  disk_.ReadAndCheck(read->expected.location, read->slot, check,
                     [this, read](const Status& status) { OnRead(read, status); });
}

void Loader::OnRead(Reads::iterator read, const Status& status) {
  const EntryIndex index = read->arrival.entry;
  if (!status) {
    state_.trace.End(TraceKind::kDiskRead, index, /*failed=*/true);
    ++state_.stats.disk_read_errors;
    ReadFailed(read, MissReason::kReadError, DropReason::kReadError);
    return;
  }
  const bool good = read->verdict == SlotVerdict::kGood;
  state_.trace.EndOfRead(index, read->check_begun_us, /*check_failed=*/!good);
  if (good) return OnVerified(read);
  if (read->verdict == SlotVerdict::kErased) {
    return ReadFailed(read, MissReason::kErased, DropReason::kErased);
  }
  const bool corrupt = read->verdict == SlotVerdict::kCorrupt;
  ReadFailed(read, corrupt ? MissReason::kChecksumMismatch : MissReason::kIdentityMismatch,
             DropReason::kCorrupt);
}

// The read ends before the block is ready in host, because a block is either being read or in host,
// never both. Pools that waited for the same read are woken last, when host has the bytes.
void Loader::OnVerified(Reads::iterator read) {
  ++state_.stats.disk_read_blocks;
  state_.stats.disk_read_bytes += read->slot.size();
  if (read->attempt > 1) ++state_.stats.disk_read_repaired;
  state_.stats.Lane(CopyLane::kDiskToHost).End(state_.clock.NowMs());
  state_.load_rates.disk().End(PayloadOf(read->slot), /*arrived=*/true, state_.clock.PreciseUs());
  const Arrival arrival = EndRead(read);
  disk_.MarkVerified(arrival.entry);
  state_[arrival.entry].was_read_from_disk = 1;
  OnInHost(arrival);
}

void Loader::OnInHost(const Arrival& arrival) {
  state_.CountUsesAnew(arrival.entry);
  host_.Ready(arrival.entry);
  if (arrival.pool != nullptr) {
    QueueCopy(arrival);
  } else {
    EndHostRead(arrival.entry, /*in_host=*/true);
  }
  Wake(arrival.entry);
}

void Loader::EndHostRead(EntryIndex index, bool in_host) {
  ended_host_reads_.push_back({{state_[index].namespace_id, state_[index].hash}, in_host});
}

// Read once more, for a fault may lie on the way (cable, controller) and not in the medium. A
// second failure gives the slot up for good, and the block is a miss for all pools that wait for
// it.
void Loader::ReadFailed(Reads::iterator read, MissReason miss, DropReason drop) {
  const bool erased = drop == DropReason::kErased;
  if (!erased && read->attempt < kReadAttempts) {
    ++read->attempt;
    ++state_.stats.disk_read_retries;
    IssueRead(read);
    return;
  }
  const DiskLocation location = read->expected.location;
  state_.stats.Lane(CopyLane::kDiskToHost).End(state_.clock.NowMs());
  state_.load_rates.disk().End(PayloadOf(read->slot), /*arrived=*/false, state_.clock.PreciseUs());
  const Arrival arrival = EndRead(read);
  const EntryIndex index = arrival.entry;
  if (arrival.pool == nullptr) EndHostRead(index, /*in_host=*/false);
  host_.RollBack(index);
  // Nothing is wrong with the place of one that was erased.
  const auto slot = erased ? IndexCommitter::Slot::kFree : IndexCommitter::Slot::kKeep;
  // A verification that failed meanwhile may have dropped it already. One that has just succeeded
  // has its record on the way to the index, and the block cannot leave before that has arrived: the
  // next read finds out again that it is of no use.
  const BlockEntry& entry = state_[index];
  if (entry.disk == location && !entry.committing()) {
    disk_.Drop(index, drop, slot);
  } else {
    state_.ForgetIfGone(index);
  }
  FailAll(arrival, miss);
}

// Other pools' loads waited for the same bytes.
void Loader::FailAll(const Arrival& arrival, MissReason miss) {
  auto others = waiting_.extract(arrival.entry);
  if (arrival.pool != nullptr) Fail(arrival, miss);
  if (others.empty()) return;
  for (const Arrival& other : others.mapped()) Fail(other, miss);
}

Loader::Arrival Loader::EndRead(Reads::iterator read) {
  const Arrival arrival = read->arrival;
  reads_.erase(read);
  state_.Apply(arrival.entry, BlockEvent::kEndRead);
  // The pump runs at the end of the event, so that all blocks which it brought are copied together.
  state_.SchedulePump();
  return arrival;
}

// The pin keeps the host slot while the block waits in the line, where host might need the space.
void Loader::QueueCopy(const Arrival& arrival) {
  Loadable block{arrival, HostPin(&state_, arrival.entry),
                 Ahead(&copies_ahead_[LoadRates::SlotOf(arrival.pool->device)], arrival)};
  const TenantLine tenant = state_.blocks.LineOf(*arrival.pool);
  if (CanWait(arrival)) {
    copy_queue_.PushLater(tenant, std::move(block));
  } else {
    copy_queue_.Push(tenant, std::move(block));
  }
}

// Tenants take turns. So do a tenant's loads in layers and loads of whole blocks, so that neither
// holds up the other.
bool Loader::PumpCopies() {
  bool progressed = false;
  for (int batches = 0; batches < kCopyBatchesPerEvent; ++batches) {
    const bool layers = layers_.StartOne([this](TenantLine tenant) { return MayCopy(tenant, 1); });
    const bool blocks = copy_queue_.TakeTurn([this](TenantLine tenant, auto* line) {
      const bool demand = !line->now()->empty();
      return MayCopy(tenant, demand ? 1 : kPrefetchShare) &&
             StartBatch(line, demand ? CopyPriority::kDemand : CopyPriority::kPrefetch,
                        OnInvalid::kFail);
    });
    if (!layers && !blocks) return progressed;
    progressed = true;
  }
  state_.SchedulePart();
  return false;
}

void Loader::StartVerifiedCopies() {
  (void)copy_queue_.TakeTurns([this](TenantLine tenant, PriorityQueue<Loadable>* line) {
    return MayCopy(tenant, 1) && StartBatch(line, CopyPriority::kDemand, OnInvalid::kLeave);
  });
}

void Loader::StartCopy(const std::shared_ptr<Batch>& batch) {
  CopyBatch& copies = batch->copies;
  // In which order prefetches land is not known beforehand: others may overtake them.
  if (copies.priority() == CopyPriority::kDemand) {
    copies.Count(loads_.BlocksQueued(*copies.pool(), batch->entries));
  }
  copies_.Start(std::move(copies),
                [this, batch](const Status& status) { OnCopied(batch.get(), status); });
}

bool Loader::StartBatch(PriorityQueue<Loadable>* of_tenant, CopyPriority priority,
                        OnInvalid on_invalid) {
  const bool demand = priority == CopyPriority::kDemand;
  std::deque<Loadable>& line = demand ? *of_tenant->now() : *of_tenant->later();
  if (line.empty()) return false;
  const uint64_t most_bytes = std::min(kCopyBatchBytes, state_.options.max_load_bytes);
  const CacheTrace::Together together(&state_.trace);
  const auto batch =
      std::make_shared<Batch>(CopyBatch(&state_, CopyDirection::kHostToPool, priority, most_bytes));
  while (!line.empty()) {
    const Arrival arrival = line.front().arrival;
    const BlockEntry& entry = state_[arrival.entry];
    if (!batch->copies.Admits(*arrival.pool)) break;
    if (line.size() > kHeadersAhead) {
      FetchHostHeader(state_, state_[line[kHeadersAhead].arrival.entry]);
    }
    // Compared right before the copy: whatever went wrong in host, a slot of another block or
    // tenant is never copied into a pool under this hash.
    const bool valid = HostSlotIsOf(state_, entry);
    const bool fails = Cancelled(arrival) || !valid;
    if (fails && on_invalid == OnInvalid::kLeave) break;
    HostPin pin = std::move(line.front().pin);
    line.pop_front();
    if (fails) {
      pin.Release();
      Fail(arrival, valid ? MissReason::kCancelled : MissReason::kIdentityMismatch);
      continue;
    }
    (void)batch->copies.AddBlock(arrival.pool, arrival.entry);
    batch->entries.push_back(arrival.entry);
    batch->pins.push_back(std::move(pin));
    state_.trace.Begin(TraceKind::kCopyUp, arrival.entry);
  }
  if (batch->entries.empty()) return false;
  StartCopy(batch);
  return true;
}

void Loader::OnCopied(Batch* batch, const Status& status) {
  const CacheTrace::Together together(&state_.trace);
  CachePool* const pool = batch->copies.pool();
  // The copies have ended: host may give the slots away again.
  batch->pins.clear();
  for (const EntryIndex entry : batch->entries) {
    state_.trace.End(TraceKind::kCopyUp, entry, !status);
  }
  if (status) {
    Arrived(pool, batch->entries);
    return;
  }
  for (const EntryIndex entry : batch->entries) Fail({pool, entry}, MissReason::kCopyFailed);
}

void Loader::Arrived(CachePool* pool, std::span<const EntryIndex> entries) {
  const uint32_t now_ds = state_.clock.NowDs();
  for (const EntryIndex entry : entries) {
    StopLoading({pool, entry});
    state_.trace.BlockLoadEnd(entry, MissReason::kNone);
    if (host_wait_since_ms_ != kNoWait && arrived_in_wait_.size() < kMostInWait) {
      arrived_in_wait_.push_back({state_[entry].namespace_id, state_[entry].hash});
    }
    if (pool->region != nullptr) continue;
    pool->blocks.Taken(state_.blocks.BlockIn(*pool, state_[entry])).since_ds = now_ds;
    state_.tables.EnterPool(pool, entry);
  }
  state_.stats.onload_blocks += entries.size();
  state_.stats.onload_bytes += entries.size() * pool->block_bytes;
  if (pool->region != nullptr) {
    pool->region->OnLoaded(pool, entries);
  } else {
    loads_.BlocksReady(pool, entries);
  }
}

// Reads wait for slots while host is full of blocks that have to be written first, and would go at
// the speed of those writes, on the same drive. So the slots of reads go round among them: blocks
// that arrived are in the pool and on disk, and lose nothing. This includes blocks from before the
// wait was long: a fast drive fills all slots in that time.
void Loader::PassSlotsOn() {
  if (host_wait_since_ms_ > state_.clock.NowMs() - state_.options.read_slot_wait_ms) return;
  for (const BlockKey& key : std::exchange(arrived_in_wait_, {})) {
    const EntryIndex index = state_.blocks.Find(key);
    if (index == kNoEntry) continue;
    const BlockEntry& entry = state_[index];
    if (entry.on_disk() && entry.EvictableFromHost(state_.has_disk())) {
      host_.Drop(index, DropReason::kCleanCopyBelow);
    }
  }
}

void Loader::StartLoading(const Arrival& arrival) {
  state_.BeginLoad(arrival.pool, arrival.entry);
  ++loading_;
}

void Loader::StopLoading(const Arrival& arrival) {
  state_.EndLoad(arrival.pool, arrival.entry);
  --loading_;
}

// The loads are told while the entry still exists, since they find their blocks by its row; only
// then may the row be forgotten and given to another block.
void Loader::Fail(const Arrival& arrival, MissReason reason) {
  const EntryIndex index = arrival.entry;
  StopLoading(arrival);
  state_.trace.BlockLoadEnd(index, reason);
  state_.history.NoteMiss({state_[index].namespace_id, state_[index].hash},
                          {state_.clock.ToWallS(state_.clock.NowS()), reason});
  if (arrival.pool->region != nullptr) {
    arrival.pool->region->OnLoadFailed(arrival.pool, index, reason);
  } else {
    state_.LosePoolBlock(arrival.pool, index);
    loads_.BlockFailed(arrival.pool, index, reason);
  }
  state_.ForgetIfGone(index);
}

void Loader::Tick() {
  const auto late = [now_ms = state_.env.clock->MonotonicMs()](const Arrival& arrival) {
    return now_ms - arrival.since_ms > kHostSlotWaitMs;
  };
  const auto fail_late = [&](std::deque<QueuedRead>* line) {
    size_t left = kLatePerTick;
    for (; left > 0 && !line->empty() && late(line->front().arrival); --left) {
      const Arrival arrival = line->front().arrival;
      line->pop_front();
      Fail(arrival, MissReason::kHostFull);
    }
  };
  read_queues_.ForEachLine(fail_late);
  fail_late(&fetch_queue_);
  std::vector<EntryIndex> stuck;
  for (size_t left = std::min(waiting_.bucket_count(), kLatePerTick); left > 0; --left) {
    next_bucket_ = next_bucket_ + 1 < waiting_.bucket_count() ? next_bucket_ + 1 : 0;
    for (auto it = waiting_.begin(next_bucket_); it != waiting_.end(next_bucket_); ++it) {
      const auto& [index, arrivals] = *it;
      const bool moves = state_[index].reading() || state_[index].offloading();
      if (late(arrivals.front()) && !moves) stuck.push_back(index);
    }
  }
  for (const EntryIndex index : stuck) {
    const auto node = waiting_.extract(index);
    for (const Arrival& arrival : node.mapped()) Fail(arrival, MissReason::kHostFull);
  }
}

}  // namespace kvtier
