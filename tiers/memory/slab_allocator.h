// SPDX-License-Identifier: Apache-2.0
// Space for slots of several sizes without fragmentation between them: the arena is cut into
// slabs, a slab into equal slots of one class, and a slab whose last slot is freed returns to
// the arena. One class serves the host arena and the disk. Knows addresses, not memory.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

#include "tiers/types/block_key.h"

namespace kvtier {

// Slots that share slabs: those of one size and one group. The caller decides the meaning of a
// group.
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
  // Slots of a slab begin `slab_header_bytes` after its start. Slab `n` lies on drive `n` modulo
  // `drives`, as that drive's slab `n` / `drives`.
  SlabAllocator(uint64_t slab_bytes, uint64_t slab_header_bytes, uint32_t drives = 1);

  // The drive has so many slabs from now on. Slabs beyond them leave: no slot of theirs is given
  // out, and none that is freed comes back, unless the number rises again.
  void Resize(uint64_t slabs, uint32_t drive = 0);
  // Adds slabs at the end of the drive.
  void Grow(uint64_t slabs, uint32_t drive = 0) { Resize(drives_[drive].staying + slabs, drive); }
  // All slabs of the drive leave, for good.
  void CloseDrive(uint32_t drive);
  // The start of the last of the drive's slabs that leave and have a slot in use; nothing when all
  // have been emptied.
  [[nodiscard]] std::optional<uint64_t> LastLeaving(uint32_t drive = 0);
  [[nodiscard]] bool Leaving(uint64_t address) const {
    const uint64_t slab = address / slab_bytes_;
    return slab / drives_.size() >= drives_[DriveOf(slab)].staying;
  }

  // A slot of the class, or nothing when neither a slot of it nor an unassigned slab is free. The
  // slots of a class go round the drives, so that blocks written together are read from all of them
  // together.
  // REQUIRES: Fits(slots.slot_bytes).
  [[nodiscard]] std::optional<uint64_t> Allocate(const SlotClass& slots, EntryIndex owner);
  // Takes the slot at `address`, as found on disk. False if it is taken, out of bounds, not on a
  // slot boundary, or in a slab of another class.
  [[nodiscard]] bool Claim(uint64_t address, const SlotClass& slots, EntryIndex owner);
  // REQUIRES: the slot is allocated.
  void Free(uint64_t address);
  // REQUIRES: the slot is allocated. `kNoEntry` marks a slot that is in use but owned by no block.
  void SetOwner(uint64_t address, EntryIndex owner);
  // No slot of the slab that holds `address` is given out until all of them have been freed and
  // the slab has returned to the arena. REQUIRES: a slot of it is allocated; not closing yet.
  void Close(uint64_t address);
  [[nodiscard]] bool Closing(uint64_t address) const {
    return SlabAt(address / slab_bytes_).closing;
  }
  [[nodiscard]] uint64_t closing_slabs() const { return closing_slabs_; }

  [[nodiscard]] bool Fits(uint64_t slot_bytes) const {
    return slot_bytes > 0 && slot_bytes + slab_header_bytes_ <= slab_bytes_;
  }
  [[nodiscard]] uint64_t SlotsPerSlab(uint64_t slot_bytes) const {
    return (slab_bytes_ - slab_header_bytes_) / slot_bytes;
  }
  // Its slot_bytes are 0 if the slab is unassigned.
  [[nodiscard]] const SlotClass& ClassAt(uint64_t address) const {
    return SlabAt(address / slab_bytes_).slots;
  }
  // Free slots of this class, counting those of unassigned slabs.
  [[nodiscard]] uint64_t FreeSlots(const SlotClass& slots) const;
  // Slabs that the group has, less those that are closing.
  [[nodiscard]] uint64_t GroupSlabs(uint32_t group) const {
    return group < group_slabs_.size() ? group_slabs_[group] : 0;
  }
  // Slots if every slab were cut to this size.
  [[nodiscard]] uint64_t TotalSlots(uint64_t slot_bytes) const {
    return slabs_ * SlotsPerSlab(slot_bytes);
  }
  // Calls `visit(address, owner)` for each allocated slot of the slab that holds `address`.
  void ForEachInSlab(uint64_t address,
                     const std::function<void(uint64_t, EntryIndex)>& visit) const;

