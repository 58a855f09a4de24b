// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/loader.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/result.h"

namespace kvtier {
namespace {

// The cold store gets one part of so many of what may be read from disk at once.
constexpr uint64_t kFetchShare = 2;
// So many blocks that wait for other pools' copies are looked at with one tick.
constexpr size_t kLooksPerTick = 1024;
// More blocks than may be read at once arrive within `read_slot_wait_ms` only if that is set high,
// for host to keep what arrives.
constexpr size_t kMostInWait = 4096;

}  // namespace

Loader::Loader(CacheState* state, HostSlots* host, OffloadQueue* to_host, DiskSlots* disk,
               LoadTable* loads, ColdDeletions* deletions)
    : state_(*state),
      host_(*host),
      to_host_(*to_host),
      loads_(*loads),
      reader_(state, host, disk, deletions, this),
      copies_(state, CopyLane::kHostToPool),
      layers_(state, &copies_, this),
      neighbours_(state, this),
      reads_(state),
      fetches_(state) {
  state_.ends.AddListener(this);
}

void Loader::Start(CachePool* pool, EntryIndex index) {
  const Arrival arrival{pool, index};
  const std::optional<NeighbourSource> source = neighbours_.SourceOf(*pool, index);
  StartLoading(arrival);
  if (!source) return StartFromBelow(arrival);
  neighbours_.Add(pool, index, *source);
}

// Host is looked at first, then ways that others have begun, and the disk last: a block is read
// from disk once, however many pools wait for it.
void Loader::StartFromBelow(Arrival arrival) {
  const EntryIndex index = arrival.entry;
  if (state_[index].in_host()) {
    QueueCopy(arrival);
  } else if (ComesToHost(&arrival)) {
    AwaitOther(arrival);
  } else {
    reads_.Push(arrival);
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

void Loader::Report(CacheGauges* gauges) const {
  gauges->loads_in_flight = loading_;
  gauges->disk_reads_in_flight = reader_.in_flight();
  gauges->disk_reads_queued = reads_queued();
  gauges->onload_copies_queued = copy_queue_.size() + layers_.queued();
  gauges->neighbour_copies_queued = neighbours_.queued();
  for (uint32_t i = 0; i < gauges->devices.size(); ++i) {
    gauges->devices[i].neighbours = neighbours_.ReadableBy(DeviceIndex(i));
  }
}

void Loader::TouchHost(EntryIndex index) {
  if (state_[index].in_host()) host_.Touch(index);
}

bool Loader::Pump() {
  const bool reads = PumpReads() | PumpFetches();
  const bool copies = PumpCopies() | neighbours_.Pump();
  return reads || copies;
}

bool Loader::ComesToHost(Arrival* arrival) {
  const BlockEntry& entry = state_[arrival->entry];
  if (entry.reading() || entry.offloading()) return true;
  if (arrival->asked_pool || !to_host_.WantNow(arrival->entry)) return false;
  arrival->asked_pool = true;
  return true;
}

void Loader::OnEnded(std::span<const BlockEnd> ends) {
  if (!ends.empty() && ends.front().move == BlockMove::kFromNeighbour) {
    return OnNeighbourEnded(ends);
  }
  for (const BlockEnd& end : ends) {
    const EntryIndex row = end.block.row;
    if (end.move == BlockMove::kInLayers && end.reason == MissReason::kNone) {
      Arrived(end.pool, std::span(&row, 1), CopyLane::kHostToPool);
    } else if (end.move == BlockMove::kInLayers) {
      Fail({end.pool, row}, end.reason);
    }
    if (end.move == BlockMove::kRead) OnReadEnded(end);
    if (end.move != BlockMove::kToHost) continue;
    const EntryIndex index = state_.blocks.directory.Resolve(end.block);
    if (index == kNoEntry) continue;
    offloaded_ms_[state_.blocks.LineOf(state_[index])] = state_.clock.NowMs();
    Wake(index);
  }
}

// Pools that wait for a block that could not be read all lack the same bytes.
void Loader::OnReadEnded(const BlockEnd& end) {
  if (end.reason == MissReason::kNone) return Wake(end.block.row);
  const auto node = waiting_.extract(end.block.row);
  if (node.empty()) return;
  for (const Arrival& arrival : node.mapped()) Fail(arrival, end.reason);
}

// Whatever kept the block from coming so does not concern the tiers below.
void Loader::OnNeighbourEnded(std::span<const BlockEnd> ends) {
  std::vector<EntryIndex> arrived;
  for (const BlockEnd& end : ends) {
    const Arrival arrival{end.pool, end.block.row};
    if (end.reason == MissReason::kNone) {
      arrived.push_back(arrival.entry);
    } else if (end.reason == MissReason::kCancelled) {
      Fail(arrival, end.reason);
    } else {
      StartFromBelow(arrival);
      state_.SchedulePump();
    }
  }
  if (!arrived.empty()) Arrived(ends.front().pool, arrived, CopyLane::kPoolToPool);
}

// Taken out first: an arrival stands in the table or in a line, never in both.
void Loader::Wake(EntryIndex index) {
  auto node = waiting_.extract(index);
  if (node.empty()) return;
  for (const Arrival& arrival : node.mapped()) {
    if (state_[index].in_host()) {
      QueueCopy(arrival);
    } else {
      reads_.Push(arrival);
    }
  }
}

void Loader::PromoteReferenced(const CachePool& pool) {
  const TenantLine tenant = state_.blocks.namespaces[pool.namespace_id.value].line;
  reads_.PromoteReferenced(tenant);
  fetches_.PromoteReferenced(tenant);
  neighbours_.PromoteReferenced(pool);
  copy_queue_.Promote(pool.copy_line,
                      [this](const Loadable& block) { return !block.arrival.CanWait(state_); });
}

// Before those that wait for another way to host, for it has waited for longer.
void Loader::AwaitHost(const Arrival& arrival) {
  std::vector<Arrival>& waiting = waiting_[arrival.entry];
  waiting.insert(waiting.begin(), arrival);
}

void Loader::AwaitOther(Arrival arrival) {
  arrival.since_ms = state_.clock.NowMs();
  waiting_[arrival.entry].push_back(arrival);
}

// Loads under way count as well, see RateMeter::PriceNow.
LoadPrices Loader::PricesNow(DeviceIndex device) const {
  const int64_t now_us = state_.clock.PreciseUs();
  const uint64_t copies =
      copies_ahead_[LoadRates::SlotOf(device)].bytes + layers_.queued_bytes(device);
  LoadPrices prices;
  prices[static_cast<size_t>(LoadWay::kDisk)] =
      state_.load_rates.disk().PriceNow(reads_.bytes_ahead(), now_us);
  prices[static_cast<size_t>(LoadWay::kCold)] =
      state_.load_rates.cold().PriceNow(fetches_.bytes_ahead(), now_us);
  prices[static_cast<size_t>(LoadWay::kBus)] =
      state_.load_rates.bus(device).PriceNow(copies, now_us);
  return prices;
}

bool Loader::PumpReads() {
  PassSlotsOn();
  const int64_t waited_since_ms = std::exchange(host_wait_since_ms_, kNoWait);
  const bool progressed = reads_.TakeTurns([this](const Arrival& arrival) {
    uint64_t most_bytes = state_.options.max_disk_read_bytes;
    if (arrival.CanWait(state_)) most_bytes /= kPrefetchShare;
    return reader_.disk_bytes() < most_bytes ? TryRead(arrival) : ReadLines::Step::kBusy;
  });
  // If some reads got slots meanwhile while others still wait, the wait counts from its beginning.
  if (host_wait_since_ms_ == kNoWait) {
    arrived_in_wait_.clear();
    return progressed;
  }
  host_wait_since_ms_ = std::min(host_wait_since_ms_, waited_since_ms);
  return progressed;
}

ReadLines::Step Loader::TryRead(Arrival arrival) {
  const EntryIndex index = arrival.entry;
  const BlockEntry& entry = state_[index];
  // A block that loads cannot leave the directory, so that rows in the lines stay valid.
  KVT_CHECK(state_.blocks.directory.Live(index) && arrival.BlockIn(state_).loading());
  if (arrival.Cancelled(state_)) {
    Fail(arrival, MissReason::kCancelled);
  } else if (entry.in_host()) {
    QueueCopy(arrival);
  } else if (ComesToHost(&arrival)) {
    AwaitOther(arrival);
  } else if (!entry.on_disk() && entry.offered()) {
    // A line of its own, so that no read from disk stands behind a store that does not answer.
    fetches_.Push(arrival);
  } else if (!entry.on_disk()) {
    // If a pool has it still, host had no room for its copy.
    Fail(arrival, state_.blocks.ReadyPool(entry) ? MissReason::kHostFull : MissReason::kUnknown);
  } else {
    const HostSlots::Outcome outcome = host_.Allocate(index);
    if (outcome == HostSlots::Outcome::kWait) {
      host_wait_since_ms_ = state_.clock.NowMs();
      return ReadLines::Step::kNoSlot;
    }
    if (outcome == HostSlots::Outcome::kAllocated) {
      AwaitHost(arrival);
      reader_.ReadFromDisk(index, Reader::For::kPool);
    } else {
      Fail(arrival, MissReason::kHostFull);
    }
  }
  return ReadLines::Step::kLeft;
}

Loader::HostRead Loader::ReadToHost(EntryIndex index) {
  if (reader_.disk_bytes() >= state_.options.max_disk_read_bytes / kPrefetchShare) {
    return HostRead::kLater;
  }
  const HostSlots::Outcome outcome = host_.Allocate(index);
  if (outcome == HostSlots::Outcome::kAllocated) {
    reader_.ReadFromDisk(index, Reader::For::kHost);
    return HostRead::kBegun;
  }
  return outcome == HostSlots::Outcome::kWait ? HostRead::kLater : HostRead::kRefused;
}

bool Loader::PumpFetches() {
  return fetches_.TakeTurns([this](const Arrival& arrival) {
    const uint64_t share = kFetchShare * (arrival.CanWait(state_) ? kPrefetchShare : 1);
    const bool busy = share * reader_.cold_bytes() >= state_.options.max_disk_read_bytes;
    return busy ? ReadLines::Step::kBusy : TryFetch(arrival);
  });
}

ReadLines::Step Loader::TryFetch(Arrival arrival) {
  const EntryIndex index = arrival.entry;
  const BlockEntry& entry = state_[index];
  if (arrival.Cancelled(state_)) {
    Fail(arrival, MissReason::kCancelled);
  } else if (entry.has_host_slot() || entry.on_disk() || !entry.offered()) {
    // It may have come to host or to the disk by another way meanwhile.
    reads_.Push(arrival);
  } else {
    const HostSlots::Outcome outcome = host_.Allocate(index);
    if (outcome == HostSlots::Outcome::kWait) return ReadLines::Step::kNoSlot;
    if (outcome == HostSlots::Outcome::kAllocated) {
      AwaitHost(arrival);
      reader_.FetchFromCold(index);
    } else {
      Fail(arrival, MissReason::kHostFull);
    }
  }
  return ReadLines::Step::kLeft;
}

// The pin keeps the host slot while the block waits in the line, where host might need the space.
void Loader::QueueCopy(const Arrival& arrival) {
  Loadable block{arrival, HostPin(&state_, arrival.entry),
                 arrival.Ahead(&copies_ahead_[LoadRates::SlotOf(arrival.pool->device)], state_)};
  if (arrival.CanWait(state_)) {
    copy_queue_.PushLater(arrival.pool->copy_line, std::move(block));
  } else {
    copy_queue_.Push(arrival.pool->copy_line, std::move(block));
  }
}

// Tenants take turns, and their devices, whose buses copy at once. So do loads in layers and loads
// of whole blocks, so that neither holds up the other.
bool Loader::PumpCopies() {
  bool progressed = false;
  const uint64_t most = copies_.pieces_started() + kCopyPiecesPerEvent;
  const uint64_t most_bytes = state_.options.max_load_bytes;
  for (int i = 0; i < kCopyBatchesPerEvent && copies_.pieces_started() < most; ++i) {
    const bool layers =
        layers_.StartOne([&](CopyLine line) { return copies_.MayStart(line, most_bytes); });
    const bool blocks = copy_queue_.TakeTurn([&](CopyLine line, PriorityQueue<Loadable>* waiting) {
      const bool demand = !waiting->now()->empty();
      return copies_.MayStart(line, most_bytes / (demand ? 1 : kPrefetchShare)) &&
             StartBatch(waiting, demand ? CopyPriority::kDemand : CopyPriority::kPrefetch,
                        OnInvalid::kFail);
    });
    if (!layers && !blocks) return progressed;
    progressed = true;
  }
  state_.SchedulePart();
  return false;
}

void Loader::StartVerifiedCopies() {
  (void)copy_queue_.TakeTurns([this](CopyLine line, PriorityQueue<Loadable>* waiting) {
    return copies_.MayStart(line, state_.options.max_load_bytes) &&
           StartBatch(waiting, CopyPriority::kDemand, OnInvalid::kLeave);
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

bool Loader::StartBatch(PriorityQueue<Loadable>* blocks, CopyPriority priority,
                        OnInvalid on_invalid) {
  const bool demand = priority == CopyPriority::kDemand;
  std::deque<Loadable>& line = demand ? *blocks->now() : *blocks->later();
  if (line.empty()) return false;
  const uint64_t waiting_bytes = line.size() * line.front().arrival.pool->block_bytes;
  const uint64_t most_bytes =
      std::min(CopyBatchBytesOf(waiting_bytes), state_.options.max_load_bytes);
  const CacheTrace::Together together(&state_.trace);
  const auto batch =
      std::make_shared<Batch>(CopyBatch(&state_, CopyDirection::kHostToPool, priority, most_bytes));
  int failed = 0;
  while (!line.empty() && failed < kMostFailedOfBatch) {
    const Arrival arrival = line.front().arrival;
    const BlockEntry& entry = state_[arrival.entry];
    if (!batch->copies.Admits(*arrival.pool)) break;
    if (line.size() > kHeadersAhead) {
      FetchHostHeader(state_, state_[line[kHeadersAhead].arrival.entry]);
    }
    // Compared right before the copy: whatever went wrong in host, a slot of another block or
    // tenant is never copied into a pool under this hash.
    const bool valid = HostSlotIsOf(state_, entry);
    const bool fails = arrival.Cancelled(state_) || !valid;
    if (fails && on_invalid == OnInvalid::kLeave) break;
    HostPin pin = std::move(line.front().pin);
    line.pop_front();
    if (fails) {
      ++failed;
      pin.Release();
      Fail(arrival, valid ? MissReason::kCancelled : MissReason::kIdentityMismatch);
      continue;
    }
    (void)batch->copies.AddBlock(arrival.pool, arrival.entry);
    batch->entries.push_back(arrival.entry);
    batch->pins.push_back(std::move(pin));
    state_.trace.Begin(TraceKind::kCopyUp, arrival.entry);
  }
  if (!batch->entries.empty()) StartCopy(batch);
  return failed > 0 || !batch->entries.empty();
}

void Loader::OnCopied(Batch* batch, const Status& status) {
  const CacheTrace::Together together(&state_.trace);
  CachePool* const pool = batch->copies.pool();
  // The copies have ended: host may give the slots away again.
  batch->pins.clear();
  for (const EntryIndex entry : batch->entries) {
    state_.trace.End(TraceKind::kCopyUp, entry, !status);
  }
  if (status) return Arrived(pool, batch->entries, CopyLane::kHostToPool);
  for (const EntryIndex entry : batch->entries) Fail({pool, entry}, MissReason::kCopyFailed);
}

void Loader::Arrived(CachePool* pool, std::span<const EntryIndex> entries, CopyLane lane) {
  if (lane == CopyLane::kHostToPool) {
    state_.stats.onload_blocks += entries.size();
    state_.stats.onload_bytes += entries.size() * pool->block_bytes;
  }
  const uint32_t now_ds = state_.clock.NowDs();
  for (const EntryIndex entry : entries) {
    StopLoading({pool, entry});
    state_.trace.BlockLoadEnd(entry, MissReason::kNone);
    if (host_wait_since_ms_ != kNoWait && arrived_in_wait_.size() < kMostInWait) {
      arrived_in_wait_.push_back({state_[entry].namespace_id, state_[entry].hash});
    }
    if (pool->is_region) continue;
    pool->blocks.Taken(state_.blocks.BlockIn(*pool, state_[entry])).since_ds = now_ds;
    state_.tables.EnterPool(pool, entry);
  }
  std::vector<BlockEnd> ends;
  ends.reserve(entries.size());
  for (const EntryIndex entry : entries) {
    ends.push_back({.block = state_.blocks.directory.RefOf(entry), .pool = pool});
  }
  state_.ends.Tell(ends);
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
  const BlockEnd end{
      .block = state_.blocks.directory.RefOf(index), .pool = arrival.pool, .reason = reason};
  // A region's block is still the entry's when the region hears of it.
  if (!arrival.pool->is_region) state_.LosePoolBlock(arrival.pool, index);
  state_.ends.Tell(std::span(&end, 1));
  state_.ForgetIfGone(index);
}

// Fetches have a deadline of their own.
void Loader::Tick() {
  neighbours_.Tick();
  std::vector<ReadLines::GivenUp> stuck = reads_.TakeStuck(/*may_hang=*/true);
  std::ranges::move(fetches_.TakeStuck(/*may_hang=*/false), std::back_inserter(stuck));
  for (const auto& [arrival, reason] : stuck) Fail(arrival, reason);
  FailStuckOffloads();
}

void Loader::FailStuckOffloads() {
  const auto long_ago = [now_ms = state_.clock.NowMs()](int64_t ms) {
    return now_ms - ms > ReadLines::kPatienceMs;
  };
  std::vector<EntryIndex> stuck;
  for (size_t left = std::min(waiting_.bucket_count(), kLooksPerTick); left > 0; --left) {
    next_bucket_ = next_bucket_ + 1 < waiting_.bucket_count() ? next_bucket_ + 1 : 0;
    for (auto it = waiting_.begin(next_bucket_); it != waiting_.end(next_bucket_); ++it) {
      const auto& [index, arrivals] = *it;
      const BlockEntry& entry = state_[index];
      const bool moves = entry.reading() || entry.offloading();
      if (moves || !long_ago(arrivals.front().since_ms)) continue;
      const auto last = offloaded_ms_.find(state_.blocks.LineOf(entry));
      if (last == offloaded_ms_.end() || long_ago(last->second)) stuck.push_back(index);
    }
  }
  for (const EntryIndex index : stuck) {
    const auto node = waiting_.extract(index);
    for (const Arrival& arrival : node.mapped()) Fail(arrival, MissReason::kHostFull);
  }
}

}  // namespace kvtier
