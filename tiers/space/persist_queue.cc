// SPDX-License-Identifier: Apache-2.0
#include "tiers/space/persist_queue.h"

namespace kvtier {

void PersistQueue::Want(EntryIndex index) {
  if (WantIfAdmitted(index)) return;
  Fail(index, DropReason::kNotAdmitted);
  ++state_.stats.disk_declined_blocks;
  state_.stats.disk_declined_bytes += state_.blocks.NamespaceOf(state_[index]).slot_bytes;
}

bool PersistQueue::WantIfAdmitted(EntryIndex index) {
  state_.orders.unpersisted.Remove(index);
  const bool undecided = admission_.Undecided(index);
  if (undecided) {
    state_.write_budget.NoteDecision(state_.options.disk_admission);
    if (!admission_.Admits(index)) return false;
  }
  Ask(index);
  if (!undecided) return true;
  for (const EntryIndex parent : admission_.DeclinedParents(index)) {
    state_.Apply(parent, BlockEvent::kAllowPersist);
    WantWithBytes(parent);
  }
  return true;
}

void PersistQueue::WantWithBytes(EntryIndex index) {
  Ask(index);
  if (!state_[index].in_host()) to_host_.Want(index);
}

void PersistQueue::Ask(EntryIndex index) {
  const BlockEntry& entry = state_[index];
  if (!entry.NeedsPersist(state_.has_disk()) || entry.write_queued() || entry.writing()) return;
  state_.Apply(index, BlockEvent::kWantPersist);
  if (entry.in_host()) SourceReady(index);
}

void PersistQueue::SourceReady(EntryIndex index) {
  const BlockEntry& entry = state_[index];
  if (!entry.persist_wanted() || entry.write_queued() || entry.writing()) return;
  state_.Apply(index, BlockEvent::kQueueWrite);
  lines_.Push(state_.blocks.LineOf(entry), state_.blocks.directory.RefOf(index));
}

void PersistQueue::Fail(EntryIndex index, DropReason reason) {
  state_.Apply(index, BlockEvent::kFailPersist);
  state_.drops.Count(index, Tier::kDisk, reason);
}

void PersistQueue::Unqueue(EntryIndex index) {
  if (!state_[index].write_queued()) return;
  state_.Apply(index, BlockEvent::kCancelWrite);
  if (!state_[index].NeedsPersist(state_.has_disk()))
    state_.Apply(index, BlockEvent::kUnwantPersist);
}

}  // namespace kvtier
