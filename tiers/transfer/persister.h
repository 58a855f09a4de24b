// SPDX-License-Identifier: Apache-2.0
// Host to disk: writes blocks in the order of PersistQueue, within the bytes in flight and the
// day's budget.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>

#include "tiers/space/disk_slots.h"
#include "tiers/space/persist_queue.h"
#include "tiers/state/cache_state.h"
#include "tiers/state/in_flight.h"
#include "tiers/state/pins.h"

namespace kvtier {

// Event loop only.
class Persister {
 public:
  Persister(CacheState* state, PersistQueue* queue, DiskSlots* disk)
      : state_(*state), queue_(*queue), disk_(*disk) {}

  // Starts what can be started. True if anything was.
  bool Pump();

  [[nodiscard]] bool Idle() const { return queue_.empty() && writes_.empty(); }
  [[nodiscard]] uint64_t writes_in_flight() const { return writes_.size(); }
  [[nodiscard]] uint64_t budget_left_bytes() const { return state_.write_budget.left_bytes(); }

 private:
  struct Write {
    HostPin pin;
    InFlightBytes in_flight;
  };
  // How far the search for the beginning of one long sequence has come, a part in each event.
  struct Climb {
    EntryRef from;  // the next of its line
    EntryRef reached;
    uint64_t pump = 0;  // EventParts::pumps of the latest part
  };
  enum class Step : uint8_t { kStarted, kSkipped, kWait };
  Step TryWrite(EntryRef block);
  // Whether a write may start beside those in flight: few do while reads are.
  [[nodiscard]] bool MayWrite(EntryRef next) const;
  // While not all can be written, has the next of the line be one whose ancestors are written or
  // being written: a block is worth nothing without them. False if there is more to look at than
  // one event may.
  bool PutPrefixFirst(std::deque<EntryRef>* line);
  enum class Climbed : uint8_t {
    kAll,     // up to the first of its sequence
    kGoesOn,  // in an event of its own
    kEnough,  // the event's part is used up: no more until something has ended
  };
  // Adds the unwritten ancestors of the next of a line, the first of the sequence last.
  Climbed ClimbFrom(EntryRef next, std::vector<EntryRef>* ancestors);
  // The block before it, if that is unwritten; else kNoEntry.
  [[nodiscard]] EntryIndex UnwrittenParent(EntryIndex entry) const;
  // It is to be written yet, and some tier has it.
  [[nodiscard]] bool IsUnwritten(EntryIndex entry) const;
  void StartWrite(EntryIndex entry);
  void OnWritten(EntryIndex entry, const Status& status);

  CacheState& state_;
  PersistQueue& queue_;
  DiskSlots& disk_;
  EventPart part_;
  uint64_t climbed_ = 0;  // ancestors looked at in this call of Pump
  Climb climb_;
  InFlight in_flight_;
  uint64_t read_bytes_before_write_ = 0;  // when the latest write began
  std::unordered_map<EntryIndex, Write> writes_;
};

}  // namespace kvtier
