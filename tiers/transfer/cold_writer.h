// SPDX-License-Identifier: Apache-2.0
// Host or disk to the cold store: blocks that were worth keeping, when they have been idle for some
// time or are about to be evicted from disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <set>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/gate.h"
#include "tiers/space/disk_slots.h"
#include "tiers/state/cache_state.h"
#include "tiers/state/pins.h"

namespace kvtier {

// It hears of what comes to host and passes that on to `to_disk`, so that without a cold store
// nothing stands between host and disk.
//
// An eviction from disk neither reads nor waits for the store: with each tick the blocks that come
// next at the cold end of the disk's order are written, as far as cold_write_bytes_per_s allows.
// What is evicted without is counted with its reason. Event loop only.
class ColdWriter final : public CopyDown {
 public:
  // All are borrowed.
  ColdWriter(CacheState* state, DiskSlots* disk, CopyDown* to_disk);

  void Want(EntryIndex entry) override { to_disk_.Want(entry); }
  void SourceReady(EntryIndex entry) override;
  void SourceGone(EntryIndex entry) override { to_disk_.SourceGone(entry); }

  // Starts what may be written by now: first what the disk evicts next, then what has waited
  // longest.
  void Tick();

  // Deletes the block's object, if the store is there to hear it. Another host may write it again.
  void Forget(const BlockKey& key);

  // The block's object is gone, or will be.
  void LookAgain(EntryIndex entry);
  // Blocks of the tenant are on their way to the store.
  [[nodiscard]] bool IsWriting(std::string_view tenant) const;
  [[nodiscard]] uint64_t waiting() const { return line_.size(); }
  [[nodiscard]] uint64_t in_flight() const { return writes_.size(); }
  // Nothing is being read from disk into memory of this part.
  [[nodiscard]] bool Idle() const { return disk_reads_ == 0; }

 private:
  struct Write {
    EntryRef entry;
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

  // Whether the block in this row should be written now; one that is about to leave the disk need
  // not have been idle.
  [[nodiscard]] Look LookAt(EntryIndex entry, bool leaving) const;
  void WriteLeaving();
  void WriteIdle();
  // The block is being evicted from disk.
  void NoteEviction(EntryIndex entry);
  void Refill();
  [[nodiscard]] bool MayStart() const;
  void Start(EntryIndex entry);
  void ReadFromHost(Writes::iterator write);
  void ReadFromDisk(Writes::iterator write);
  void OnDiskRead(Writes::iterator write, const Status& status);
  void Put(Writes::iterator write);
  void End(Writes::iterator write);
  void OnPut(Writes::iterator write, const Status& status);

  CacheState& state_;
  DiskSlots& disk_;
  CopyDown& to_disk_;
  // Rows of blocks that came to host, the longest unseen first. A row may be another block's by
  // now: that one is then looked at like any other.
  EntryList line_;
  Writes writes_;
  std::set<EntryRef> under_way_;  // their blocks, which may be forgotten meanwhile
  bool away_ = false;             // the store, at the last tick
  uint64_t in_flight_bytes_ = 0;
  uint64_t disk_reads_ = 0;
  // What may be written at once; below zero after a block that was larger than what was left.
  int64_t allowance_bytes_ = 0;
  int64_t refilled_ms_ = 0;
  Gate gate_;
};

}  // namespace kvtier
