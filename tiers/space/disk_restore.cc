// SPDX-License-Identifier: Apache-2.0
#include "tiers/space/disk_restore.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "tiers/index/index_codec.h"

namespace kvtier {
namespace {

// A process that dies may have written slots of which the index did not hear. The generations after
// the highest that it knows may be theirs, so that as many as can have been under way are left out:
// of two headers of one block, the one that was written later has the higher generation.
constexpr uint32_t kUnheardWrites = 1 << 16;

// An index that has lost its end knows of few generations, or none. The files have counted their
// starts, so that those of a later start are higher nevertheless, up to this one, unless earlier
// starts have written more blocks each than are left out for one.
constexpr uint64_t kMaxEpochCounted = (1 << 15) - 1;

}  // namespace

// Restores only namespaces that have records: the numbers of the others are given anew. A model
// that no block is of any more, as most weights of a training run, would else have its number for
// ever.
void DiskRestore::RestoreNamespaces(const IndexSnapshot& snapshot) {
  std::unordered_set<NamespaceId> used;
  for (const IndexRecord& record : snapshot.records) used.insert(record.key.namespace_id);
  for (const TokensRecord& tokens : snapshot.tokens) used.insert(tokens.key.namespace_id);
  const std::unordered_set<NamespaceId> distrusted(snapshot.distrusted.begin(),
                                                   snapshot.distrusted.end());
  for (const auto& [id, identity] : snapshot.namespaces) {
    const bool is_distrusted = distrusted.contains(id);
    if ((!used.contains(id) && !is_distrusted) || identity.block_bytes == 0) continue;
    Namespace name_space = state_.blocks.MakeNamespace(identity);
    name_space.indexed = true;
    // Slabs have become too small for it. Its records are still there, so that its number is not
    // free.
    if (!disk_.allocator().Fits(name_space.slot_bytes)) name_space.slot_bytes = 0;
    const TenantLine tenant = name_space.line;
    if (!state_.blocks.namespaces.Restore(id, std::move(name_space)) || !is_distrusted) continue;
    state_.blocks.trust.Distrust(id, tenant);
  }
}

// The majority's, by one pass (Boyer and Moore). The rest was written before its tenant, or that
// majority's, got slabs of its own, or is the header of a slot given up long ago; it stays until it
// is evicted or expires.
BySlab<DiskRestore::Vote> DiskRestore::GroupsOfSlabs(const IndexSnapshot& snapshot) const {
  const DiskGeometry& geometry = state_.env.geometry;
  BySlab<Vote> votes(geometry);
  for (const IndexRecord& record : snapshot.records) {
    if (record.key.namespace_id.value >= state_.blocks.namespaces.size() ||
        !geometry.Contains(record.location)) {
      continue;
    }
    const Namespace& name_space = state_.blocks.namespaces[record.key.namespace_id.value];
    const uint32_t group = state_.tenants.GroupOf(Tier::kDisk, name_space.tenant);
    Vote& vote = votes[geometry.SlabOf(record.location)];
    if (vote.lead == 0) vote.group = group;
    vote.lead = vote.group == group ? vote.lead + 1 : vote.lead - 1;
  }
  return votes;
}

void DiskRestore::Restore(IndexSnapshot snapshot) {
  RestoreNamespaces(snapshot);
  // Coldest first; of one sequence the deepest first.
  std::sort(snapshot.records.begin(), snapshot.records.end(),
            [](const IndexRecord& a, const IndexRecord& b) {
              return a.last_use_s != b.last_use_s ? a.last_use_s < b.last_use_s : a.depth > b.depth;
            });
  NoteAway(snapshot);
  const BySlab<Vote> groups = GroupsOfSlabs(snapshot);
  for (const IndexRecord& record : snapshot.records) RestoreRecord(record, groups);
  uint32_t generation = 1;
  for (const IndexRecord& record : snapshot.records) {
    generation = std::max(generation, record.generation + 1);
  }
  const uint64_t epoch = std::min(state_.env.disk_epoch, kMaxEpochCounted);
  disk_.NumberFrom(
      std::max(generation + kUnheardWrites, static_cast<uint32_t>(epoch) * kUnheardWrites));
  for (const IndexRecord& record : snapshot.records) RestoreParent(record);
  for (const TokensRecord& tokens : snapshot.tokens) RestoreTokens(tokens);
}

bool DiskRestore::IsAway(const IndexRecord& record) const {
  const uint32_t drive = state_.env.geometry.DriveOf(record.location);
  return (state_.env.drives_away >> drive & 1) != 0;
}

// The records of a drive that is away stay in the index as they are, for the start that has it
// back: a block that is written anew meanwhile replaces its record.
void DiskRestore::NoteAway(const IndexSnapshot& snapshot) {
  if (state_.env.drives_away == 0) return;
  for (const IndexRecord& record : snapshot.records) {
    if (!IsAway(record)) continue;
    away_.insert(record.key);
    KeepKey(record);
  }
}

void DiskRestore::KeepKey(const IndexRecord& record) {
  if (record.key.namespace_id.value >= state_.blocks.namespaces.size()) return;
  const Namespace& name_space = state_.blocks.namespaces[record.key.namespace_id.value];
  keys_.Keep(name_space.identity.tenant, record.created_s);
}

// Ids of a tenant of which none are kept any more leave the index's files, too.
void DiskRestore::RestoreTokens(const TokensRecord& tokens) {
  if (away_.contains(tokens.key)) return;
  const auto ids = TokenIdsOf(tokens.ids);
  if (ids && state_.token_ids.Restore(tokens.key, *ids)) return;
  disk_.committer().DeleteTokens(tokens.key);
  if (!state_.token_ids.Keeps(tokens.key.namespace_id)) disk_.committer().PurgeTokens();
}

// Once all are restored, so that a parent that has no record is known to be in no tier: what
// follows it cannot be hit, and is dropped unless the parent comes back in time. While a drive is
// away a parent may be there, and what follows it stays.
void DiskRestore::RestoreParent(const IndexRecord& record) {
  if (!record.parent || record.key.namespace_id.value >= state_.blocks.namespaces.size()) return;
  const EntryIndex index = state_.blocks.Find(record.key);
  if (index == kNoEntry) return;
  const BlockKey parent{record.key.namespace_id, *record.parent};
  if (state_.env.drives_away != 0 && state_.blocks.Find(parent) == kNoEntry) return;
  state_.LinkToParent(index, *record.parent);
}

void DiskRestore::RestoreRecord(const IndexRecord& record, const BySlab<Vote>& groups) {
  if (IsAway(record)) return;
  const bool namespace_known =
      record.key.namespace_id.value < state_.blocks.namespaces.size() &&
      state_.blocks.namespaces[record.key.namespace_id.value].slot_bytes > 0;
  if (!namespace_known || state_.blocks.Find(record.key) != kNoEntry) {
    state_.drops.Count(record.key, Tier::kDisk, DropReason::kStaleIndex);
    return;
  }
  const EntryIndex index =
      state_.AddEntry(record.key, record.tokens, record.depth, record.retention);
  BlockEntry& entry = state_[index];
  entry.created_s = state_.clock.FromWallS(record.created_s);
  // The clock was ahead: the entry will not tell when the block was written.
  if (entry.created_s != record.created_s) KeepKey(record);
  entry.last_use_s = entry.indexed_use_s = state_.clock.FromWallS(record.last_use_s);
  const DiskGeometry& geometry = state_.env.geometry;
  const bool is_there = geometry.Contains(record.location);
  const uint32_t group = is_there ? groups[geometry.SlabOf(record.location)].group : 0;
  if (!disk_.Adopt(index, record, group)) return;
  state_.pin_records.Restore(index, record.pinned_until_s);
  state_.infinite_cache.Store(record.key.namespace_id, record.key.hash);
  if (state_.Expired(entry)) {
    disk_.Drop(index, DropReason::kExpired);
  } else {
    ++state_.stats.restored_blocks;
  }
}

}  // namespace kvtier
