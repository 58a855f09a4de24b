// Space for slots of several sizes without fragmentation between them: the arena is cut into
// chunks, a chunk into equal slots of one size, and a chunk whose last slot is freed returns to the
// arena. One class serves the host arena and the disk. Knows addresses, not memory.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

#include "tiers/entry_index.h"

namespace kvtier {

// Event loop only. Addresses are byte offsets in the arena.
class SlabAllocator {
 public:
  // Slots of a chunk begin `chunk_header_bytes` after its start.
  SlabAllocator(uint64_t chunk_bytes, uint64_t chunk_header_bytes);

  // Adds chunks at the end of the arena.
  void Grow(uint64_t chunks);

  // A slot of `slot_bytes` (the same value for all blocks of one size), or nothing when neither a
  // slot of that size nor an unassigned chunk is free. REQUIRES: Fits(slot_bytes).
  [[nodiscard]] std::optional<uint64_t> Allocate(uint64_t slot_bytes, EntryIndex owner);
  // Takes the slot at `address`, as found on disk. False if it is taken, out of bounds, not on a
  // slot boundary, or in a chunk of another slot size.
  [[nodiscard]] bool Claim(uint64_t address, uint64_t slot_bytes, EntryIndex owner);
  // REQUIRES: the slot is allocated.
  void Free(uint64_t address);
  // REQUIRES: the slot is allocated. `kNoEntry` marks a slot that is in use but owned by no block.
  void SetOwner(uint64_t address, EntryIndex owner);

  [[nodiscard]] bool Fits(uint64_t slot_bytes) const {
    return slot_bytes > 0 && slot_bytes + chunk_header_bytes_ <= chunk_bytes_;
  }
  [[nodiscard]] uint64_t SlotsPerChunk(uint64_t slot_bytes) const {
    return (chunk_bytes_ - chunk_header_bytes_) / slot_bytes;
  }
  [[nodiscard]] uint64_t SlotBytesAt(uint64_t address) const {
    return chunks_[address / chunk_bytes_].slot_bytes;
  }
  // Free slots of this size, counting those of unassigned chunks.
  [[nodiscard]] uint64_t FreeSlots(uint64_t slot_bytes) const;
  // Slots if every chunk were cut to this size.
  [[nodiscard]] uint64_t TotalSlots(uint64_t slot_bytes) const {
    return chunks_.size() * SlotsPerChunk(slot_bytes);
  }
  // Calls `visit(address, owner)` for each allocated slot of the chunk that holds `address`.
  void ForEachInChunk(uint64_t address,
                      const std::function<void(uint64_t, EntryIndex)>& visit) const;

  [[nodiscard]] uint64_t chunk_bytes() const { return chunk_bytes_; }
  [[nodiscard]] uint64_t chunks() const { return chunks_.size(); }
  [[nodiscard]] uint64_t used_slots() const { return used_slots_; }
  // Bytes of allocated slots.
  [[nodiscard]] uint64_t used_bytes() const { return used_bytes_; }
  [[nodiscard]] uint64_t memory_bytes() const;

 private:
  // Values of `owners` beside entry indices.
  static constexpr uint32_t kFree = 0xFFFFFFFEu;

  struct Chunk {
    uint64_t slot_bytes = 0;  // 0: unassigned
    uint32_t used = 0;
    uint32_t first_free_hint = 0;  // no slot below it is free
    std::vector<uint32_t> owners;
    [[nodiscard]] bool full() const { return used == owners.size(); }
  };
  struct SizeClass {
    // Chunks that had a free slot when pushed; the last is tried first, stale ones are skipped.
    std::vector<uint32_t> partial;
    uint64_t free_slots = 0;
  };

  void Assign(uint32_t chunk, uint64_t slot_bytes);
  void Unassign(uint32_t chunk);
  uint64_t Take(uint32_t chunk, uint32_t slot, EntryIndex owner);
  uint64_t TakeFirstFree(uint32_t chunk, EntryIndex owner);
  [[nodiscard]] uint32_t SlotOf(uint64_t address) const;

  const uint64_t chunk_bytes_;
  const uint64_t chunk_header_bytes_;
  std::vector<Chunk> chunks_;
  uint64_t unassigned_ = 0;
  uint32_t first_unassigned_hint_ = 0;  // no chunk below it is unassigned
  std::unordered_map<uint64_t, SizeClass> classes_;
  uint64_t used_slots_ = 0;
  uint64_t used_bytes_ = 0;
};

}  // namespace kvtier
