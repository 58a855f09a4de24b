// SPDX-License-Identifier: Apache-2.0
// Pool to host: copies blocks down ahead of need, seals them with header and checksum.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "tiers/policy/tenant_queues.h"
#include "tiers/space/host_slots.h"
#include "tiers/state/cache_state.h"

namespace kvtier {

// Event loop only.
class Offloader final : public CopyDown {
 public:
  Offloader(CacheState* state, HostSlots* host)
      : state_(*state),
        host_(*host),
        queues_(state->tenants.rows()),
        urgent_(state->tenants.rows()) {}

  // Asks for a copy of a pool's block in host; freshens the one there is.
  void Want(EntryIndex entry) override;
  // The same before everything else, because another pool's load waits for it
  // (BlockEntry::loading). False if there is nothing to copy from, or if the copy is in host
  // already.
  [[nodiscard]] bool WantNow(EntryIndex entry);
  // Nothing is to be done: a copy is asked for when its pool has the bytes.
  void SourceReady(EntryIndex /*entry*/) override {}
  // The block has left its last pool.
  void SourceGone(EntryIndex entry) override;
  // Blocks that loads wait for and that are not, or no longer, on their way to host.
  [[nodiscard]] std::vector<EntryIndex> TakeEnded() { return std::exchange(ended_, {}); }
  // Starts what can be started. True if anything was.
  bool Pump();

  [[nodiscard]] bool Idle() const { return queued() == 0 && blocks_in_flight_ == 0; }
  [[nodiscard]] uint64_t in_flight() const { return blocks_in_flight_; }
  // May count blocks that will turn out to need no copy any more.
  [[nodiscard]] uint64_t queued() const { return queues_.size() + urgent_.size(); }

 private:
  struct Batch {
    CachePool* pool = nullptr;
    CopyPriority priority = CopyPriority::kBackground;
    std::vector<EntryIndex> entries;
    std::vector<PayloadChecksum> checksums;
    std::vector<std::span<const std::byte>> payloads;
    uint64_t bytes = 0;
  };

  // Takes from the line what goes into one copy request; null if nothing can start now.
  [[nodiscard]] std::shared_ptr<Batch> NextBatch(std::deque<EntryIndex>* line,
                                                 CopyPriority priority);
  // Host has no room for the block and will not have.
  void GiveUp(EntryIndex entry, DropReason reason);
  // The pool to copy from; null if there is nothing to do any more.
  [[nodiscard]] CachePool* SourceOf(EntryIndex entry);
  // Its offload has ended, or will not begin.
  void End(EntryIndex entry);
  void StartCopy(const std::shared_ptr<Batch>& batch);
  void OnCopied(const std::shared_ptr<Batch>& batch, const Status& status);
  void Finish(const Batch& batch);
  void TraceCopied(const Batch& batch, bool failed);
  // False if the bytes are not what the client said at commit.
  [[nodiscard]] bool MatchesCommit(const CachePool& pool, EntryIndex entry,
                                   const PayloadChecksum& checksum);
  void Seal(EntryIndex entry, const PayloadChecksum& checksum);

  CacheState& state_;
  HostSlots& host_;
  // Entries that are offload_queued, and some that have it no more.
  TenantQueues<EntryIndex> queues_;
  TenantQueues<EntryIndex> urgent_;
  std::vector<EntryIndex> ended_;
  uint64_t bytes_in_flight_ = 0;
  uint64_t blocks_in_flight_ = 0;
};

}  // namespace kvtier
