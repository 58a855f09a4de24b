// SPDX-License-Identifier: Apache-2.0
// Makes what happened on disk durable in the right order: data and headers synced, then index
// entries; entries gone, then slots free. Groups whatever has gathered while a commit was under
// way.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

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
  enum class Slot : uint8_t { kFree, kKeep };
  // The block is no longer at `location`; the slot is freed afterwards unless kKeep.
  void Delete(const BlockKey& key, DiskLocation location, Slot slot);

  // Starts a commit if there is anything to commit and none is under way. True if it did.
  bool Pump();
  // Tries again after a failure; call now and then.
  void RetryAfterFailure() { failed_ = false; }

  [[nodiscard]] bool Idle() const { return !busy_ && !Pending(); }
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
  void SyncFiles();
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
  size_t syncs_left_ = 0;
  Status sync_status_;
  bool busy_ = false;
  bool failed_ = false;
};

}  // namespace kvtier
