// SPDX-License-Identifier: Apache-2.0
// Makes what happened on disk durable in the right order: data and headers synced, then index
// entries; entries gone, then slots free. Groups whatever has gathered while a commit was under
// way.
//
// The header of a slot whose block was evicted by hand is voided, too (HeaderVoider).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "tiers/space/header_voider.h"
#include "tiers/state/cache_state.h"

namespace kvtier {

// Event loop only.
class IndexCommitter {
 public:
  // Both are borrowed. `owner` gets back each slot that was deleted, once that is durable.
  IndexCommitter(CacheState* state, SlotOwner* owner)
      : state_(*state), owner_(*owner), voider_(state, owner) {}

  // The entry's data is written; sets `committing` until it is durable and then `persisted`.
  void Put(EntryIndex entry);
  // The fate of a slot when its index entry is gone: it is freed; it is never used again, because
  // its bytes are not to be trusted; its header is voided, durably, and then it is freed.
  enum class Slot : uint8_t { kFree, kKeep, kVoid };
  // The block is no longer at `location`.
  void Delete(const BlockKey& key, DiskLocation location, Slot slot);

  // The index forgets the token ids of the block, whose record may stay.
  void DeleteTokens(const BlockKey& key) { token_deletes_.push_back(key); }
  // The index learns whether the namespace is distrusted now.
  void PutTrust(NamespaceId whose) { trust_changes_.push_back(whose); }

  // With those that were deleted before, their bytes leave the index's files.
  void PurgeTokens() { purge_tokens_ = true; }

  // Calls `done` when no block, and no token ids, deleted so far can come back with the index, and
  // all headers to be voided are void: at once if that is so. With an error if the index refuses,
  // which is asked again, or if a file has refused a header too often.
  void WhenDeleted(std::function<void(Status)> done);

  // Starts a commit if there is anything to commit and none is under way. True if it did.
  bool Pump();
  // Tries again after a failure; call now and then.
  void Tick() {
    failed_ = false;
    voider_.Tick();
  }

  [[nodiscard]] bool Idle() const { return !busy_ && !Pending() && voider_.Idle(); }
  // The index refuses; nothing more should be written to disk for now.
  [[nodiscard]] bool failed() const { return failed_; }
  // It has refused so often in a row that none should wait for it any more.
  [[nodiscard]] bool refuses() const { return refusals_ >= kMostRefusals; }

 private:
  // About two seconds, since a tick lets it be tried again.
  static constexpr uint32_t kMostRefusals = 4;

  struct Deletion {
    BlockKey key;
    DiskLocation location;
    Slot slot;
  };

  [[nodiscard]] bool Pending() const {
    return !puts_.empty() || !deletes_.empty() || !token_deletes_.empty() ||
           !trust_changes_.empty() || !state_.recency_updates.empty();
  }
  void ApplyBatch();
  [[nodiscard]] IndexBatch BuildBatch();
  void AddPut(EntryIndex entry, IndexBatch* batch);
  void AddNamespace(NamespaceId id, IndexBatch* batch);
  void AddTrust(IndexBatch* batch);
  void AddDeletes(IndexBatch* batch);
  void AddRecencyUpdates(IndexBatch* batch);
  void Finish(const Status& status);
  void FinishPuts(const Status& status);
  void FinishUpdates(const Status& status);
  void FinishDeletes(const Status& status);
  void FailWaiters(const Status& status);
  void NoteTokensStored(EntryIndex entry);

  CacheState& state_;
  SlotOwner& owner_;
  HeaderVoider voider_;
  std::vector<EntryIndex> puts_;  // gathering
  std::vector<Deletion> deletes_;
  std::vector<BlockKey> token_deletes_;
  std::vector<EntryIndex> puts_under_way_;
  std::vector<Deletion> deletes_under_way_;
  std::vector<std::function<void(Status)>> waiters_;  // for `deletes_`, `token_deletes_`
  std::vector<std::function<void(Status)>> waiters_under_way_;
  std::vector<BlockKey> token_deletes_under_way_;
  std::vector<EntryRef> updates_under_way_;
  std::vector<NamespaceId> namespaces_under_way_;
  std::vector<NamespaceId> trust_changes_;
  std::vector<NamespaceId> trust_under_way_;
  bool purge_tokens_ = false;
  bool purge_under_way_ = false;
  bool busy_ = false;
  bool failed_ = false;
  uint32_t refusals_ = 0;  // in a row
};

}  // namespace kvtier
