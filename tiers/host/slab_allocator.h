// Space for slots of several sizes without fragmentation between them: the arena is cut into
// chunks, a chunk into equal slots of one class, and a chunk whose last slot is freed returns to
// the arena. One class serves the host arena and the disk. Knows addresses, not memory.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

#include "tiers/directory/entry_index.h"

namespace kvtier {

// Slots that share chunks: those of one size and one group. What a group is, the caller decides.
struct SlotClass {
  uint64_t slot_bytes = 0;
  uint32_t group = 0;
  friend bool operator==(const SlotClass&, const SlotClass&) = default;
};
struct SlotClassHash {
  size_t operator()(const SlotClass& slots) const {
    return static_cast<size_t>(slots.slot_bytes ^ uint64_t{slots.group} << 48);
  }
};

// Event loop only. Addresses are byte offsets in the arena.
class SlabAllocator {
 public:
  // Slots of a chunk begin `chunk_header_bytes` after its start.
  SlabAllocator(uint64_t chunk_bytes, uint64_t chunk_header_bytes);

  // Adds chunks at the end of the arena.
  void Grow(uint64_t chunks);

  // A slot of the class, or nothing when neither a slot of it nor an unassigned chunk is free.
  // REQUIRES: Fits(slots.slot_bytes).
  [[nodiscard]] std::optional<uint64_t> Allocate(const SlotClass& slots, EntryIndex owner);
  // Takes the slot at `address`, as found on disk. False if it is taken, out of bounds, not on a
  // slot boundary, or in a chunk of another class.
  [[nodiscard]] bool Claim(uint64_t address, const SlotClass& slots, EntryIndex owner);
  // REQUIRES: the slot is allocated.
  void Free(uint64_t address);
  // REQUIRES: the slot is allocated. `kNoEntry` marks a slot that is in use but owned by no block.
  void SetOwner(uint64_t address, EntryIndex owner);
  // No slot of the chunk that holds `address` is given out until all of them have been freed and
  // the chunk has returned to the arena. REQUIRES: a slot of it is allocated; not closing yet.
  void Close(uint64_t address);
  [[nodiscard]] bool Closing(uint64_t address) const {
    return chunks_[address / chunk_bytes_].closing;
  }
  [[nodiscard]] uint64_t closing_chunks() const { return closing_chunks_; }

  [[nodiscard]] bool Fits(uint64_t slot_bytes) const {
    return slot_bytes > 0 && slot_bytes + chunk_header_bytes_ <= chunk_bytes_;
  }
  [[nodiscard]] uint64_t SlotsPerChunk(uint64_t slot_bytes) const {
    return (chunk_bytes_ - chunk_header_bytes_) / slot_bytes;
  }
  // Its slot_bytes are 0 if the chunk is unassigned.
  [[nodiscard]] const SlotClass& ClassAt(uint64_t address) const {
    return chunks_[address / chunk_bytes_].slots;
  }
  // Free slots of this class, counting those of unassigned chunks.
  [[nodiscard]] uint64_t FreeSlots(const SlotClass& slots) const;
  // Chunks that the group has, less those that are closing.
  [[nodiscard]] uint64_t GroupChunks(uint32_t group) const {
    return group < group_chunks_.size() ? group_chunks_[group] : 0;
  }
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
    SlotClass slots;  // no bytes: unassigned
    bool closing = false;
    uint32_t used = 0;
    uint32_t first_free_hint = 0;  // no slot below it is free
    std::vector<uint32_t> owners;
    [[nodiscard]] bool full() const { return used == owners.size(); }
  };
  struct ClassState {
    // Chunks that had a free slot when pushed; the last is tried first, stale ones are skipped.
    std::vector<uint32_t> partial;
    uint64_t free_slots = 0;
  };

  void Assign(uint32_t chunk, const SlotClass& slots);
  void Unassign(uint32_t chunk);
  uint64_t Take(uint32_t chunk, uint32_t slot, EntryIndex owner);
  uint64_t TakeFirstFree(uint32_t chunk, EntryIndex owner);
  [[nodiscard]] uint32_t SlotOf(uint64_t address) const;

  const uint64_t chunk_bytes_;
  const uint64_t chunk_header_bytes_;
  std::vector<Chunk> chunks_;
  uint64_t unassigned_ = 0;
  uint32_t first_unassigned_hint_ = 0;  // no chunk below it is unassigned
  std::unordered_map<SlotClass, ClassState, SlotClassHash> classes_;
  std::vector<uint64_t> group_chunks_;  // by group
  uint64_t closing_chunks_ = 0;
  uint64_t used_slots_ = 0;
  uint64_t used_bytes_ = 0;
};

}  // namespace kvtier
