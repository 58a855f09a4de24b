// SPDX-License-Identifier: Apache-2.0
// The table beside a host arena that outlives the daemon: how each slab is cut, and which of its
// slots hold whole blocks. The identity of a slot's block stands in the slot's own header.
//
// The daemon may die between any two instructions. So a slot counts only while its record says
// kComplete; it says so only once header and payload are whole, and no longer before the first byte
// of them may change. The records that a dead daemon left are believed no more than those of a
// disk: every field is checked, and a value that cannot be costs the slot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/digest.h"
#include "base/result.h"
#include "tiers/memory/adoption_count.h"
#include "tiers/types/block_key.h"

namespace kvtier {

// The properties that must be equal in two processes for one to adopt the other's memory; but the
// arena may have another size.
struct HostTableShape {
  uint64_t arena_bytes = 0;
  uint64_t slab_bytes = 0;
  uint64_t arena_id = 0;  // tells the arena that the table belongs to from others of this machine
  Digest128 boot_id;      // of the machine: memory does not outlive it
  friend bool operator==(const HostTableShape&, const HostTableShape&) = default;
};

// Facts about a block in host beside its header, which was written when it came here.
struct HostSlotFacts {
  uint32_t uses = 0;
  uint32_t last_use_s = 0;  // Unix time, as the following
  uint32_t created_s = 0;
  RetentionClass retention = RetentionClass::kExtended;
  uint32_t pinned_until_s = 0;  // as in the index
  friend bool operator==(const HostSlotFacts&, const HostSlotFacts&) = default;
};

enum class HostSlotState : uint8_t {
  kEmpty,
  kFilling,   // a copy or a read may be writing to it
  kComplete,  // header and payload are whole
  kDamaged,   // the record holds what no daemon writes
};

// Event loop only; other processes may have the memory mapped, but do not write to it.
class HostTable : public AdoptionCount {
 public:
  // The size of a slot with one 4 KiB page of payload.
  static constexpr uint64_t kMinSlotBytes = 8192;

  [[nodiscard]] static uint64_t BytesFor(const HostTableShape& shape);
  // Makes an empty table. REQUIRES: `memory` is all zeros, page-aligned, and BytesFor(shape) long
  // at least.
  static void Format(const HostTableShape& shape, std::span<std::byte> memory);
  // Whether the table may be used as one of this shape. Errors, all kCorrupt: "damaged" (no table
  // at all), "version", "size_changed" (of slabs), "other_boot", "other_arena".
  [[nodiscard]] static Status Check(const HostTableShape& shape, std::span<const std::byte> memory);
  // The size of the arena beside the table in a file that an earlier process left; 0 if it is none.
  [[nodiscard]] static uint64_t ArenaBytesOf(int table_file);
  // REQUIRES: Format or Check was called, successfully; the memory outlives the table. It may be
  // longer than the shape needs, up to what Resize will.
  HostTable(const HostTableShape& shape, std::span<std::byte> memory);

  // --- writing; addresses are bytes from the arena's start ---
  // The slot may be written to from now on. REQUIRES: it is on a slot boundary of a slab of such
  // slots, and no slot of another size in the slab is in use.
  void BeginFill(uint64_t address, uint64_t slot_bytes);
  // All writes to the slot have ended, and it is whole. REQUIRES: BeginFill, or complete.
  void Complete(uint64_t address, const HostSlotFacts& facts);
  // REQUIRES: complete.
  void Update(uint64_t address, const HostSlotFacts& facts);
  // From now on the slot's bytes may change. REQUIRES: no write to it is under way.
  void Clear(uint64_t address);
  // Nothing in the slab is to be found any more. REQUIRES: no slot of it is in use.
  void ForgetSlab(uint64_t slab);
  // Whether the slab's cut is damaged, so that the blocks of its slots are lost. It is not cut from
  // then on, so that no later process tells it again.
  [[nodiscard]] bool TakeDamagedCut(uint64_t slab);
  // From now on the table says that the arena has this size. REQUIRES: nothing is recorded of slabs
  // that one of the two sizes lacks; the memory is long enough.
  void Resize(uint64_t arena_bytes);
  // The files from which slots are filled from now on, by DiskFiles::set_uuid; zeros for none.
  void SetDiskSet(const Digest128& disk_set);

  // --- reading what a daemon has left ---
  // The arena's bytes when the last process took its size; any number if the table is damaged.
  [[nodiscard]] uint64_t arena_bytes() const;
  [[nodiscard]] uint64_t bytes() const { return BytesFor(shape_); }
  // A process that died while it set it leaves the one before, the new one, or one that is neither.
  [[nodiscard]] Digest128 disk_set() const;
  [[nodiscard]] uint64_t slabs() const { return shape_.arena_bytes / shape_.slab_bytes; }
  // The slabs up to the last in which blocks may be. A walk over all slabs.
  [[nodiscard]] uint64_t cut_slabs() const;
  // 0 for a slab that was never cut, or whose record is damaged.
  [[nodiscard]] uint64_t SlotBytesOf(uint64_t slab) const;
  [[nodiscard]] HostSlotState StateOf(uint64_t address) const;
  // Times and uses may be any number. REQUIRES: StateOf(address) is kComplete.
  [[nodiscard]] HostSlotFacts FactsOf(uint64_t address) const;

 private:
  struct Head;
  struct SlabRecord;
  struct SlotRecord;
  [[nodiscard]] Head& head() const;
  [[nodiscard]] SlabRecord& SlabOf(uint64_t slab) const;
  // The records of the slab's slots, of which there are as many as slots of the smallest size.
  [[nodiscard]] SlotRecord* RecordsOf(uint64_t slab) const;
  [[nodiscard]] SlotRecord& RecordOf(uint64_t address) const;
  void WriteFacts(SlotRecord* record, const HostSlotFacts& facts);

  HostTableShape shape_;
  const std::span<std::byte> memory_;
};

}  // namespace kvtier
