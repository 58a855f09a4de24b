// SPDX-License-Identifier: Apache-2.0
// Disk and cold store to host: reads blocks into the slots that they have been given, and checks
// them.
//
// The bytes of a read are checked before the loop hears of it (BlockFile::ReadAndCheck), and many
// reads end in one event.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <span>

#include "base/gate.h"
#include "tiers/blocks/block_ends.h"
#include "tiers/cold/cold_object.h"
#include "tiers/space/disk_slots.h"
#include "tiers/space/host_slots.h"
#include "tiers/state/cache_state.h"
#include "tiers/state/in_flight.h"
#include "tiers/storage/slot_header.h"
#include "tiers/transfer/cold_deletions.h"

namespace kvtier {

// One block from the cold store into its host slot. Event loop only. Used by the loader alone, and
// only if there is a cold store.
class ColdFetch {
 public:
  // Both are borrowed.
  ColdFetch(CacheState* state, ColdDeletions* deletions) : state_(*state), deletions_(deletions) {}

  // Asks the store for the block's object, checks it on the executor and copies it into `slot` if
  // it is the block's. `done` is called once, from a later event; until then `expected` and `slot`
  // stay as they are.
  void Begin(const SlotExpectation& expected, std::span<std::byte> slot,
             std::function<void(const ColdVerdict&)> done);
  // Takes the fetched block as the entry's, with the times of its header, unless it has expired by
  // them. Returns why the block is a miss, or kNone, and counts. An object that is no block any
  // more is deleted.
  [[nodiscard]] MissReason Accept(EntryIndex entry, const ColdVerdict& verdict, uint64_t bytes);

 private:
  void LearnPlace(EntryIndex entry, uint32_t depth, const BlockHash& parent);

  CacheState& state_;
  ColdDeletions* const deletions_;
  Gate gate_;
};

// Event loop only.
class Reader {
 public:
  // A read may be for a pool that awaits the block, or for host alone.
  enum class For : uint8_t { kPool, kHost };

  // `listener` hears of each read when host has the bytes, or has given the slot back (kRead).
  // Reads for host alone are told to all, too (kReadAhead). `deletions` is null without a cold
  // store.
  Reader(CacheState* state, HostSlots* host, DiskSlots* disk, ColdDeletions* deletions,
         BlockListener* listener)
      : state_(*state),
        host_(*host),
        disk_(*disk),
        listener_(*listener),
        fetch_(state, deletions) {}

  // REQUIRES: the block is on disk, or offered by the cold store; it has a slot in host that is not
  // ready, and is not being read.
  void ReadFromDisk(EntryIndex entry, For whom);
  void FetchFromCold(EntryIndex entry);

  [[nodiscard]] uint64_t in_flight() const { return reads_.size(); }
  [[nodiscard]] uint64_t disk_bytes() const { return from_disk_.bytes; }
  [[nodiscard]] uint64_t cold_bytes() const { return from_cold_.bytes; }

 private:
  // One block on its way. The thread that checks it sets the verdict and the time at which it
  // began; the loop looks at them when the read has ended.
  struct Read {
    EntryIndex entry;
    For whom = For::kPool;
    int attempt = 1;
    SlotExpectation expected;
    std::span<std::byte> slot;
    SlotVerdict verdict = SlotVerdict::kGood;
    int64_t check_begun_us = 0;  // 0: nothing is traced
    InFlightBytes in_flight;
  };
  using Reads = std::list<Read>;

  void Issue(Reads::iterator read);
  void OnRead(Reads::iterator read, const Status& status);
  void OnVerified(Reads::iterator read);
  void OnFetched(Reads::iterator read, const ColdVerdict& verdict);
  void OnFailed(Reads::iterator read, const Status& status, MissReason miss);
  // Host has the bytes.
  void Arrive(EntryIndex entry, For whom);
  // The block is no longer being read; `read` is invalid afterwards.
  void End(Reads::iterator read);
  void Tell(const BlockEnd& end, For whom);

  CacheState& state_;
  HostSlots& host_;
  DiskSlots& disk_;
  BlockListener& listener_;
  ColdFetch fetch_;
  InFlight from_disk_;
  InFlight from_cold_;
  Reads reads_;
};

}  // namespace kvtier
