// SPDX-License-Identifier: Apache-2.0
// Erases a tenant's blocks for good: first the keys of its encrypted data on disk, then the blocks
// themselves in every tier, its objects in the cold store, and at last the blocks that the store
// gave meanwhile.
//
// The index remembers the erasure before the first key goes, so that the next start finishes what a
// daemon that dies has begun. Then the keys go, so that nothing that happens later brings bytes on
// disk back. The directory is then walked in parts. A block that something moves is looked at again
// at the next tick. A reference does not keep a block: no lookup finds it any more, and its memory
// is free when the last session lets go of it. Token ids go at once, also those of a block that
// stays for a while.
//
// Keys of objects can be made by every host that has the root key, so that objects are deleted
// instead: all of the tenant's, those of other hosts and of later hours, too, since names tell no
// time. Other hosts may write their blocks again.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/gate.h"
#include "tiers/index/index.h"
#include "tiers/space/offload_queue.h"
#include "tiers/state/cache_state.h"
#include "tiers/types/cache_requests.h"

namespace kvtier {

class ColdWriter;
class DiskSlots;
class HostAdoption;
class HostSlots;
class PoolSpace;

// Event loop only. Several erasures wait for one another.
class Erasure {
 public:
  // With the error of the disk, the index or the cold store if they refuse to forget the blocks.
  using Done = std::function<void(const EraseReport&, const Status&)>;

  // All are borrowed; `cold_writer` is null without a cold store.
  Erasure(CacheState* state, OffloadQueue* to_host, PoolSpace* pools, HostSlots* host,
          DiskSlots* disk, const HostAdoption* adoption, ColdWriter* cold_writer)
      : state_(*state),
        to_host_(*to_host),
        pools_(*pools),
        host_(*host),
        disk_(*disk),
        adoption_(*adoption),
        cold_writer_(cold_writer) {}

  // See Cache::Erase.
  void Begin(const EraseRequest& request, Done done);
  // Goes on with what an earlier daemon began. Once, before anything else is begun. Puts of the
  // earlier one may yet be stored, if `may_follow_another`.
  void Resume(const std::vector<ErasureRecord>& begun, bool may_follow_another);
  // Goes on with what had to be waited for.
  void Tick();
  [[nodiscard]] bool Idle() const { return jobs_.empty(); }

 private:
  struct Job {
    uint32_t number = 0;  // in the index
    EraseRequest request;
    Done done;
    EraseReport report;
    Status status;
    uint32_t passes = 0;                      // since the adoption's end, or that of the objects
    bool noted = false;                       // the index has heard of it, or refused to
    uint64_t cursor = 0;                      // in the cold store
    uint32_t store_tries = 0;                 // since it last deleted some
    int64_t listed_ms = 0;                    // when it last began at cursor 0
    std::optional<int64_t> busy_until_ms;     // puts may come; it is given up then
    std::optional<uint32_t> objects_ended_s;  // when they were gone, or given up
  };

  // `begun_s` is a time of the age clock.
  void Add(uint32_t number, const EraseRequest& request, uint32_t begun_s, Done done);
  void OnNoted(uint32_t number, const Status& status);
  void DestroyKeys(Job* job);
  void BeginPass();
  // Takes the next part of the directory; then waits until the dropped blocks are gone from the
  // disk.
  void GoOn();
  void EndPass();
  void Finish();
  void PurgeTokens();
  [[nodiscard]] bool KeepsTokens(const std::string& tenant) const;
  void DeleteObjects();
  void OnDeleted(const Result<uint64_t>& next);
  void OnObjectsEnded();
  void Answer();
  void EndCovered();
  void Reply();
  // The tenant's objects, if it is one of a block that stays, are about to be deleted.
  void ForgetColdCopy(EntryIndex entry);
  // False if something moves the block.
  [[nodiscard]] bool Drop(EntryIndex entry, EraseReport* report);
  [[nodiscard]] bool InRegion(const BlockEntry& entry) const;
  void DropFromPools(EntryIndex entry, EraseReport* report);
  // A fetch from the cold store is under way that was asked for while there were objects.
  [[nodiscard]] bool MayComeBack(const BlockEntry& entry) const;
  void EraseTokens(EntryIndex entry);

  CacheState& state_;
  OffloadQueue& to_host_;
  PoolSpace& pools_;
  HostSlots& host_;
  DiskSlots& disk_;
  const HostAdoption& adoption_;
  ColdWriter* const cold_writer_;
  std::deque<Job> jobs_;  // the first is under way; in the order of CacheState::erasing
  // Erasures that have been answered and that the index may remember, by their numbers in it.
  std::vector<std::pair<uint32_t, EraseRequest>> unended_;
  uint32_t next_number_ = 0;
  uint64_t next_row_ = 0;
  uint64_t moving_ = 0;                      // blocks of this pass
  bool all_was_adopted_ = false;             // when this pass began
  bool waiting_ = false;                     // for a tick
  std::optional<int64_t> asks_store_at_ms_;  // with the next tick from then on
  Gate gate_;
};

}  // namespace kvtier
