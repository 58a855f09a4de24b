// SPDX-License-Identifier: Apache-2.0
// Pool to host: copies blocks down ahead of need, seals them with header and checksum.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <utility>
#include <vector>

#include "tiers/policy/tenant_queues.h"
#include "tiers/space/host_slots.h"
#include "tiers/state/cache_state.h"
#include "tiers/transfer/copy_batch.h"

namespace kvtier {

// Event loop only.
class Offloader final : public CopyDown {
 public:
  Offloader(CacheState* state, HostSlots* host)
      : state_(*state), host_(*host), copies_(state, CopyDirection::kPoolToHost) {}

  // Asks for a copy of a pool's block in host; touches the one there is.
  void Want(EntryIndex entry) override;
  // The same for bytes that come anew, although a copy of the block has failed before.
  void WantAnew(EntryIndex entry);
  // The same as Want before everything else, because another pool's load waits for it
  // (BlockEntry::loading). False if there is nothing to copy from, or if the copy is in host
  // already.
  [[nodiscard]] bool WantNow(EntryIndex entry);
  // Nothing is to be done: a copy is asked for when its pool has the bytes.
  void SourceReady(EntryIndex /*entry*/) override {}
  // The block has left its last pool.
  void SourceGone(EntryIndex entry) override;
  // Blocks that loads wait for and that are not, or no longer, on their way to host.
  [[nodiscard]] std::vector<EntryRef> TakeEnded() { return std::exchange(ended_, {}); }
  // A region's block whose offload has ended. If host does not have it, `reason` says why.
  struct EndedStore {
    PoolId region;
    BlockHandle block;
    MissReason reason = MissReason::kCancelled;
  };
  [[nodiscard]] std::vector<EndedStore> TakeEndedStores() {
    return std::exchange(ended_stores_, {});
  }
  // Starts what can be started. True if anything was.
  bool Pump();

  [[nodiscard]] bool Idle() const { return queued() == 0 && batches_.empty(); }
  [[nodiscard]] uint64_t in_flight() const { return in_flight_.items; }
  // May count blocks that will turn out to need no copy any more.
  [[nodiscard]] uint64_t queued() const { return queues_.size() + urgent_.size(); }

 private:
  // To be called whenever more or less waits or is being copied.
  void NoteBusy() {
    state_.pressure.to_host_is_busy =
        in_flight_.bytes >= state_.options.max_offload_bytes && queued() > 0;
  }
  // Unless host has the block, or is about to get it. REQUIRES: some pool has its bytes.
  void Queue(EntryIndex entry);
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
    InFlightBytes of_tenant;  // pieces of blocks
  };
  using Batches = std::list<Batch>;

  // Takes from the line what goes into one copy request; false if nothing can start now.
  [[nodiscard]] bool StartBatch(std::deque<EntryRef>* line, CopyPriority priority);
  void TakeBlocks(std::deque<EntryRef>* line, Batch* batch);
  // Ends the offload of a block that gets no host slot, and counts the reason.
  void FailOffload(EntryIndex entry, DropReason reason);
  // The pool to copy from; null if there is nothing to do any more.
  [[nodiscard]] CachePool* SourceOf(EntryRef block);
  // Its offload has ended, or will not begin.
  // `reason` is for the engine whose region it is of, should host not have it.
  void End(EntryIndex entry, MissReason reason = MissReason::kCancelled);
  void OnCopied(Batches::iterator batch, const Status& status);
  void Finish(Batches::iterator batch);
  void TraceCopied(const Batch& batch, bool failed);
  // False if the bytes differ from the client's at commit.
  [[nodiscard]] bool MatchesCommit(const CachePool& pool, EntryIndex entry,
                                   const PayloadChecksum& checksum);
  void Seal(EntryIndex entry, const PayloadChecksum& checksum);

  CacheState& state_;
  HostSlots& host_;
  // Entries that are offload_queued, and some that have it no more.
  TenantQueues<EntryRef> queues_;
  TenantQueues<EntryRef> urgent_;
  std::vector<EntryRef> ended_;
  std::vector<EndedStore> ended_stores_;
  CopyLimiter copies_;
  InFlight in_flight_;  // until they are sealed
  // The same by tenant: memory that is slow, or many pieces, hold up no other tenant's blocks.
  std::map<TenantLine, InFlight> of_tenants_;
  Batches batches_;
};

}  // namespace kvtier
