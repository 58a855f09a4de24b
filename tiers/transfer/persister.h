// SPDX-License-Identifier: Apache-2.0
// Host to disk: which blocks are to be written, within the bytes in flight and the day's budget.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>

#include "tiers/policy/tenant_queues.h"
#include "tiers/space/disk_slots.h"
#include "tiers/state/cache_state.h"
#include "tiers/state/pins.h"
#include "tiers/transfer/write_admission.h"

namespace kvtier {

// Event loop only.
class Persister final : public CopyDown {
 public:
  Persister(CacheState* state, DiskSlots* disk) : state_(*state), disk_(*disk), admission_(state) {}

  // Asks for the block to be on disk, if it is worth it: else host may drop it. If its bytes are
  // not in host yet, they are written as soon as they are. Does nothing if the block is on disk, on
  // its way there, or not to be persisted.
  void Want(EntryIndex entry) override;
  // The same for a block that host need not drop yet. False if it is not worth it: that is decided
  // anew when host is to drop it, or when it has been used.
  [[nodiscard]] bool WantIfAdmitted(EntryIndex entry);
  void SourceReady(EntryIndex entry) override;
  // Nothing is to be done: dropping a block from host takes it out of the queue.
  void SourceGone(EntryIndex /*entry*/) override {}

  // Starts what can be started. True if anything was.
  bool Pump();

  [[nodiscard]] bool Idle() const { return queues_.empty() && writes_.empty(); }
  [[nodiscard]] uint64_t writes_in_flight() const { return writes_.size(); }
  [[nodiscard]] uint64_t waiting() const { return queues_.size(); }
  [[nodiscard]] uint64_t budget_left_bytes() const { return state_.write_budget.left_bytes(); }

 private:
  struct Write {
    HostPin pin;
    InFlightBytes in_flight;
  };
  void Ask(EntryIndex entry);
  enum class Step : uint8_t { kStarted, kSkipped, kWait };
  Step TryWrite(EntryRef block);
  // Whether a write may start beside those in flight: few do while reads are.
  [[nodiscard]] bool MayWrite(EntryRef next) const;
  // While not all can be written, has the next of the line be one whose ancestors are written or
  // being written: a block is worth nothing without them. False if there is more to look at than
  // one event may.
  bool PutPrefixFirst(std::deque<EntryRef>* line);
  // The block before it, if that is to be written yet and some tier has it; else kNoEntry.
  [[nodiscard]] EntryIndex UnwrittenParent(EntryIndex entry) const;
  void FailPersist(EntryIndex entry, DropReason reason);
  void Unqueue(EntryIndex entry);
  void StartWrite(EntryIndex entry);
  void OnWritten(EntryIndex entry, const Status& status);

  CacheState& state_;
  DiskSlots& disk_;
  WriteAdmission admission_;
  TenantQueues<EntryRef> queues_;  // entries that are write_queued, and some that were
  uint64_t climbed_ = 0;           // ancestors looked at in this call of Pump
  InFlight in_flight_;
  uint64_t read_bytes_before_write_ = 0;  // when the latest write began
  std::unordered_map<EntryIndex, Write> writes_;
};

}  // namespace kvtier
