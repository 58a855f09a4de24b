// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/persister.h"

#include "base/result.h"
#include "tiers/storage/slot_header.h"

namespace kvtier {
namespace {

// Beside reads, writes take this part of what may otherwise be in flight: 4 MiB beside up to 64 MiB
// of reads by default. They go on, since space in host depends on them.
constexpr uint64_t kShareBesideReads = 8;

}  // namespace

void Persister::Want(EntryIndex index) {
  const BlockEntry& entry = state_[index];
  state_.unpersisted.Remove(index);
  if (!state_.NeedsPersist(entry) || entry.write_queued() || entry.writing()) return;
  state_.Apply(index, BlockEvent::kWantPersist);
  if (!state_.InDiskOrder(index)) state_.TouchDisk(index);
  if (entry.in_host()) SourceReady(index);
}

void Persister::SourceReady(EntryIndex index) {
  const BlockEntry& entry = state_[index];
  if (!entry.persist_wanted() || entry.write_queued() || entry.writing()) return;
  state_.Apply(index, BlockEvent::kQueueWrite);
  queues_.Push(state_.TenantOf(entry), index);
}

bool Persister::Pump() {
  uint64_t most_bytes = state_.options.max_disk_write_bytes;
  // A client waits for what is read, and none waits for what is written: the drive divides its time
  // by what is in flight.
  if (state_.stats.Lane(CopyLane::kDiskToHost).under_way() > 0) most_bytes /= kShareBesideReads;
  return queues_.TakeTurns([this, most_bytes](std::deque<EntryIndex>* line) {
    if (in_flight_.bytes >= most_bytes) return false;
    if (TryWrite(line->front()) == Step::kWait) return false;
    line->pop_front();
    return true;
  });
}

Persister::Step Persister::TryWrite(EntryIndex index) {
  const BlockEntry& entry = state_[index];
  // The row may be another block's by now, or the block may have been dropped from host.
  if (!state_.directory.Live(index) || !entry.write_queued() || !entry.in_host() ||
      !state_.NeedsPersist(entry)) {
    if (state_.directory.Live(index)) Unqueue(index);
    return Step::kSkipped;
  }
  const uint64_t slot_bytes = state_.NamespaceOf(entry).slot_bytes;
  if (state_.write_budget.left_bytes() < slot_bytes) {
    GiveUp(index, DropReason::kWriteBudget);
    return Step::kSkipped;
  }
  switch (disk_.Reserve(index)) {
    case DiskSlots::Outcome::kWait:
      return Step::kWait;
    case DiskSlots::Outcome::kFull:
      GiveUp(index, disk_.degraded() ? DropReason::kWriteError : DropReason::kDiskFull);
      return Step::kSkipped;
    case DiskSlots::Outcome::kOverCap:
      GiveUp(index, DropReason::kTenantCap);
      return Step::kSkipped;
    case DiskSlots::Outcome::kReserved:
      break;
  }
  KVT_CHECK(state_.write_budget.TrySpend(slot_bytes));
  StartWrite(index);
  return Step::kStarted;
}

void Persister::Unqueue(EntryIndex index) {
  if (!state_[index].write_queued()) return;
  state_.Apply(index, BlockEvent::kCancelWrite);
  if (!state_.NeedsPersist(state_[index])) Unwant(index);
}

void Persister::Unwant(EntryIndex index) {
  state_.Apply(index, BlockEvent::kUnwantPersist);
  if (!state_[index].has_disk_slot()) state_.LeaveDiskOrder(index);
}

void Persister::GiveUp(EntryIndex index, DropReason reason) {
  state_.Apply(index, BlockEvent::kFailPersist);
  if (!state_[index].has_disk_slot()) state_.LeaveDiskOrder(index);
  state_.CountDrop(index, Tier::kDisk, reason);
}

void Persister::StartWrite(EntryIndex index) {
  const BlockEntry& entry = state_[index];
  state_.Apply(index, BlockEvent::kBeginWrite);
  const std::span<std::byte> slot = state_.HostBytes(entry);
  PlaceSlotHeader({.address = entry.disk,
                   .generation = entry.disk_generation,
                   .created_s = state_.ToWallS(entry.created_s),
                   .last_use_s = state_.ToWallS(entry.last_use_s)},
                  slot.first<kSlotHeaderBytes>());
  writes_.try_emplace(index, Write{HostPin(&state_, index), {&in_flight_, slot.size(), 1}});
  state_.stats.Lane(CopyLane::kHostToDisk).Begin(state_.NowMs());
  state_.trace.Begin(TraceKind::kDiskWrite, index);
  disk_.Write(index, slot, [this, index](const Status& status) { OnWritten(index, status); });
}

void Persister::OnWritten(EntryIndex index, const Status& status) {
  state_.SchedulePump();
  state_.trace.End(TraceKind::kDiskWrite, index, !status);
  writes_.erase(index);
  state_.stats.Lane(CopyLane::kHostToDisk).End(state_.NowMs());
  if (!status) GiveUp(index, DropReason::kWriteError);
}

}  // namespace kvtier
