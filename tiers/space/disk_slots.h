// SPDX-License-Identifier: Apache-2.0
// The disk tier's space: which slot belongs to which block, which block is evicted for another, and
// the plain reads and writes of slots.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tiers/memory/slab_allocator.h"
#include "tiers/space/disk_room.h"
#include "tiers/space/drive_health.h"
#include "tiers/space/index_committer.h"
#include "tiers/space/slab_headers.h"
#include "tiers/space/write_pause.h"
#include "tiers/state/cache_state.h"
#include "tiers/storage/drive_sizer.h"

namespace kvtier {

class ColdChoice;

// Event loop only.
class DiskSlots final : private SlotOwner, private DriveOwner {
 public:
  // Both are borrowed; `cold` is null without a cold store.
  DiskSlots(CacheState* state, ColdChoice* cold);

  // The entry gets the slot that a record of an earlier process names, in a slab of that group.
  // False if no slot can be there: the record is deleted, and the entry forgotten.
  [[nodiscard]] bool Adopt(EntryIndex entry, const IndexRecord& record, uint32_t group);
  // The drives' files have so many slabs, of which so many stay. Blocks of the others have to
  // leave: none is given a slot there. REQUIRES: slabs that a file has no more are empty.
  void Resize(const DriveSlabs& staying, const DriveSlabs& in_files);
  // A slab that has to be emptied; nothing when all have been.
  [[nodiscard]] std::optional<DiskLocation> LastLeaving();
  // Says how many slots like the entry's are free or being freed beside the wanted share, up to
  // `slots`. If these are too few, the coldest blocks leave, no more than slots are lacking, and
  // there is no answer: the blocks that need the slots may have been among them.
  [[nodiscard]] std::optional<uint64_t> RoomFor(EntryIndex entry, uint64_t slots);
  // The block's slot is freed, and another is wanted: the block keeps its place among those that
  // leave. PersistQueue::SourceReady has it written. REQUIRES: in host, at rest on disk.
  void BeginMove(EntryIndex entry);
  // Slots are written with generations from this one on. REQUIRES: none was reserved.
  void NumberFrom(uint32_t generation) { next_generation_ = generation; }

  enum class Outcome : uint8_t {
    kReserved,  // entry.disk is set, with a new generation; the block counts as being written
    kWait,      // slots are being freed
    kFull,      // nothing can be freed
    kOverCap,   // the tenant is at its cap and nothing of it can be freed
  };
  // A slot for the entry; evicts the coldest if there is none, and ahead of need. A tenant at its
  // cap evicts its own.
  [[nodiscard]] Outcome Reserve(EntryIndex entry);

  // Writes header and payload to the slot just reserved. On success the block is on disk and
  // its index entry on the way; on failure the entry has no slot any more.
  void Write(EntryIndex entry, std::span<const std::byte> slot, std::function<void(Status)> done);
  // See BlockFile::ReadAndCheck.
  void ReadAndCheck(DiskLocation location, std::span<std::byte> slot, IoCheck check, IoDone done);

  // The block's slot has been read and found whole: if that was not certain, or its index entry is
  // not durable, it is committed anew.
  void MarkVerified(EntryIndex entry);
  // The block leaves the disk: its slot is freed, or (kKeep) never used again.
  void Drop(EntryIndex entry, DropReason reason,
            IndexCommitter::Slot slot = IndexCommitter::Slot::kFree);

  // Calls `visit` for the blocks, the coldest first, that would be evicted if the tier had to make
  // room for `bytes` more; for none while so much is free. Looks at options.search_part_blocks at
  // most. `visit` must not change the order on disk.
  void ForEachLeavingSoon(uint64_t bytes, const std::function<void(EntryIndex)>& visit) const;

