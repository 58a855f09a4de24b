// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/persister.h"

#include "base/check.h"
#include "tiers/storage/slot_header.h"

namespace kvtier {

void Persister::Want(EntryIndex index) {
  BlockEntry& entry = state_[index];
  state_.unpersisted.Remove(index);
  if (!state_.NeedsPersist(entry) || entry.motion.write_queued || entry.motion.writing) return;
  state_.SetPersistWanted(index, true);
  if (!state_.InDiskOrder(index)) state_.TouchDisk(index);
  if (entry.in_host()) HostReady(index);
}

void Persister::HostReady(EntryIndex index) {
  BlockEntry& entry = state_[index];
  if (!entry.persist_wanted || entry.motion.write_queued || entry.motion.writing) return;
  entry.motion.write_queued = true;
  queues_.Push(state_.TenantOf(entry), index);
}

bool Persister::Pump() {
  return queues_.TakeTurns([this](std::deque<EntryIndex>* line) {
    if (bytes_in_flight_ >= state_.options.max_disk_write_bytes) return false;
    if (TryWrite(line->front()) == Step::kWait) return false;
    line->pop_front();
    return true;
  });
}

Persister::Step Persister::TryWrite(EntryIndex index) {
  BlockEntry& entry = state_[index];
  // The row may be another block's by now, or the block may have been dropped from host.
  if (!state_.directory.Live(index) || !entry.motion.write_queued || !entry.in_host() ||
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
  BlockEntry& entry = state_[index];
  const bool queued = entry.motion.write_queued;
  entry.motion.write_queued = false;
  if (queued && !state_.NeedsPersist(entry)) Unwant(index);
}

void Persister::Unwant(EntryIndex index) {
  BlockEntry& entry = state_[index];
  state_.SetPersistWanted(index, false);
  if (!entry.disk.valid()) state_.LeaveDiskOrder(index);
}

void Persister::GiveUp(EntryIndex index, DropReason reason) {
  BlockEntry& entry = state_[index];
  entry.motion.write_queued = false;
  Unwant(index);
  entry.persist_failed = true;
  state_.CountDrop(index, Tier::kDisk, reason);
}

void Persister::StartWrite(EntryIndex index) {
  BlockEntry& entry = state_[index];
  entry.motion.write_queued = false;
  state_.SetPersistWanted(index, false);
  const std::span<std::byte> slot = state_.HostBytes(entry);
  PlaceSlotHeader({.address = entry.disk,
                   .generation = entry.disk_generation,
                   .created_s = entry.created_s,
                   .last_use_s = entry.last_use_s},
                  slot.first<kSlotHeaderBytes>());
  ++entry.host_pins;
  bytes_in_flight_ += slot.size();
  ++writes_in_flight_;
  state_.stats.Lane(CopyLane::kHostToDisk).Begin(state_.NowMs());
  state_.trace.Begin(TraceKind::kDiskWrite, index);
  disk_.Write(index, slot, [this, index](const Status& status) { OnWritten(index, status); });
}

void Persister::OnWritten(EntryIndex index, const Status& status) {
  state_.SchedulePump();
  state_.trace.End(TraceKind::kDiskWrite, index, !status);
  BlockEntry& entry = state_[index];
  --entry.host_pins;
  bytes_in_flight_ -= state_.NamespaceOf(entry).slot_bytes;
  --writes_in_flight_;
  state_.stats.Lane(CopyLane::kHostToDisk).End(state_.NowMs());
  if (!status) GiveUp(index, DropReason::kWriteError);
}

}  // namespace kvtier
