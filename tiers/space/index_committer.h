// SPDX-License-Identifier: Apache-2.0
// Makes what happened on disk durable in the right order: data and headers synced, then index
// entries; entries gone, then slots free. Groups whatever has gathered while a commit was under
// way.
//
// A slot whose block was evicted by hand is voided, too: zeros replace its header. Otherwise a
// rebuild of the index from the headers would find the block again.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/bytes.h"
#include "tiers/state/cache_state.h"

namespace kvtier {

// Event loop only.
class IndexCommitter {
 public:
  // `free_slot` is called for each deleted location once its entry's deletion is durable.
  IndexCommitter(CacheState* state, std::function<void(DiskLocation)> free_slot)
      : state_(*state), free_slot_(std::move(free_slot)) {}

  // The entry's data is written; sets `committing` until it is durable and then `persisted`.
  void Put(EntryIndex entry);
  // What becomes of a slot when its index entry is gone: it is freed; it is never used again,
  // because its bytes are not to be trusted; its header is voided, durably, and then it is freed.
  enum class Slot : uint8_t { kFree, kKeep, kVoid };
  // The block is no longer at `location`.
  void Delete(const BlockKey& key, DiskLocation location, Slot slot);

  // Calls `done` when all evictions so far that void their slots are durable, in index and header:
  // at once if they are. With an error if the index or a file refuses; the attempts go on.
  void WhenVoided(std::function<void(Status)> done);

  // Starts a commit if there is anything to commit and none is under way. True if it did.
  bool Pump();
  // Tries again after a failure; call now and then.
  void RetryAfterFailure() { failed_ = void_failed_ = false; }

  [[nodiscard]] bool Idle() const { return !busy_ && !Pending() && voids_left_ == 0; }
  // The index refuses; nothing more should be written to disk for now.
  [[nodiscard]] bool failed() const { return failed_; }

 private:
  struct Deletion {
    BlockKey key;
    DiskLocation location;
    Slot slot;
  };

  [[nodiscard]] bool Pending() const {
    return !puts_.empty() || !deletes_.empty() || !state_.recency_updates.empty();
  }
  // Calls `done` once, with the first error if there was one.
  void SyncFiles(std::function<void(const Status&)> done);
  bool PumpVoids();
  void OnVoidWritten(const Status& status);
  void FinishVoids(const Status& status);
  void AnswerVoidWaiters(const Status& status);
  void ApplyBatch();
  [[nodiscard]] IndexBatch BuildBatch();
  void AddPut(EntryIndex entry, IndexBatch* batch);
  void AddRecencyUpdates(IndexBatch* batch);
  void Finish(const Status& status);
  void FinishPuts(const Status& status);
  void FinishUpdates(const Status& status);
  void FinishDeletes(const Status& status);

  CacheState& state_;
  std::function<void(DiskLocation)> free_slot_;
  std::vector<EntryIndex> puts_;  // gathering
  std::vector<Deletion> deletes_;
  std::vector<EntryIndex> puts_under_way_;
  std::vector<Deletion> deletes_under_way_;
  std::vector<EntryIndex> updates_under_way_;
  std::vector<NamespaceId> namespaces_under_way_;
  bool busy_ = false;
  bool failed_ = false;

  size_t voids_left_ = 0;                    // slots to be voided, their entries gone or not
  std::vector<DiskLocation> voids_waiting_;  // their entries are gone
  std::vector<DiskLocation> voids_under_way_;
  std::vector<std::function<void(Status)>> void_waiters_;
  AlignedBuffer zeros_;
  size_t void_writes_left_ = 0;
  Status void_status_;
  bool void_failed_ = false;
};

}  // namespace kvtier
