// SPDX-License-Identifier: Apache-2.0
// Blocks that are to be written to disk, in the order in which they were asked for, until the
// persister takes them.
#pragma once

#include <cstdint>

#include "tiers/policy/tenant_queues.h"
#include "tiers/space/offload_queue.h"
#include "tiers/state/cache_state.h"

namespace kvtier {

// Event loop only.
class PersistQueue {
 public:
  using Lines = TenantQueues<EntryRef>;

  PersistQueue(CacheState* state, OffloadQueue* to_host) : state_(*state), to_host_(*to_host) {}

  // Asks for the block to be on disk. If its bytes are not in host yet, they are written as soon as
  // they are. Does nothing if the block is on disk, on its way there, or not to be persisted.
  void Want(EntryIndex entry);
  // The same, and its bytes come to host, if they are not there.
  void WantWithBytes(EntryIndex entry);
  // The block's bytes have arrived in host: a write that was asked for can begin.
  void SourceReady(EntryIndex entry);
  // The block will not be written: for that reason, which is counted, or because it need not be.
  void Fail(EntryIndex entry, DropReason reason);
  void Unqueue(EntryIndex entry);

  // The persister takes from these. They hold entries that are write_queued, and some that were.
  [[nodiscard]] Lines& lines() { return lines_; }
  [[nodiscard]] bool empty() const { return lines_.empty(); }
  [[nodiscard]] uint64_t size() const { return lines_.size(); }

 private:
  CacheState& state_;
  OffloadQueue& to_host_;
  Lines lines_;
};

}  // namespace kvtier
