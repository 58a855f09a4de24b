// SPDX-License-Identifier: Apache-2.0
#include "tiers/state/cache_state.h"

#include <algorithm>
#include <utility>

#include "base/result.h"
#include "tiers/state/cold_copies.h"
#include "tiers/storage/slot_header.h"

namespace kvtier {
namespace {

// A block in steady use has its record in the index rewritten this often per time to live: so far
// may its last use be behind after a crash.
constexpr int64_t kRecencyWrites = 32;
// The table beside host memory learns of a block's uses once in so many seconds: so far may its
// last use be behind after a death. A block that is used again and again costs nothing in between.
constexpr uint32_t kTableRecencyS = 8;

}  // namespace

CacheState::CacheState(const CacheOptions& cache_options, CacheEnvironment environment,
                       const WriteBudgetState& spent, LoopTask* pump, LoopTask* next_part)
    : options(cache_options),
      env(std::move(environment)),
      clock(env.clock),
      write_budget(env.clock, options.disk_write_budget_bytes_per_day, spent),
      tenants(options),
      orders(
          tenants.rows(), {.disk = has_disk(), .cold = env.cold != nullptr},
          [this](EntryIndex entry) {
            const bool spared = pressure.spares_awaited && Awaited(entry) &&
                                !blocks.IsShared(blocks.TenantOf(blocks[entry]));
            if (spared) ++pressure.awaited_spared;
            return spared;
          },
          [this](EntryIndex entry) { return blocks.NamespaceOf(blocks[entry]).slot_bytes; }),
      parts(&options, pump, next_part) {}

void CacheState::AddPlace(CachePool* pool, BlockIndex block) {
  blocks.AddPlace(pool, block);
  NoteChange(pool);
  NotePresence(pool->blocks[block].entry);
}

void CacheState::BeginLoad(CachePool* pool, EntryIndex index) {
  pool->blocks.BeginLoad(blocks.BlockIn(*pool, blocks[index]));
  Apply(index, BlockEvent::kBeginLoad);
}

void CacheState::EndLoad(CachePool* pool, EntryIndex index) {
  const BlockIndex block = blocks.BlockIn(*pool, blocks[index]);
  pool->blocks.EndLoad(block);
  if (!blocks.Awaited(index)) Apply(index, BlockEvent::kEndLoad);
  const bool evictable = pool->blocks[block].cached();
  if (evictable && !pool->is_region) pool->victims.Insert(index, blocks.FactsOf(index));
  NoteChange(pool);
  NotePresence(index);
}

BlockIndex CacheState::RemovePlace(CachePool* pool, EntryIndex index) {
  const BlockIndex block = blocks.RemovePlace(pool, index);
  pool->victims.Remove(index);
  if (!blocks[index].in_pool()) Apply(index, BlockEvent::kAllowOffload);
  NotePresence(index);
  return block;
}

EntryIndex CacheState::AddEntry(const BlockKey& key, uint16_t tokens, uint32_t depth,
                                RetentionClass retention) {
  EntryIndex index = blocks.lost.empty() ? kNoEntry : blocks.directory.Find(key);
  const bool was_lost = index != kNoEntry;
  if (was_lost) {
    KVT_CHECK(blocks.lost.Contains(index));
    blocks.lost.Remove(index);
    ++blocks.returned;
    // A refusal of then concerns it no more.
    Apply(index, BlockEvent::kAllowPersist);
  } else {
    index = blocks.directory.Insert(key);
  }
  BlockEntry& entry = blocks.directory[index];
  entry.tokens = tokens;
  entry.uses = 0;
  CountUsesAnew(index);
  // Blocks are linked by their depths: what follows the block relies on the one that it had.
  if (!was_lost) entry.depth = depth;
  entry.retention = retention;
  entry.is_copy = false;
  entry.created_s = entry.last_use_s = clock.NowS();
  orders.AgesOf(blocks.TenantOf(entry), entry.retention).PushHot(index);
  token_ids.NoteAdded(index);
  return index;
}

void CacheState::LinkToParent(EntryIndex index, const BlockHash& parent_hash) {
  const BlockEntry& entry = blocks.directory[index];
  if (entry.depth == 0 || blocks.lineage.ParentOf(index) != kNoEntry) return;
  const BlockKey key{entry.namespace_id, parent_hash};
  // Sequences are mostly committed in their order: the parent's row is the one before.
  EntryIndex parent = blocks.directory.FindAfter(EntryIndex(index.value - 2), key);
  if (parent == kNoEntry) {
    parent = blocks.directory.Insert(key);
    blocks.directory[parent].depth = entry.depth - 1;
    blocks.directory[parent].last_use_s = clock.NowS();
    blocks.lost.PushHot(parent);
  }
  LinkToParent(index, parent);
  if (blocks.lost.Contains(parent) && !blocks.lineage.HasChildren(parent)) Erase(parent);
}

void CacheState::LinkToParent(EntryIndex index, EntryIndex parent) {
  // Each link goes up by one: without this a client could make a circle of its blocks.
  if (blocks.lineage.ParentOf(index) != kNoEntry || blocks.directory[index].depth == 0 ||
      blocks.directory[parent].depth != blocks.directory[index].depth - 1) {
    return;
  }
  blocks.lineage.Link(index, parent);
  if (!blocks.directory[index].hinted()) ForgetHint(parent);
}

void CacheState::Use(CachePool* pool, EntryIndex index) {
  BlockEntry& entry = blocks.directory[index];
  ++entry.uses;
  if (entry.recent_uses < BlockEntry::kMostRecentUses) ++entry.recent_uses;
  Apply(index, BlockEvent::kAllowPersist);
  if (!entry.Has(EntryBits::kOnce)) ForgetHint(index);
  orders.ForgetReturn(index);
  const uint32_t before_s = entry.last_use_s;
  Touch(index);
  stats.reuse_gap.ObserveMs((int64_t{entry.last_use_s} - before_s) * 1000);
  pool->victims.NoteUse(blocks.FactsOf(index));
}

// The index and the table beside host learn of other uses once in a while, but of this one now: the
// block may be at the end of its maximum age. An encrypted slot on disk can be read for as long as
// there is the key of the hour in which it was made, and no hour but that of the block's age is
// known of it: with such a slot the block grows no younger. One that only lower tiers had counts
// its uses anew, as it would if it had been read from there.
void CacheState::UseComputedAnew(CachePool* pool, EntryIndex index, RetentionClass retention) {
  BlockEntry& entry = blocks.directory[index];
  if (retention == RetentionClass::kExtended && entry.retention != retention) {
    orders.AgesOf(blocks.TenantOf(entry), entry.retention).Remove(index);
    const BlockEntry before = entry;
    entry.retention = retention;
    NotePinnedSlabs(before, entry);
    orders.AgesOf(blocks.TenantOf(entry), entry.retention).PushHot(index);
  }
  if (env.keys == nullptr || !entry.has_disk_slot()) entry.created_s = clock.NowS();
  ForgetHint(index);
  const bool in_memory = entry.in_pool() || entry.in_host();
  Use(pool, index);
  if (!in_memory) CountUsesAnew(index);
  tables.Update(index);
  QueueRecencyUpdate(index);
}

// Blocks after one that is of use may stay hinted, none before it: a block is nothing without those
// before it. Each step takes back a hint, so that a client pays for its own hints.
void CacheState::ForgetHint(EntryIndex index) {
  for (; index != kNoEntry && blocks.directory[index].hinted();
       index = blocks.lineage.ParentOf(index)) {
    Apply(index, BlockEvent::kForgetHint);
    QueueIfUndecided(index);
  }
}

// A block on its way to host, or through it, has the place that its movement gave it.
void CacheState::Reorder(EntryIndex index) {
  const BlockEntry& entry = blocks.directory[index];
  if (entry.pinned()) return;
  blocks.ForEachPlace(entry, [&](CachePool& pool, BlockIndex) {
    if (!pool.victims.Contains(index)) return;
    pool.victims.Touch(index, blocks.FactsOf(index));
    NoteChange(&pool);
  });
  if (entry.in_host() && !entry.loading())
    orders.ReorderInHost(blocks.TenantOf(entry), index, entry);
}

std::optional<BlockFacts> CacheState::FactsIfAwaited(EntryIndex index) const {
  if (!Awaited(index)) return std::nullopt;
  BlockFacts facts = blocks.FactsOf(index);
  facts.last_use_s = clock.NowS();
  return facts;
}

void CacheState::Touch(EntryIndex index) {
  BlockEntry& entry = blocks.directory[index];
  const uint32_t before_s = std::exchange(entry.last_use_s, clock.NowS());
  orders.AgesOf(blocks.TenantOf(entry), entry.retention).Touch(index);
  if (orders.unpersisted.Contains(index)) orders.unpersisted.Touch(index);
  // A write that failed may be worth another try now.
  QueueIfUndecided(index);
  if (env.cold != nullptr && !ColdCopyLasts(*this, index)) orders.EnterColdLine(index, entry);
  if (before_s / kTableRecencyS != entry.last_use_s / kTableRecencyS) tables.Update(index);
  if (!entry.has_disk_slot() && !entry.persist_wanted()) return;
  orders.TouchDisk(blocks.TenantOf(entry), index, entry);
  QueueUpdateIfBehind(index);
}

void CacheState::Pin(EntryIndex index, SessionId holder, int64_t until_ms) {
  const uint32_t before_s = pin_records.RecordedS(index);
  Apply(index, BlockEvent::kPin);
  orders.pins.Set(index, holder, until_ms);
  pin_records.Note(index, before_s);
}

void CacheState::Unpin(EntryIndex index, SessionId holder) {
  const uint32_t before_s = pin_records.RecordedS(index);
  orders.pins.Release(index, holder);
  if (orders.pins.Contains(index)) return pin_records.Note(index, before_s);
  Apply(index, BlockEvent::kUnpin);
  pin_records.Note(index, before_s);
}

void CacheState::NotePinnedSlabs(const BlockEntry& before, const BlockEntry& after) {
  blocks.ForEachPlace(after, [](CachePool& pool, BlockIndex) { pool.victims.LookAnew(); });
  const uint64_t bytes = blocks.NamespaceOf(after).slot_bytes;
  if (before.pinned() != after.pinned()) {
    const uint64_t more_bytes = after.pinned() ? bytes : -bytes;
    tenants.NotePinned(blocks.TenantOf(after), more_bytes);
    usage.NotePinned(blocks.LineOf(after), more_bytes);
  }
  const auto note = [&](Tier tier, PinnedSlabs* slabs, uint64_t address) {
    const bool held = HoldsSlab(tier, before);
    const bool holds = HoldsSlab(tier, after);
    if (holds && !held) slabs->Add(address / options.slab_bytes, bytes);
    if (held && !holds) slabs->Remove(address / options.slab_bytes, bytes);
  };
  note(Tier::kHost, &pinned_slabs.host, after.host_slot.value * kHostSlotUnit);
  note(Tier::kDisk, &pinned_slabs.disk, after.disk.offset);
}

void CacheState::QueueUpdateIfBehind(EntryIndex index) {
  const BlockEntry& entry = blocks.directory[index];
  const int64_t behind_ms = (int64_t{entry.last_use_s} - entry.indexed_use_s) * 1000;
  const int64_t ttl_ms = tenants.TtlMs(blocks.TenantOf(entry), RetentionClass::kExtended);
  if (behind_ms * kRecencyWrites > ttl_ms) QueueRecencyUpdate(index);
}

void CacheState::QueueRecencyUpdate(EntryIndex index) {
  const BlockEntry& entry = blocks.directory[index];
  if (entry.update_queued() || !entry.in_index() || entry.committing()) return;
  Apply(index, BlockEvent::kQueueUpdate);
  recency_updates.push_back(blocks.directory.RefOf(index));
}

// Times are compared on the age clock, so that setting the wall clock expires nothing. Pinned
// blocks do not expire.
bool CacheState::Expired(const BlockEntry& entry) const {
  return !entry.pinned() && clock.AgeMs() > ExpiryMs(entry);
}

int64_t CacheState::ExpiryMs(const BlockEntry& entry) const {
  const TenantId tenant = blocks.TenantOf(entry);
  const int64_t by_use_ms =
      int64_t{entry.last_use_s} * 1000 + tenants.TtlMs(tenant, entry.retention);
  const int64_t max_age_ms = tenants.MaxAgeMs(tenant);
  if (max_age_ms == 0) return by_use_ms;
  return std::min(by_use_ms, int64_t{entry.created_s} * 1000 + max_age_ms);
}

// Sessions may still hold the block, and it must not be given to others while they do: it is
// orphaned then, and becomes free with its last reference.
void CacheState::LosePoolBlock(CachePool* pool, EntryIndex index) {
  const BlockIndex block = RemovePlace(pool, index);
  if (pool->blocks[block].references() > 0) {
    pool->blocks.Orphan(block);
  } else {
    pool->blocks.Free(block, nullptr);
  }
}

void CacheState::ForgetIfGone(EntryIndex index) {
  const BlockEntry& entry = blocks.directory[index];
  if (!entry.gone() || blocks.lost.Contains(index)) return;
  orders.AgesOf(blocks.TenantOf(entry), entry.retention).Remove(index);
  orders.unpersisted.Remove(index);
  orders.cold_line.Remove(index);
  if (entry.pinned()) Unpin(index);
  Apply(index, BlockEvent::kUnwantPersist);
  Apply(index, BlockEvent::kForgetHint);
  orders.ForgetReturn(index);
  token_ids.Forget(index);
  const EntryIndex parent = blocks.lineage.ParentOf(index);
  blocks.lineage.Unlink(index);
  if (blocks.lineage.HasChildren(index)) {
    blocks.directory[index].last_use_s = clock.NowS();
    blocks.lost.PushHot(index);
  } else {
    Erase(index);
  }
  // A lost block is known for the sake of what follows it.
  if (parent != kNoEntry && blocks.lost.Contains(parent) && !blocks.lineage.HasChildren(parent))
    Erase(parent);
}

void CacheState::Erase(EntryIndex index) {
  blocks.lost.Remove(index);
  Apply(index, BlockEvent::kForget);
  if (env.events != nullptr) presence.Forget(index);
  blocks.trust.NoteGone(index);
  blocks.directory.Erase(index);
}

}  // namespace kvtier
