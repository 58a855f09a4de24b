#include "tiers/host_slots.h"

#include <cmath>
#include <vector>

#include "base/check.h"

namespace kvtier {

HostSlots::HostSlots(CacheState* state, Persister* persister)
    : state_(*state),
      persister_(*persister),
      slab_(state->options.chunk_bytes, 0),
      victims_(MakeLruPolicy()) {}

void HostSlots::Grow() {
  const uint64_t chunks = state_.env.arena->ready_bytes() / slab_.chunk_bytes();
  if (chunks > slab_.chunks()) slab_.Grow(chunks - slab_.chunks());
}

HostSlots::Outcome HostSlots::Allocate(EntryIndex entry) {
  const uint64_t slot_bytes = state_.SpaceOf(state_[entry]).slot_bytes;
  last_slot_bytes_ = slot_bytes;
  if (TakeFreeSlot(entry, slot_bytes)) return Outcome::kAllocated;
  const Outcome room = EvictFor(slot_bytes);
  if (room != Outcome::kAllocated) return room;
  return TakeFreeSlot(entry, slot_bytes) ? Outcome::kAllocated : Outcome::kWait;
}

bool HostSlots::TakeFreeSlot(EntryIndex index, uint64_t slot_bytes) {
  const std::optional<uint64_t> address = slab_.Allocate(slot_bytes, index);
  if (!address) return false;
  state_[index].host_slot = HostSlot(static_cast<uint32_t>(*address / kHostSlotUnit));
  return true;
}

void HostSlots::Withdraw(EntryIndex index) {
  const BlockEntry& entry = state_[index];
  const BlockMotion& motion = entry.motion;
  const bool expected = motion.loading || motion.offload_queued || motion.offloading;
  if (entry.host_slot == kNoHostSlot && !expected) victims_.Remove(index);
}

void HostSlots::Ready(EntryIndex index) {
  BlockEntry& entry = state_[index];
  KVT_CHECK(victims_.Contains(index));
  entry.host_ready = true;
  entry.host_since_ds = state_.NowDs();
  ++ready_blocks_;
  persister_.HostReady(index);
}

void HostSlots::Abandon(EntryIndex index) {
  BlockEntry& entry = state_[index];
  KVT_CHECK(!entry.host_ready);
  slab_.Free(entry.host_slot.value * kHostSlotUnit);
  entry.host_slot = kNoHostSlot;
  Withdraw(index);
}

void HostSlots::Drop(EntryIndex index, DropReason reason) {
  BlockEntry& entry = state_[index];
  KVT_CHECK(entry.host_ready && entry.host_pins == 0);
  state_.CountDrop(index, Tier::kHost, reason);
  state_.CountResidence(Tier::kHost, entry.host_since_ds);
  entry.host_ready = false;
  --ready_blocks_;
  entry.motion.write_queued = false;
  Abandon(index);
  state_.ForgetIfGone(index);
}

bool HostSlots::MoreToCome() const {
  // Slots that are in use but not cached are being filled.
  return slab_.used_slots() > ready_blocks_ ||
         state_.env.arena->ready_bytes() < state_.env.arena->capacity_bytes();
}

EntryIndex HostSlots::Coldest(bool* passing) {
  for (size_t tries = victims_.size(); tries > 0; --tries) {
    victims_.Prepare(1, [this](EntryIndex entry) { PrepareOne(entry); });
    const EntryIndex front = victims_.Front();
    if (!OnItsWay(state_[front])) return front;
    *passing |= state_[front].host_slot != kNoHostSlot;
    // More is on its way than host can hold: what has arrived leaves first.
    Freshen(front);
  }
  return kNoEntry;
}

HostSlots::Outcome HostSlots::EvictFor(uint64_t slot_bytes) {
  bool passing = false;
  for (size_t tries = ready_blocks_; tries > 0; --tries) {
    const EntryIndex coldest = Coldest(&passing);
    if (coldest == kNoEntry) break;
    const BlockEntry& entry = state_[coldest];
    if (Wanted(entry)) {
      victims_.Touch(coldest, entry.facts());
      continue;
    }
    if (!Evictable(entry)) {
      persister_.Want(coldest);
      return Outcome::kWait;
    }
    if (state_.SpaceOf(entry).slot_bytes != slot_bytes) {
      return EvictChunk(coldest) ? Outcome::kAllocated : Outcome::kWait;
    }
    Drop(coldest, ReasonFor(entry));
    return Outcome::kAllocated;
  }
  return passing || MoreToCome() ? Outcome::kWait : Outcome::kFull;
}

bool HostSlots::EvictChunk(EntryIndex coldest) {
  bool ready = true;
  std::vector<EntryIndex> owners;
  slab_.ForEachInChunk(state_[coldest].host_slot.value * kHostSlotUnit,
                       [&](uint64_t, EntryIndex owner) {
                         const BlockEntry& entry = state_[owner];
                         owners.push_back(owner);
                         if (Evictable(entry) && !Wanted(entry)) return;
                         ready = false;
                       });
  for (const EntryIndex owner : owners) {
    if (ready) {
      Drop(owner, DropReason::kChunkReclaimed);
    } else if (state_[owner].in_host()) {
      persister_.Want(owner);
    }
  }
  return ready;
}

bool HostSlots::Wanted(const BlockEntry& entry) const {
  return entry.host_ready && entry.pinned && !entry.on_disk() &&
         state_.ReadyPool(entry) == nullptr && !state_.NeedsPersist(entry);
}

bool HostSlots::OnItsWay(const BlockEntry& entry) {
  if (entry.host_slot == kNoHostSlot) return true;
  return entry.motion.loading && (!entry.host_ready || entry.host_pins > 0);
}

bool HostSlots::Evictable(const BlockEntry& entry) const {
  return entry.host_ready && entry.host_pins == 0 && !entry.motion.committing &&
         !state_.NeedsPersist(entry);
}

DropReason HostSlots::ReasonFor(const BlockEntry& entry) const {
  if (entry.on_disk()) return DropReason::kCleanCopyBelow;
  if (entry.in_pool()) return DropReason::kCopyAbove;
  if (entry.retention == RetentionClass::kMemory) return DropReason::kMemoryClass;
  return DropReason::kLru;
}

void HostSlots::Prepare() {
  if (last_slot_bytes_ == 0) return;
  const double share = state_.options.host_clean_fraction;
  const auto total = static_cast<double>(slab_.TotalSlots(last_slot_bytes_));
  const auto wanted = static_cast<uint64_t>(std::ceil(share * total));
  const uint64_t free = slab_.FreeSlots(last_slot_bytes_);
  if (wanted <= free) return;
  victims_.Prepare(wanted - free, [this](EntryIndex entry) { PrepareOne(entry); });
}

void HostSlots::PrepareOne(EntryIndex index) {
  BlockEntry& entry = state_[index];
  if (entry.on_disk()) {
    state_.disk_recency->Touch(index, entry.facts());
  } else {
    persister_.Want(index);
  }
}

}  // namespace kvtier
