// SPDX-License-Identifier: Apache-2.0
// Host or disk to the cold store: blocks that have been idle for some time and that were worth
// keeping.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "base/gate.h"
#include "tiers/space/disk_slots.h"
#include "tiers/state/cache_state.h"
#include "tiers/state/pins.h"

namespace kvtier {

// It hears of what comes to host and passes that on to `to_disk`, so that without a cold store
// nothing stands between host and disk. Event loop only.
class ColdWriter final : public CopyDown {
 public:
  // All are borrowed.
  ColdWriter(CacheState* state, DiskSlots* disk, CopyDown* to_disk)
      : state_(*state), disk_(*disk), to_disk_(*to_disk) {}

  void Want(EntryIndex entry) override { to_disk_.Want(entry); }
  void SourceReady(EntryIndex entry) override;
  void SourceGone(EntryIndex entry) override { to_disk_.SourceGone(entry); }

  // Looks at the blocks that have waited longest and starts what may be written by now.
  void Tick();

  // Deletes the block's object, if the store is there to hear it. Another host may write it again.
  void Forget(const BlockKey& key);

  [[nodiscard]] uint64_t waiting() const { return line_.size(); }
  [[nodiscard]] uint64_t in_flight() const { return writes_.size(); }
  // Nothing is being read from disk into memory of this part.
  [[nodiscard]] bool Idle() const { return disk_reads_ == 0; }

 private:
  struct Write {
    EntryIndex entry;
    BlockKey key;
    SlotPlacement placement;  // what the object's header says of times
    int64_t ttl_s = 0;
    HostPin pin;  // from host
    // From disk.
    SlotExpectation expected;
    AlignedBuffer buffer;
    SlotVerdict verdict = SlotVerdict::kGood;
    std::shared_ptr<std::vector<std::byte>> object;
  };
  using Writes = std::list<Write>;
  enum class Look : uint8_t { kWrite, kNotYet, kNever };

  // Whether the block in this row should be written now.
  [[nodiscard]] Look LookAt(EntryIndex entry) const;
  void Refill();
  [[nodiscard]] bool MayStart() const;
  void Start(EntryIndex entry);
  void ReadFromHost(Writes::iterator write);
  void ReadFromDisk(Writes::iterator write);
  void OnDiskRead(Writes::iterator write, const Status& status);
  void Put(Writes::iterator write);
  void OnPut(Writes::iterator write, const Status& status);

  CacheState& state_;
  DiskSlots& disk_;
  CopyDown& to_disk_;
  // Rows of blocks that came to host, the longest unseen first. A row may be another block's by
  // now: that one is then looked at like any other.
  EntryList line_;
  Writes writes_;
  uint64_t in_flight_bytes_ = 0;
  uint64_t disk_reads_ = 0;
  // What may be written at once; below zero after a block that was larger than what was left.
  int64_t allowance_bytes_ = 0;
  int64_t refilled_ms_ = 0;
  Gate gate_;
};

}  // namespace kvtier