  [[nodiscard]] uint64_t slab_bytes() const { return slab_bytes_; }
  // Slabs that do not leave.
  [[nodiscard]] uint64_t slabs() const { return slabs_; }
  [[nodiscard]] uint64_t slabs(uint32_t drive) const { return drives_[drive].staying; }
  [[nodiscard]] uint64_t used_slots() const { return used_slots_; }
  // Bytes of allocated slots.
  [[nodiscard]] uint64_t used_bytes() const { return used_bytes_; }
  [[nodiscard]] uint64_t used_bytes(uint32_t drive) const { return drives_[drive].used_bytes; }
  [[nodiscard]] uint64_t memory_bytes() const;

 private:
  // Values of `owners` beside entry indices.
  static constexpr uint32_t kFree = 0xFFFFFFFEu;

  struct Slab {
    SlotClass slots;  // no bytes: unassigned
    bool closing = false;
    uint32_t used = 0;
    uint32_t first_free_hint = 0;  // no slot below it is free
    std::vector<uint32_t> owners;
    [[nodiscard]] bool full() const { return used == owners.size(); }
  };
  struct Drive {
    std::vector<Slab> slabs;
    uint64_t staying = 0;  // of them; the others leave, and count in no sum but those of used slots
    bool closed = false;
    uint64_t used_bytes = 0;
    uint64_t unassigned = 0;
    uint32_t first_unassigned_hint = 0;  // no slab of the drive below it is unassigned
  };
  struct ClassState {
    // By drive, slabs that had a free slot when pushed; the last is tried first, stale ones are
    // skipped.
    std::vector<std::vector<uint32_t>> partial;
    size_t next_turn = 0;  // in `usable_`, modulo its size
    uint64_t free_slots = 0;
  };

  [[nodiscard]] uint32_t DriveOf(uint64_t slab) const {
    return static_cast<uint32_t>(slab % drives_.size());
  }
  [[nodiscard]] Slab& SlabAt(uint64_t slab) {
    return drives_[slab % drives_.size()].slabs[slab / drives_.size()];
  }
  [[nodiscard]] const Slab& SlabAt(uint64_t slab) const {
    return drives_[slab % drives_.size()].slabs[slab / drives_.size()];
  }
  void Leave(uint32_t slab);
  void Stay(uint32_t slab);
  [[nodiscard]] ClassState& StateOf(const SlotClass& slots);
  // A slab of the drive that has a free slot of the class, whose state is `state`.
  [[nodiscard]] std::optional<uint32_t> PartialSlab(uint32_t drive, const SlotClass& slots,
                                                    ClassState* state) const;
  // REQUIRES: the drive has an unassigned slab.
  [[nodiscard]] uint32_t CutSlab(uint32_t drive, const SlotClass& slots);
  void Assign(uint32_t slab, const SlotClass& slots);
  void Unassign(uint32_t slab);
  uint64_t Take(uint32_t slab, uint32_t slot, EntryIndex owner);
  uint64_t TakeFirstFree(uint32_t slab, EntryIndex owner);
  [[nodiscard]] uint32_t SlotOf(uint64_t address) const;

  const uint64_t slab_bytes_;
  const uint64_t slab_header_bytes_;
  std::vector<Drive> drives_;
  uint64_t slabs_ = 0;            // that stay
  uint64_t unassigned_ = 0;       // of them
  std::vector<uint32_t> usable_;  // drives that have slabs that stay
  std::unordered_map<SlotClass, ClassState, SlotClassHash> classes_;
  std::vector<uint64_t> group_slabs_;  // by group
  uint64_t closing_slabs_ = 0;
  uint64_t used_slots_ = 0;
  uint64_t used_bytes_ = 0;
};

}  // namespace kvtier
