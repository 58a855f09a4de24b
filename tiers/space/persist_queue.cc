// SPDX-License-Identifier: Apache-2.0
#include "tiers/space/persist_queue.h"

namespace kvtier {

void PersistQueue::Want(EntryIndex index) {
  state_.orders.unpersisted.Remove(index);
  const BlockEntry& entry = state_[index];
  if (!entry.NeedsPersist(state_.has_disk()) || entry.write_queued() || entry.writing()) return;
  state_.Apply(index, BlockEvent::kWantPersist);
  if (entry.in_host()) SourceReady(index);
}

void PersistQueue::WantWithBytes(EntryIndex index) {
  Want(index);
  if (!state_[index].in_host()) to_host_.Want(index);
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
