#include "tiers/host/slab_allocator.h"

#include <algorithm>

#include "base/check.h"

namespace kvtier {

SlabAllocator::SlabAllocator(uint64_t chunk_bytes, uint64_t chunk_header_bytes)
    : chunk_bytes_(chunk_bytes), chunk_header_bytes_(chunk_header_bytes) {
  KVT_CHECK(chunk_bytes > chunk_header_bytes);
}

void SlabAllocator::Grow(uint64_t chunks) {
  chunks_.resize(chunks_.size() + chunks);
  unassigned_ += chunks;
}

std::optional<uint64_t> SlabAllocator::Allocate(const SlotClass& slots, EntryIndex owner) {
  KVT_CHECK(Fits(slots.slot_bytes));
  std::vector<uint32_t>& partial = classes_[slots].partial;
  while (!partial.empty()) {
    const Chunk& candidate = chunks_[partial.back()];
    if (candidate.slots == slots && !candidate.full() && !candidate.closing) {
      return TakeFirstFree(partial.back(), owner);
    }
    partial.pop_back();
  }
  if (unassigned_ == 0) return std::nullopt;
  uint32_t& chunk = first_unassigned_hint_;
  while (chunks_[chunk].slots.slot_bytes != 0) ++chunk;
  Assign(chunk, slots);
  return TakeFirstFree(chunk, owner);
}

bool SlabAllocator::Claim(uint64_t address, const SlotClass& slots, EntryIndex owner) {
  const uint64_t slot_bytes = slots.slot_bytes;
  const uint64_t chunk_number = address / chunk_bytes_;
  if (!Fits(slot_bytes) || chunk_number >= chunks_.size()) return false;
  const auto chunk = static_cast<uint32_t>(chunk_number);
  const uint64_t within = address % chunk_bytes_;
  if (within < chunk_header_bytes_ || (within - chunk_header_bytes_) % slot_bytes != 0)
    return false;
  if (within + slot_bytes > chunk_bytes_) return false;
  if (chunks_[chunk].slots.slot_bytes == 0) Assign(chunk, slots);
  if (chunks_[chunk].slots != slots) return false;
  const auto slot = static_cast<uint32_t>((within - chunk_header_bytes_) / slot_bytes);
  if (chunks_[chunk].owners[slot] != kFree) return false;
  Take(chunk, slot, owner);
  return true;
}

void SlabAllocator::Free(uint64_t address) {
  const auto chunk_number = static_cast<uint32_t>(address / chunk_bytes_);
  Chunk& chunk = chunks_[chunk_number];
  const uint32_t slot = SlotOf(address);
  KVT_CHECK(chunk.owners[slot] != kFree);
  if (!chunk.closing) {
    ClassState& state = classes_[chunk.slots];
    if (chunk.full()) state.partial.push_back(chunk_number);
    ++state.free_slots;
  }
  chunk.owners[slot] = kFree;
  chunk.first_free_hint = std::min(chunk.first_free_hint, slot);
  --chunk.used;
  --used_slots_;
  used_bytes_ -= chunk.slots.slot_bytes;
  if (chunk.used == 0) Unassign(chunk_number);
}

void SlabAllocator::SetOwner(uint64_t address, EntryIndex owner) {
  uint32_t& cell = chunks_[address / chunk_bytes_].owners[SlotOf(address)];
  KVT_CHECK(cell != kFree);
  cell = owner.value;
}

void SlabAllocator::Close(uint64_t address) {
  Chunk& chunk = chunks_[address / chunk_bytes_];
  KVT_CHECK(chunk.used > 0 && !chunk.closing);
  chunk.closing = true;
  ++closing_chunks_;
  --group_chunks_[chunk.slots.group];
  classes_[chunk.slots].free_slots -= chunk.owners.size() - chunk.used;
}

uint64_t SlabAllocator::FreeSlots(const SlotClass& slots) const {
  const auto found = classes_.find(slots);
  const uint64_t in_chunks = found == classes_.end() ? 0 : found->second.free_slots;
  return in_chunks + unassigned_ * SlotsPerChunk(slots.slot_bytes);
}

void SlabAllocator::ForEachInChunk(uint64_t address,
                                   const std::function<void(uint64_t, EntryIndex)>& visit) const {
  const uint64_t chunk_number = address / chunk_bytes_;
  const Chunk& chunk = chunks_[chunk_number];
  const uint64_t first = chunk_number * chunk_bytes_ + chunk_header_bytes_;
  for (size_t slot = 0; slot < chunk.owners.size(); ++slot) {
    if (chunk.owners[slot] == kFree) continue;
    visit(first + slot * chunk.slots.slot_bytes, EntryIndex(chunk.owners[slot]));
  }
}

uint64_t SlabAllocator::memory_bytes() const {
  uint64_t bytes = chunks_.capacity() * sizeof(Chunk);
  for (const Chunk& chunk : chunks_) bytes += chunk.owners.capacity() * sizeof(uint32_t);
  return bytes;
}

void SlabAllocator::Assign(uint32_t chunk_number, const SlotClass& slots) {
  Chunk& chunk = chunks_[chunk_number];
  chunk.slots = slots;
  chunk.owners.assign(SlotsPerChunk(slots.slot_bytes), kFree);
  ClassState& state = classes_[slots];
  state.partial.push_back(chunk_number);
  state.free_slots += chunk.owners.size();
  if (slots.group >= group_chunks_.size()) group_chunks_.resize(slots.group + 1);
  ++group_chunks_[slots.group];
  --unassigned_;
}

void SlabAllocator::Unassign(uint32_t chunk_number) {
  Chunk& chunk = chunks_[chunk_number];
  if (chunk.closing) {
    --closing_chunks_;
  } else {
    classes_[chunk.slots].free_slots -= chunk.owners.size();
    --group_chunks_[chunk.slots.group];
  }
  chunk = Chunk{};
  first_unassigned_hint_ = std::min(first_unassigned_hint_, chunk_number);
  ++unassigned_;
}

uint64_t SlabAllocator::TakeFirstFree(uint32_t chunk_number, EntryIndex owner) {
  Chunk& chunk = chunks_[chunk_number];
  while (chunk.owners[chunk.first_free_hint] != kFree) ++chunk.first_free_hint;
  return Take(chunk_number, chunk.first_free_hint, owner);
}

uint64_t SlabAllocator::Take(uint32_t chunk_number, uint32_t slot, EntryIndex owner) {
  Chunk& chunk = chunks_[chunk_number];
  chunk.owners[slot] = owner.value;
  ++chunk.used;
  --classes_[chunk.slots].free_slots;
  ++used_slots_;
  used_bytes_ += chunk.slots.slot_bytes;
  return chunk_number * chunk_bytes_ + chunk_header_bytes_ + slot * chunk.slots.slot_bytes;
}

uint32_t SlabAllocator::SlotOf(uint64_t address) const {
  const Chunk& chunk = chunks_[address / chunk_bytes_];
  const uint64_t slot_bytes = chunk.slots.slot_bytes;
  KVT_CHECK(slot_bytes != 0);
  const uint64_t within = address % chunk_bytes_ - chunk_header_bytes_;
  KVT_CHECK(within % slot_bytes == 0);
  return static_cast<uint32_t>(within / slot_bytes);
}

}  // namespace kvtier
