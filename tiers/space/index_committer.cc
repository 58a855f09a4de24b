// SPDX-License-Identifier: Apache-2.0
#include "tiers/space/index_committer.h"

#include <algorithm>
#include <span>
#include <unordered_set>
#include <utility>

#include "base/result.h"
#include "tiers/index/index_codec.h"
#include "tiers/types/block_key_hash.h"

namespace kvtier {
namespace {

// Recency updates in one index batch, so that one event does not gather those of all blocks.
constexpr size_t kUpdatesPerBatch = 2048;

}  // namespace

void IndexCommitter::Put(EntryIndex entry) {
  state_.Apply(entry, BlockEvent::kBeginCommit);
  puts_.push_back(entry);
}

void IndexCommitter::Delete(const BlockKey& key, DiskLocation location, Slot slot) {
  deletes_.push_back({key, location, slot});
  if (state_.token_ids.TakeStored(key)) token_deletes_.push_back(key);
  if (slot == Slot::kVoid) voider_.Expect();
}

// All deletions count, whatever their reason: the record of a block that a read error or its age
// took from the disk brings the block back as well.
void IndexCommitter::WhenDeleted(std::function<void(Status)> done) {
  if (!deletes_.empty() || !token_deletes_.empty()) return waiters_.push_back(std::move(done));
  if (!deletes_under_way_.empty() || !token_deletes_under_way_.empty()) {
    return waiters_under_way_.push_back(std::move(done));
  }
  voider_.WhenVoided(std::move(done));
}

// Data before index: files are synced before an entry may name a slot that was written. Deletions
// alone need no sync.
bool IndexCommitter::Pump() {
  const bool voids_begun = voider_.Pump();
  if (busy_ || failed_ || !Pending()) return voids_begun;
  busy_ = true;
  puts_under_way_.swap(puts_);
  deletes_under_way_.swap(deletes_);
  waiters_under_way_.swap(waiters_);
  token_deletes_under_way_.swap(token_deletes_);
  state_.trace.IndexCommitBegin(puts_under_way_.size(), deletes_under_way_.size());
  if (puts_under_way_.empty()) {
    ApplyBatch();
  } else {
    owner_.Sync([this](const Status& status) { status ? ApplyBatch() : Finish(status); });
  }
  return true;
}

void IndexCommitter::ApplyBatch() {
  state_.env.index->Apply(BuildBatch(), [this](const Status& status) { Finish(status); });
}

IndexBatch IndexCommitter::BuildBatch() {
  IndexBatch batch;
  namespaces_under_way_.clear();
  for (const EntryIndex index : puts_under_way_) {
    AddNamespace(state_[index].namespace_id, &batch);
    AddPut(index, &batch);
  }
  AddTrust(&batch);
  AddRecencyUpdates(&batch);
  AddDeletes(&batch);
  batch.token_deletes = token_deletes_under_way_;
  purge_under_way_ = std::exchange(purge_tokens_, false);
  batch.purge_tokens = purge_under_way_;
  if (!puts_under_way_.empty()) batch.budget = state_.write_budget.state();
  return batch;
}

void IndexCommitter::AddNamespace(NamespaceId id, IndexBatch* batch) {
  Namespace& name_space = state_.blocks.namespaces[id.value];
  if (std::exchange(name_space.indexed, true)) return;
  namespaces_under_way_.push_back(id);
  batch->namespaces.emplace_back(id, name_space.identity);
}

void IndexCommitter::AddTrust(IndexBatch* batch) {
  trust_under_way_ = std::exchange(trust_changes_, {});
  for (const NamespaceId id : trust_under_way_) {
    if (!state_.blocks.trust.Distrusts(id)) {
      batch->trusted.push_back(id);
      continue;
    }
    AddNamespace(id, batch);
    batch->distrusted.push_back(id);
  }
}

void IndexCommitter::AddPut(EntryIndex index, IndexBatch* batch) {
  BlockEntry& entry = state_[index];
  entry.indexed_use_s = entry.last_use_s;
  batch->puts.push_back({{entry.namespace_id, entry.hash},
                         entry.disk,
                         entry.disk_generation,
                         entry.depth,
                         state_.clock.ToWallS(entry.created_s),
                         state_.clock.ToWallS(entry.last_use_s),
                         entry.tokens,
                         entry.retention,
                         entry.verified(),
                         state_.blocks.ParentHashOf(index),
                         state_.pin_records.RecordedS(index)});
  const std::span<const uint32_t> token_ids = state_.token_ids.TakeUnstored(index);
  if (token_ids.empty()) return;
  batch->token_puts.push_back({{entry.namespace_id, entry.hash},
                               state_.clock.ToWallS(entry.created_s),
                               BytesOfTokenIds(token_ids)});
}

// A block that is deleted and written again within one batch stays: its new entry replaces the old
// one.
void IndexCommitter::AddDeletes(IndexBatch* batch) {
  if (deletes_under_way_.empty()) return;
  std::unordered_set<BlockKey, BlockKeyHash> rewritten;
  for (const IndexRecord& put : batch->puts) rewritten.insert(put.key);
  for (const Deletion& deletion : deletes_under_way_) {
    if (!rewritten.contains(deletion.key)) batch->deletes.push_back(deletion.key);
  }
}

void IndexCommitter::AddRecencyUpdates(IndexBatch* batch) {
  std::deque<EntryRef>& queue = state_.recency_updates;
  for (size_t taken = 0; taken < kUpdatesPerBatch && !queue.empty(); ++taken) {
    const EntryRef ref = queue.front();
    queue.pop_front();
    const EntryIndex index = state_.blocks.directory.Resolve(ref);
    if (index == kNoEntry || !state_[index].update_queued()) continue;
    state_.Apply(index, BlockEvent::kTakeUpdate);
    const BlockEntry& entry = state_[index];
    // A commit under way carries its times anyway.
    if (!entry.on_disk() || entry.committing()) continue;
    AddPut(index, batch);
    updates_under_way_.push_back(ref);
  }
}

// After a failure nothing is known of the batch: puts stay without entries until they are written
// again, deletions and namespaces are tried again.
void IndexCommitter::Finish(const Status& status) {
  busy_ = false;
  state_.trace.IndexCommitEnd(!status);
  state_.SchedulePump();
  refusals_ = status ? 0 : refusals_ + 1;
  if (!status) {
    ++state_.stats.index_errors;
    failed_ = true;
    for (const NamespaceId namespace_id : namespaces_under_way_)
      state_.blocks.namespaces[namespace_id.value].indexed = false;
    trust_changes_.insert(trust_changes_.end(), trust_under_way_.begin(), trust_under_way_.end());
  }
  owner_.OnCommitted(status);
  FinishPuts(status);
  FinishUpdates(status);
  FinishDeletes(status);
}

void IndexCommitter::FinishPuts(const Status& status) {
  for (const EntryIndex index : puts_under_way_) {
    // Without an index entry the block is served until the daemon stops, and found again only by a
    // rebuild from the headers.
    state_.Apply(index, status ? BlockEvent::kEndCommit : BlockEvent::kFailCommit);
    if (!status) state_.drops.Count(index, Tier::kDisk, DropReason::kWriteError);
    // It may have been used, much later, while its record was being written.
    state_.QueueUpdateIfBehind(index);
    if (status) NoteTokensStored(index);
    state_.ForgetIfGone(index);
  }
  puts_under_way_.clear();
}

void IndexCommitter::FinishUpdates(const Status& status) {
  for (const EntryRef ref : updates_under_way_) {
    const EntryIndex index = state_.blocks.directory.Resolve(ref);
    if (index == kNoEntry) continue;
    if (status) {
      NoteTokensStored(index);
      continue;
    }
    state_[index].indexed_use_s = 0;
    state_.QueueRecencyUpdate(index);
  }
  updates_under_way_.clear();
}

// They may have come while the record was being written without them.
void IndexCommitter::NoteTokensStored(EntryIndex index) {
  state_.token_ids.NoteStored(index);
  if (state_.token_ids.Unstored(index)) state_.QueueRecencyUpdate(index);
}

void IndexCommitter::FinishDeletes(const Status& status) {
  if (status) {
    for (const Deletion& deletion : deletes_under_way_) {
      if (deletion.slot == Slot::kFree) owner_.FreeSlot(deletion.location);
      if (deletion.slot == Slot::kVoid) voider_.Void(deletion.location);
    }
  } else {
    // The slots stay taken until their entries are gone.
    deletes_.insert(deletes_.begin(), deletes_under_way_.begin(), deletes_under_way_.end());
    token_deletes_.insert(token_deletes_.begin(), token_deletes_under_way_.begin(),
                          token_deletes_under_way_.end());
    purge_tokens_ |= purge_under_way_;
  }
  deletes_under_way_.clear();
  token_deletes_under_way_.clear();
  if (!status) return FailWaiters(status);
  for (auto& done : std::exchange(waiters_under_way_, {})) voider_.WhenVoided(std::move(done));
}

void IndexCommitter::FailWaiters(const Status& status) {
  voider_.OnIndexFailed(status);
  for (const auto& done : std::exchange(waiters_under_way_, {})) done(status);
  for (const auto& done : std::exchange(waiters_, {})) done(status);
}

}  // namespace kvtier
