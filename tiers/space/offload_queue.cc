// SPDX-License-Identifier: Apache-2.0
#include "tiers/space/offload_queue.h"

namespace kvtier {

void OffloadQueue::Want(EntryIndex index) {
  const BlockEntry& entry = state_[index];
  if (entry.in_host()) {
    state_.orders.ReorderInHost(state_.blocks.TenantOf(entry), index, entry);
    return;
  }
  // A block that will not be used again is not worth the copy.
  if (state_.blocks.ReadyPool(entry) == nullptr || entry.offload_failed() || entry.LeavesFirst())
    return;
  Queue(index);
}

void OffloadQueue::WantAnew(EntryIndex index) {
  state_.Apply(index, BlockEvent::kAllowOffload);
  Want(index);
}

void OffloadQueue::Queue(EntryIndex index) {
  const BlockEntry& entry = state_[index];
  if (entry.in_host() || entry.offload_queued() || entry.offloading()) return;
  state_.Apply(index, BlockEvent::kQueueOffload);
  queued_.Push(state_.blocks.ReadyPool(entry)->copy_line, state_.blocks.directory.RefOf(index));
  NoteBusy();
}

// An offload that failed before is tried again, because a load waits for these bytes and would
// otherwise fail. The entry may stand in both queues: the copy that comes second finds that it is
// no longer queued and is skipped.
bool OffloadQueue::WantNow(EntryIndex index) {
  const BlockEntry& entry = state_[index];
  if (entry.in_host() || state_.blocks.ReadyPool(entry) == nullptr) return false;
  if (entry.offloading()) return true;
  state_.Apply(index, BlockEvent::kAllowOffload);
  Queue(index);
  urgent_.Push(state_.blocks.ReadyPool(entry)->copy_line, state_.blocks.directory.RefOf(index));
  NoteBusy();
  return true;
}

void OffloadQueue::SourceGone(EntryIndex index) {
  if (state_[index].offload_queued()) End(index);
}

// A region whose block it was, and loads of other pools that wait for the block on its way to host,
// hear of the end when this event ends.
void OffloadQueue::End(EntryIndex index, MissReason reason) {
  const BlockEntry& entry = state_[index];
  state_.Apply(index, entry.offloading() ? BlockEvent::kEndOffload : BlockEvent::kCancelOffload);
  const EntryRef block = state_.blocks.directory.RefOf(index);
  state_.blocks.ForEachPlace(entry, [&](CachePool& pool, BlockIndex place) {
    if (!pool.is_region || pool.blocks[place].loading()) return;
    state_.ends.TellLater({.move = BlockMove::kFromRegion,
                           .block = block,
                           .region = pool.id,
                           .place = pool.blocks.HandleOf(place),
                           .reason = reason});
    state_.SchedulePump();
  });
  if (!entry.loading()) return;
  state_.ends.TellLater({.move = BlockMove::kToHost, .block = block, .reason = reason});
  state_.SchedulePump();
}

}  // namespace kvtier
