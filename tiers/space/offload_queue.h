// SPDX-License-Identifier: Apache-2.0
// Blocks of pools that are to be copied to host, in the order in which they were asked for,
// until the offloader takes them.
#pragma once

#include <cstdint>
#include <deque>

#include "tiers/policy/tenant_queues.h"
#include "tiers/state/cache_state.h"
#include "tiers/state/in_flight.h"

namespace kvtier {

// Event loop only.
class OffloadQueue {
 public:
  using Lines = TenantQueues<EntryRef, CopyLine>;

  explicit OffloadQueue(CacheState* state) : state_(*state) {}

  // Asks for a copy of a pool's block in host, soon; touches the one there is. Does nothing if the
  // copy is being made, or cannot be.
  void Want(EntryIndex entry);
  // The same for bytes that come anew, although a copy of the block has failed before.
  void WantAnew(EntryIndex entry);
  // The same as Want before everything else, because another pool's load waits for it
  // (BlockEntry::loading). False if there is nothing to copy from, or if the copy is in host
  // already.
  [[nodiscard]] bool WantNow(EntryIndex entry);
  // The block has left its last pool: a copy that has not begun is wanted no more.
  void SourceGone(EntryIndex entry);
  // The block's offload has ended, or will not begin. If host does not have it, `reason` says why.
  void End(EntryIndex entry, MissReason reason = MissReason::kCancelled);

  // The offloader takes from these, the urgent ones first. They hold entries that are
  // offload_queued, and some that are no more.
  [[nodiscard]] Lines& queued() { return queued_; }
  [[nodiscard]] Lines& urgent() { return urgent_; }
  // Blocks that are being copied, until they are sealed.
  [[nodiscard]] InFlight& in_flight() { return in_flight_; }
  [[nodiscard]] const InFlight& in_flight() const { return in_flight_; }
  // May count blocks that will turn out to need no copy any more.
  [[nodiscard]] uint64_t size() const { return queued_.size() + urgent_.size(); }
  // To be called whenever more or less waits or is being copied.
  void NoteBusy() {
    state_.pressure.to_host_is_busy =
        in_flight_.bytes >= state_.options.max_offload_bytes && size() > 0;
  }

 private:
  // Unless host has the block, or is about to get it. REQUIRES: some pool has its bytes.
  void Queue(EntryIndex entry);

  CacheState& state_;
  Lines queued_;
  Lines urgent_;
  InFlight in_flight_;
};

}  // namespace kvtier
