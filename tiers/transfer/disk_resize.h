// SPDX-License-Identifier: Apache-2.0
// Changes the sizes of the disk tier's files while it serves. To shrink, the coldest blocks leave
// until the rest fits, wherever they lie. Blocks beyond the new end come to host, lose their slots
// and are written anew below it. The files are cut when nothing is left there, and the index has
// forgotten it.
#pragma once

#include <cstdint>
#include <vector>

#include "base/gate.h"
#include "tiers/space/disk_slots.h"
#include "tiers/space/offload_queue.h"
#include "tiers/space/persist_queue.h"
#include "tiers/state/cache_state.h"
#include "tiers/transfer/loader.h"

namespace kvtier {

// Event loop only; the environment's sizer works on the files elsewhere. The latest sizes win.
// Blocks that something reads or writes are waited for, and so are pinned ones for which there is
// no room, and the end of a pause of writes. A process that dies meanwhile leaves files of the old
// or the new size, and an index of either; a block that was just being written anew is lost with
// host memory.
class DiskResize {
 public:
  // All are borrowed.
  DiskResize(CacheState* state, DiskSlots* disk, OffloadQueue* to_host, PersistQueue* to_disk,
             Loader* loader)
      : state_(*state),
        disk_(*disk),
        to_host_(*to_host),
        to_disk_(*to_disk),
        loader_(*loader),
        wanted_(state->env.geometry.drive_slabs),
        staying_(wanted_),
        in_files_(wanted_) {}

  // Drives that are not there, or were given up, keep their sizes. Does nothing without a disk
  // tier. A size that the files could not get before is tried again.
  void Begin(const DriveSlabs& wanted);
  // A bounded part of the work, if some is due; a tick makes the next due.
  void Pump();
  // Looks again for blocks that something used.
  void Tick() { due_ = true; }
  // No file is being resized.
  [[nodiscard]] bool Idle() const { return !sizing_; }

 private:
  enum class Step : uint8_t {
    kMoves,   // to host, or from there to its new slot
    kComing,  // to host, as was seen to before
    kLeft,    // the disk has it no more
    kStays,   // it is pinned, and there is no room for it
    kLater,   // host has no space for it yet
  };

  void GoOn() {
    due_ = true;
    state_.SchedulePart();
  }
  // Drives that were given up meanwhile stay as they are.
  void ForgetFailedDrives();
  // Opens the slots below the new sizes, as far as the files have them, and closes all others.
  void Apply();
  // Empties a part of the slab.
  void Empty(DiskLocation slab);
  // Blocks that have lost their slots, and have not been written anew.
  [[nodiscard]] size_t CountMoving();
  // `room`: there is a slot for it below.
  [[nodiscard]] Step Move(EntryIndex entry, bool room);
  // The same by way of host. kLeft: it cannot come there, and is where it was.
  [[nodiscard]] Step MoveThroughHost(EntryIndex entry);
  void ResizeFiles();

  CacheState& state_;
  DiskSlots& disk_;
  OffloadQueue& to_host_;
  PersistQueue& to_disk_;
  Loader& loader_;
  DriveSlabs wanted_;
  DriveSlabs staying_;
  DriveSlabs in_files_;
  std::vector<EntryRef> moving_;  // and some that are no more
  bool due_ = false;
  bool sizing_ = false;
  bool sized_ = true;  // the files are, or will be, as near to `staying_` as they could get
  Gate gate_;
};

}  // namespace kvtier
