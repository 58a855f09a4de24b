// SPDX-License-Identifier: Apache-2.0
#include "tiers/memory/slab_allocator.h"

#include <algorithm>
#include <utility>

#include "base/result.h"

namespace kvtier {

// One allocator serves host or disk, on the event loop only. Addresses are bytes from the start of
// the tier; a slab is cut into slots of one size when its first slot is taken and can be cut anew
// when its last slot is freed.
SlabAllocator::SlabAllocator(uint64_t slab_bytes, uint64_t slab_header_bytes, uint32_t drives)
    : slab_bytes_(slab_bytes), slab_header_bytes_(slab_header_bytes), drives_(drives) {
  KVT_CHECK(slab_bytes > slab_header_bytes && drives > 0);
  for (uint32_t drive = 0; drive < drives; ++drive) drives_[drive].first_unassigned_hint = drive;
}

void SlabAllocator::Resize(uint64_t slabs, uint32_t drive) {
  Drive& resized = drives_[drive];
  if (resized.closed) return;
  const auto number = [&](uint64_t nth) {
    return static_cast<uint32_t>(nth * drives_.size() + drive);
  };
  if (resized.slabs.size() < slabs) resized.slabs.resize(slabs);
  if (resized.staying == 0 && slabs > 0) usable_.push_back(drive);
  if (resized.staying > 0 && slabs == 0) std::erase(usable_, drive);
  while (resized.staying > slabs) Leave(number(--resized.staying));
  while (resized.staying < slabs) Stay(number(resized.staying++));
}

// It leaves all sums here, so that FreeSlots promises nothing there, and Free and Unassign add
// nothing afterwards.
void SlabAllocator::Leave(uint32_t slab_number) {
  Slab& slab = SlabAt(slab_number);
  --slabs_;
  if (slab.slots.slot_bytes == 0) {
    --drives_[DriveOf(slab_number)].unassigned;
    --unassigned_;
    return;
  }
  if (std::exchange(slab.closing, true)) {
    --closing_slabs_;
    return;
  }
  --group_slabs_[slab.slots.group];
  classes_[slab.slots].free_slots -= slab.owners.size() - slab.used;
}

void SlabAllocator::Stay(uint32_t slab_number) {
  Slab& slab = SlabAt(slab_number);
  Drive& drive = drives_[DriveOf(slab_number)];
  ++slabs_;
  if (slab.slots.slot_bytes == 0) {
    drive.first_unassigned_hint = std::min(drive.first_unassigned_hint, slab_number);
    ++drive.unassigned;
    ++unassigned_;
    return;
  }
  slab.closing = false;
  ++group_slabs_[slab.slots.group];
  ClassState& state = StateOf(slab.slots);
  state.free_slots += slab.owners.size() - slab.used;
  if (!slab.full()) state.partial[DriveOf(slab_number)].push_back(slab_number);
}

void SlabAllocator::CloseDrive(uint32_t drive) {
  Resize(0, drive);
  drives_[drive].closed = true;
}

std::optional<uint64_t> SlabAllocator::LastLeaving(uint32_t drive) {
  Drive& resized = drives_[drive];
  while (resized.slabs.size() > resized.staying) {
    if (resized.slabs.back().used > 0) {
      return ((resized.slabs.size() - 1) * drives_.size() + drive) * slab_bytes_;
    }
    resized.slabs.pop_back();
  }
  return std::nullopt;
}

// A class that has slots left opens a slab on each drive only while slabs are plentiful: a slab for
// each class and drive would leave none to other classes of a small tier.
std::optional<uint64_t> SlabAllocator::Allocate(const SlotClass& slots, EntryIndex owner) {
  KVT_CHECK(Fits(slots.slot_bytes));
  ClassState& state = StateOf(slots);
  const bool plenty = unassigned_ > usable_.size();
  for (const bool cut : {plenty, true}) {
    for (size_t i = 0; i < usable_.size(); ++i) {
      const size_t turn = (state.next_turn + i) % usable_.size();
      const uint32_t drive = usable_[turn];
      std::optional<uint32_t> slab = PartialSlab(drive, slots, &state);
      if (!slab && cut && drives_[drive].unassigned > 0) slab = CutSlab(drive, slots);
      if (!slab) continue;
      state.next_turn = turn + 1;
      return TakeFirstFree(*slab, owner);
    }
  }
  return std::nullopt;
}

SlabAllocator::ClassState& SlabAllocator::StateOf(const SlotClass& slots) {
  ClassState& state = classes_[slots];
  state.partial.resize(drives_.size());
  return state;
}

// `partial` is cleaned lazily: it may name slabs that have become full, are closing, have gone, or
// have been cut for another class since they were put there. Such entries are dropped here when
// they come up.
std::optional<uint32_t> SlabAllocator::PartialSlab(uint32_t drive, const SlotClass& slots,
                                                   ClassState* state) const {
  std::vector<uint32_t>& partial = state->partial[drive];
  while (!partial.empty()) {
    const bool there = partial.back() / drives_.size() < drives_[drive].staying;
    const Slab* const candidate = there ? &SlabAt(partial.back()) : nullptr;
    if (there && candidate->slots == slots && !candidate->full() && !candidate->closing) {
      return partial.back();
    }
    partial.pop_back();
  }
  return std::nullopt;
}

// No unassigned slab of the drive lies below the hint, and there is one at least: the search ends.
uint32_t SlabAllocator::CutSlab(uint32_t drive, const SlotClass& slots) {
  uint32_t& slab = drives_[drive].first_unassigned_hint;
  while (SlabAt(slab).slots.slot_bytes != 0) slab += static_cast<uint32_t>(drives_.size());
  Assign(slab, slots);
  return slab;
}

// The address comes from an index that may be damaged or that may describe other files. Whatever
// does not fit is refused, never checked with KVT_CHECK, so that a bad record costs one block and
// not the start of the daemon.
bool SlabAllocator::Claim(uint64_t address, const SlotClass& slots, EntryIndex owner) {
  const uint64_t slot_bytes = slots.slot_bytes;
  const uint64_t slab_number = address / slab_bytes_;
  if (!Fits(slot_bytes)) return false;
  const Drive& drive = drives_[DriveOf(slab_number)];
  if (slab_number / drives_.size() >= drive.staying) return false;
  const auto slab = static_cast<uint32_t>(slab_number);
  const uint64_t within = address % slab_bytes_;
  if (within < slab_header_bytes_ || (within - slab_header_bytes_) % slot_bytes != 0) return false;
  if (within + slot_bytes > slab_bytes_) return false;
  if (SlabAt(slab).slots.slot_bytes == 0) Assign(slab, slots);
  if (SlabAt(slab).slots != slots) return false;
  const auto slot = static_cast<uint32_t>((within - slab_header_bytes_) / slot_bytes);
  if (SlabAt(slab).owners[slot] != kFree) return false;
  Take(slab, slot, owner);
  return true;
}

void SlabAllocator::Free(uint64_t address) {
  const auto slab_number = static_cast<uint32_t>(address / slab_bytes_);
  Slab& slab = SlabAt(slab_number);
  const uint32_t slot = SlotOf(address);
  KVT_CHECK(slab.owners[slot] != kFree);
  // The slots of a closing slab are not given to its class again: the slab is to become empty.
  if (!slab.closing) {
    ClassState& state = classes_[slab.slots];
    if (slab.full()) state.partial[DriveOf(slab_number)].push_back(slab_number);
    ++state.free_slots;
  }
  slab.owners[slot] = kFree;
  slab.first_free_hint = std::min(slab.first_free_hint, slot);
  --slab.used;
  --used_slots_;
  used_bytes_ -= slab.slots.slot_bytes;
  drives_[DriveOf(slab_number)].used_bytes -= slab.slots.slot_bytes;
  if (slab.used == 0) Unassign(slab_number);
}

void SlabAllocator::SetOwner(uint64_t address, EntryIndex owner) {
  uint32_t& cell = SlabAt(address / slab_bytes_).owners[SlotOf(address)];
  KVT_CHECK(cell != kFree);
  cell = owner.value;
}

// From here on nothing is allocated in the slab. Its free slots stop counting at once, so that
// FreeSlots never promises a slot that Allocate would not give.
void SlabAllocator::Close(uint64_t address) {
  Slab& slab = SlabAt(address / slab_bytes_);
  KVT_CHECK(slab.used > 0 && !slab.closing);
  slab.closing = true;
  ++closing_slabs_;
  --group_slabs_[slab.slots.group];
  classes_[slab.slots].free_slots -= slab.owners.size() - slab.used;
}

uint64_t SlabAllocator::FreeSlots(const SlotClass& slots) const {
  const auto found = classes_.find(slots);
  const uint64_t in_slabs = found == classes_.end() ? 0 : found->second.free_slots;
  return in_slabs + unassigned_ * SlotsPerSlab(slots.slot_bytes);
}

void SlabAllocator::ForEachInSlab(uint64_t address,
                                  const std::function<void(uint64_t, EntryIndex)>& visit) const {
  const uint64_t slab_number = address / slab_bytes_;
  const Slab& slab = SlabAt(slab_number);
  const uint64_t first = slab_number * slab_bytes_ + slab_header_bytes_;
  for (size_t slot = 0; slot < slab.owners.size(); ++slot) {
    if (slab.owners[slot] == kFree) continue;
    visit(first + slot * slab.slots.slot_bytes, EntryIndex(slab.owners[slot]));
  }
}

uint64_t SlabAllocator::memory_bytes() const {
  uint64_t bytes = 0;
  for (const Drive& drive : drives_) {
    bytes += drive.slabs.capacity() * sizeof(Slab);
    for (const Slab& slab : drive.slabs) bytes += slab.owners.capacity() * sizeof(uint32_t);
  }
  return bytes;
}

void SlabAllocator::Assign(uint32_t slab_number, const SlotClass& slots) {
  Slab& slab = SlabAt(slab_number);
  slab.slots = slots;
  slab.owners.assign(SlotsPerSlab(slots.slot_bytes), kFree);
  ClassState& state = StateOf(slots);
  state.partial[DriveOf(slab_number)].push_back(slab_number);
  state.free_slots += slab.owners.size();
  if (slots.group >= group_slabs_.size()) group_slabs_.resize(slots.group + 1);
  ++group_slabs_[slots.group];
  --drives_[DriveOf(slab_number)].unassigned;
  --unassigned_;
}

// The last slot is free, and any class may cut the slab anew. A closing slab has left the sums of
// its class and group in Close already, and one that leaves all of them.
void SlabAllocator::Unassign(uint32_t slab_number) {
  Slab& slab = SlabAt(slab_number);
  Drive& drive = drives_[DriveOf(slab_number)];
  if (slab_number / drives_.size() >= drive.staying) {
    slab = Slab{};
    return;
  }
  if (slab.closing) {
    --closing_slabs_;
  } else {
    classes_[slab.slots].free_slots -= slab.owners.size();
    --group_slabs_[slab.slots.group];
  }
  slab = Slab{};
  drive.first_unassigned_hint = std::min(drive.first_unassigned_hint, slab_number);
  ++drive.unassigned;
  ++unassigned_;
}

uint64_t SlabAllocator::TakeFirstFree(uint32_t slab_number, EntryIndex owner) {
  Slab& slab = SlabAt(slab_number);
  while (slab.owners[slab.first_free_hint] != kFree) ++slab.first_free_hint;
  return Take(slab_number, slab.first_free_hint, owner);
}

uint64_t SlabAllocator::Take(uint32_t slab_number, uint32_t slot, EntryIndex owner) {
  Slab& slab = SlabAt(slab_number);
  slab.owners[slot] = owner.value;
  ++slab.used;
  --classes_[slab.slots].free_slots;
  ++used_slots_;
  used_bytes_ += slab.slots.slot_bytes;
  drives_[DriveOf(slab_number)].used_bytes += slab.slots.slot_bytes;
  return slab_number * slab_bytes_ + slab_header_bytes_ + slot * slab.slots.slot_bytes;
}

uint32_t SlabAllocator::SlotOf(uint64_t address) const {
  const Slab& slab = SlabAt(address / slab_bytes_);
  const uint64_t slot_bytes = slab.slots.slot_bytes;
  KVT_CHECK(slot_bytes != 0);
  const uint64_t within = address % slab_bytes_ - slab_header_bytes_;
  KVT_CHECK(within % slot_bytes == 0);
  return static_cast<uint32_t>(within / slot_bytes);
}

}  // namespace kvtier
