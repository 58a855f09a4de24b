// SPDX-License-Identifier: Apache-2.0
// Host or disk to the cold store: blocks that were worth keeping, when they have been idle for some
// time, are about to be evicted from disk, or outlive the object that is there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/gate.h"
#include "tiers/space/cold_choice.h"
#include "tiers/space/disk_slots.h"
#include "tiers/space/offload_queue.h"
#include "tiers/state/cache_state.h"
#include "tiers/state/pins.h"
#include "tiers/transfer/cold_deletions.h"

namespace kvtier {

// An eviction from disk neither reads nor waits for the store: with each tick the blocks that come
// next at the cold end of the disk's order are written, as far as cold_write_bytes_per_s allows.
// A block that is evicted unwritten is counted with its reason. Event loop only.
class ColdWriter {
 public:
  // All are borrowed.
  ColdWriter(CacheState* state, OffloadQueue* to_host, DiskSlots* disk, ColdChoice* choice)
      : state_(*state),
        to_host_(*to_host),
        disk_(*disk),
        choice_(*choice),
        deletions_(state, choice) {}

  // Starts the writes that are allowed by now: first the blocks that the disk evicts next, then
  // those that have waited longest.
  void Tick();

  // Objects that the store is to delete.
  [[nodiscard]] ColdDeletions& deletions() { return deletions_; }

  // Blocks of the tenant are on their way to the store.
  [[nodiscard]] bool IsWriting(std::string_view tenant) const;
  // Nothing is being read from disk into memory of this part.
  [[nodiscard]] bool Idle() const { return disk_reads_ == 0; }

 private:
  struct Write {
    EntryRef entry;
    BlockKey key;
    SlotPlacement placement;  // the times in the object's header
    int64_t until_ms = 0;     // the object's end, of the age clock
    ColdPut how;
    HostPin pin;  // from host
    // From disk.
    SlotExpectation expected;
    AlignedBuffer buffer;
    SlotVerdict verdict = SlotVerdict::kGood;
    std::shared_ptr<ColdObject> object;
  };
  struct Sample {
    uint64_t part_rows;  // of the directory's parts, as many as the sample has copies at most
    uint64_t next = 0;
    std::vector<BlockKey> keys = {};
    std::set<BlockKey> written = {};  // before it was asked for, since the store was away
    bool is_asked_for = false;
  };
  using Writes = std::list<Write>;
  using Choice = ColdChoice::Choice;

  void WriteLeaving();
  void WriteIdle();
  // Without a disk, has host copy those of pools that come next in line.
  void BringDown();
  // Host is copying it, or will.
  [[nodiscard]] bool IsComing(EntryIndex entry) const;
  void Start(EntryIndex entry);
  void ReadFromHost(Writes::iterator write);
  void ReadFromDisk(Writes::iterator write);
  void OnDiskRead(Writes::iterator write, const Status& status);
  void Put(Writes::iterator write);
  void End(Writes::iterator write, const Status& status);
  void OnPut(Writes::iterator write, const Status& status);
  // A store that was away, if for one call, may have been restarted empty: asks for some of the
  // objects that it had before and, if it has none of these, counts on none of the others.
  void GatherSample();
  void AskForSample();
  void ForgetSomeCopies();

  CacheState& state_;
  OffloadQueue& to_host_;
  DiskSlots& disk_;
  ColdChoice& choice_;
  Writes writes_;
  uint64_t disk_reads_ = 0;
  bool was_away_ = false;         // the store, and no sample has been asked for since
  uint64_t lost_calls_ = 0;       // of the store, at the last tick
  int64_t next_sample_ms_ = 0;    // on the monotonic clock
  std::optional<Sample> sample_;  // until it is answered
  std::set<BlockKey> written_;    // since the store was away, and a sample was asked for
  // The next row whose copy the store has lost, with all others; beyond all: it has lost none.
  uint64_t next_forgotten_row_ = UINT64_MAX;
  ColdDeletions deletions_;
  Gate gate_;
};

}  // namespace kvtier