  [[nodiscard]] IndexCommitter& committer() { return committer_; }
  [[nodiscard]] const IndexCommitter& committer() const { return committer_; }
  [[nodiscard]] uint64_t blocks() const { return blocks_; }
  [[nodiscard]] const SlabAllocator& allocator() const { return allocator_; }
  // Nothing is written for a while after the disk or the index refused, or ever after
  // pause().Stop().
  [[nodiscard]] bool degraded() const {
    return pause_.is_stopped() || pause_.under_way() || committer_.failed();
  }
  [[nodiscard]] WritePause& pause() { return pause_; }
  [[nodiscard]] DriveHealth& health() { return health_; }
  [[nodiscard]] const DriveHealth& health() const { return health_; }
  // The bytes of the tenant whose deletion is not durable yet.
  [[nodiscard]] uint64_t leaving_bytes(TenantId tenant) const { return leaving_.bytes(tenant); }
  // Evicts all blocks beyond a lowered cap.
  void TrimToCaps();
  // Ends the pause when its time has come.
  void Tick();
  // Tells the index of every use it does not know of yet, `max_rows` rows of the directory at a
  // time: from `row` on, returning the row to go on from, or the directory's end.
  [[nodiscard]] uint64_t FlushRecency(uint64_t row, uint64_t max_rows);
  [[nodiscard]] uint64_t memory_bytes() const {
    return allocator_.memory_bytes() + state_.orders.disk.memory_bytes();
  }

 private:
  // A request for space: how much, and at which tenants' cost.
  struct SpaceRequest {
    TenantId tenant;
    SlotClass slots;
    bool own = true;  // the tenant's own blocks may go, too
  };

  // Evicts until the wanted share of slots of this class is free or being freed.
  void KeepFree(const Namespace& name_space);
  [[nodiscard]] bool EvictFor(const Namespace& name_space);
  [[nodiscard]] bool EvictFrom(const SpaceRequest& request);
  // REQUIRES: the slab has no pinned blocks.
  [[nodiscard]] bool EvictSlab(DiskLocation location, const SpaceRequest& request);
  // Evicts the tenant's own blocks until the rest leaves the wanted share of its cap, and at least
  // `bytes`. False if it has looked at a part only: the next follows in an event of its own.
  bool KeepUnderCap(TenantId tenant, uint64_t bytes);
  // Evicts the tenant's coldest that may go, if it is among the next `*steps`, from which it takes
  // those that it looked at.
  [[nodiscard]] bool EvictOwn(TenantId tenant, uint32_t* steps);
  void FreeSlot(DiskLocation location) override;
  void KeepSlot(DiskLocation location) override;
  void OnCommitted(const Status& status) override;
  void Sync(std::function<void(const Status&)> done) override { health_.Sync(std::move(done)); }
  void OnDriveFailed(uint32_t drive) override;
  // Says, the first time, that nothing is written any more.
  void ReportPause(const Status& refused);
  void OnWritten(EntryIndex entry, uint64_t bytes, const Status& status);
  // The slot is no block's from now on, and the index is to forget it.
  void LeaveSlot(const BlockEntry& entry, IndexCommitter::Slot slot);

  CacheState& state_;
  SlabAllocator allocator_;
  DriveHealth health_;
  IndexCommitter committer_;
  uint64_t blocks_ = 0;  // entries that are on disk
  uint32_t next_generation_ = 1;
  LeavingSlots leaving_;
  DiskRoom room_;
  SlabHeaders slab_headers_;
  QuarantinedSlots quarantined_;
  std::vector<uint64_t> passed_;  // by tenant: of its own, since one was evicted or all were passed
  WritePause pause_;
  bool pause_reported_ = false;  // until a commit succeeds
  ColdChoice* const cold_;
};

// A read of `location` has found the block to be of no use there: it leaves the disk, if it is
// still there. A record that is on its way to the index arrives before, and the next read finds out
// again. The entry may go. Event loop only.
void DropUseless(CacheState* state, DiskSlots* disk, EntryIndex entry, DiskLocation location,
                 DropReason reason, IndexCommitter::Slot slot);

}  // namespace kvtier
