// SPDX-License-Identifier: Apache-2.0
// Pool to host: copies blocks down ahead of need, in the order of OffloadQueue, and seals them with
// header and checksum.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <utility>
#include <vector>

#include "tiers/space/host_slots.h"
#include "tiers/space/offload_queue.h"
#include "tiers/state/cache_state.h"
#include "tiers/state/in_flight.h"
#include "tiers/state/pins.h"
#include "tiers/transfer/copy_batch.h"

namespace kvtier {

// Event loop only.
class Offloader {
 public:
  Offloader(CacheState* state, OffloadQueue* queue, HostSlots* host)
      : state_(*state), queue_(*queue), host_(*host), copies_(state, CopyLane::kPoolToHost) {}

  // Starts what can be started. True if anything was.
  bool Pump();

  [[nodiscard]] bool Idle() const { return queue_.size() == 0 && batches_.empty(); }
  [[nodiscard]] uint64_t in_flight() const { return queue_.in_flight().items; }

 private:
  // Blocks that are copied, and then sealed, together. A thread of the executor makes the
  // checksums.
  struct Batch {
    CopyBatch copies;
    CachePool* pool = nullptr;
    std::vector<EntryIndex> entries;
    std::vector<PoolPin> pins;
    std::vector<std::span<const std::byte>> payloads;
    std::vector<PayloadChecksum> checksums;
    InFlightBytes in_flight;  // blocks
    InFlightBytes of_line;    // pieces of blocks
  };
  using Batches = std::list<Batch>;

  // Takes from the line what goes into one copy request. Returns how many have left the line.
  [[nodiscard]] uint64_t StartBatch(std::deque<EntryRef>* line, CopyPriority priority);
  [[nodiscard]] uint64_t TakeBlocks(std::deque<EntryRef>* line, Batch* batch);
  // Ends the offload of a block that gets no host slot, and counts the reason.
  void FailOffload(EntryIndex entry, DropReason reason);
  // The pool to copy from; null if there is nothing to do any more.
  [[nodiscard]] CachePool* SourceOf(EntryRef block);
  void OnCopied(Batches::iterator batch, const Status& status);
  void Finish(Batches::iterator batch);
  void TraceCopied(const Batch& batch, bool failed);
  // False if the bytes differ from the client's at commit.
  [[nodiscard]] bool MatchesCommit(const CachePool& pool, EntryIndex entry,
                                   const PayloadChecksum& checksum);
  void Seal(EntryIndex entry, const PayloadChecksum& checksum);

  CacheState& state_;
  OffloadQueue& queue_;
  HostSlots& host_;
  CopyLimiter copies_;
  EventPart urgent_part_, queued_part_;
  // Blocks in flight by line: memory that is slow, or many pieces, hold up no other line's blocks.
  std::map<CopyLine, InFlight> of_lines_;
  Batches batches_;
};

}  // namespace kvtier
