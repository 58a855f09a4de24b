// SPDX-License-Identifier: Apache-2.0
#include "tiers/state/cache_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/result.h"
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
                       const WriteBudgetState& spent)
    : options(cache_options),
      env(std::move(environment)),
      write_budget(env.clock, options.disk_write_budget_bytes_per_day, spent),
      tenants(options),
      disk_admission(tenants.rows()),
      orders(tenants.rows(), has_disk(),
             [this](EntryIndex entry) {
               return Awaited(entry) && !IsShared(TenantOf(directory[entry]));
             }),
      age_clock_offset_ms_(env.clock->WallMs() - env.clock->MonotonicMs()) {}

uint32_t CacheState::ToWallS(uint32_t age_clock_s) const {
  // Rounded, because the two clocks are read one after the other.
  const int64_t step_s = (WallStepMs() + (WallStepMs() < 0 ? -500 : 500)) / 1000;
  return static_cast<uint32_t>(std::max<int64_t>(int64_t{age_clock_s} + step_s, 0));
}

uint32_t CacheState::FromWallS(uint32_t wall_s) const { return std::min(wall_s, NowS()); }

uint32_t CacheState::NowDs() const { return static_cast<uint32_t>(env.clock->MonotonicMs() / 100); }

std::optional<NamespaceId> CacheState::FindNamespace(const NamespaceIdentity& identity) const {
  const auto found = std::ranges::find(namespaces, identity, &Namespace::identity);
  if (found == namespaces.end()) return std::nullopt;
  return NamespaceId(static_cast<uint32_t>(found - namespaces.begin()));
}

// There are as many as models times tenants: a search through all of them is short.
Result<NamespaceId> CacheState::InternNamespace(const NamespaceIdentity& identity) {
  if (const auto known = FindNamespace(identity)) return *known;
  Namespace name_space = MakeNamespace(identity);
  if (name_space.slot_bytes + kSlabHeaderBytes > options.slab_bytes) {
    return MakeError(ErrorCode::kInvalidArgument, "block_too_large",
                     fmt::format("a block of {} bytes and its headers do not fit into slab_bytes "
                                 "= {}",
                                 identity.block_bytes, options.slab_bytes));
  }
  namespaces.push_back(std::move(name_space));
  return NamespaceId(static_cast<uint32_t>(namespaces.size() - 1));
}

Namespace CacheState::MakeNamespace(const NamespaceIdentity& identity) const {
  return {.identity = identity,
          .slot_bytes = SlotBytes(identity.block_bytes),
          .tenant = tenants.Find(identity.tenant),
          .token_share = token_ids.ShareOf(identity.tenant)};
}

CachePool* CacheState::FindPool(PoolId id) {
  return id.value < pools.size() ? pools[id.value].get() : nullptr;
}

// The numbers of closed pools are used again, so that an engine that opens and closes regions does
// not make the table grow. No session can name a region that is not its own, and a pool is closed
// when no session can name it any more.
CachePool* CacheState::AddPool(std::unique_ptr<CachePool> pool) {
  CachePool*& slot = namespaces[pool->namespace_id.value].pools[pool->slot.value];
  KVT_CHECK(slot == nullptr);
  const auto free = std::ranges::find_if(pools, [](const auto& known) { return !known; });
  pool->id = PoolId(static_cast<uint32_t>(free - pools.begin()));
  if (free == pools.end()) {
    pools.push_back(std::move(pool));
    return slot = pools.back().get();
  }
  *free = std::move(pool);
  return slot = free->get();
}

void CacheState::RemovePool(CachePool* pool) {
  KVT_CHECK(pool->blocks.free() == pool->blocks.size());
  KVT_CHECK(pool->sessions + pool->ended_sessions + pool->operations == 0);
  namespaces[pool->namespace_id.value].pools[pool->slot.value] = nullptr;
  pools[pool->id.value].reset();
}

BlockIndex CacheState::BlockIn(const CachePool& pool, const BlockEntry& entry) const {
  PoolPlace place = entry.place;
  while (place != kNoPlace && place.pool() != pool.slot) {
    const CachePool& holder = *namespaces[entry.namespace_id.value].pools[place.pool().value];
    place = holder.blocks[place.block()].elsewhere;
  }
  return place == kNoPlace ? kNoBlock : place.block();
}

// A pool whose block is still loading is no source: its bytes are not there yet.
CachePool* CacheState::ReadyPool(const BlockEntry& entry) const {
  CachePool* ready = nullptr;
  ForEachPlace(entry, [&](CachePool& pool, BlockIndex block) {
    if (ready == nullptr && !pool.blocks[block].loading()) ready = &pool;
  });
  return ready;
}

uint32_t CacheState::References(const BlockEntry& entry) const {
  uint32_t references = 0;
  ForEachPlace(entry, [&](const CachePool& pool, BlockIndex block) {
    references += pool.blocks[block].references();
  });
  return references;
}

void CacheState::AddPlace(CachePool* pool, BlockIndex block) {
  PoolBlock& record = pool->blocks[block];
  BlockEntry& entry = directory[record.entry];
  // An entry has one block in a pool at most, or the list of its places would name one twice.
  KVT_CHECK(BlockIn(*pool, entry) == kNoBlock);
  record.elsewhere = entry.place;
  entry.place = PoolPlace(pool->slot, block);
  NotePresence(record.entry);
}

void CacheState::BeginLoad(CachePool* pool, EntryIndex index) {
  pool->blocks.BeginLoad(BlockIn(*pool, directory[index]));
  Apply(index, BlockEvent::kBeginLoad);
}

void CacheState::EndLoad(CachePool* pool, EntryIndex index) {
  pool->blocks.EndLoad(BlockIn(*pool, directory[index]));
  bool awaited = false;
  ForEachPlace(directory[index], [&](const CachePool& other, BlockIndex block) {
    awaited |= other.blocks[block].loading();
  });
  if (!awaited) Apply(index, BlockEvent::kEndLoad);
  const bool evictable = pool->blocks[BlockIn(*pool, directory[index])].cached();
  if (evictable && pool->region == nullptr) pool->victims.Insert(index, FactsOf(index));
  NotePresence(index);
}

// The places of an entry form a list through the pools' blocks; there are as many as pools of its
// namespace at most.
BlockIndex CacheState::RemovePlace(CachePool* pool, EntryIndex index) {
  BlockEntry& entry = directory[index];
  PoolPlace* link = &entry.place;
  while (*link != kNoPlace && link->pool() != pool->slot) {
    link = &NamespaceOf(entry).pools[link->pool().value]->blocks[link->block()].elsewhere;
  }
  KVT_CHECK(*link != kNoPlace);
  const BlockIndex block = link->block();
  PoolBlock& record = pool->blocks[block];
  KVT_CHECK(record.entry == index);
  pool->victims.Remove(index);
  *link = std::exchange(record.elsewhere, kNoPlace);
  if (!entry.in_pool()) Apply(index, BlockEvent::kAllowOffload);
  commit_checksums.erase(ArrivalKey(*pool, index));
  NotePresence(index);
  return block;
}

EntryIndex CacheState::AddEntry(const BlockKey& key, uint16_t tokens, uint32_t depth,
                                RetentionClass retention) {
  EntryIndex index = lost.empty() ? kNoEntry : directory.Find(key);
  const bool was_lost = index != kNoEntry;
  if (was_lost) {
    KVT_CHECK(lost.Contains(index));
    lost.Remove(index);
    ++returned;
    // What was refused then concerns it no more.
    Apply(index, BlockEvent::kAllowPersist);
  } else {
    index = directory.Insert(key);
  }
  BlockEntry& entry = directory[index];
  entry.tokens = tokens;
  entry.uses = 0;
  CountUsesAnew(index);
  // Blocks are linked by their depths: what follows the block relies on the one that it had.
  if (!was_lost) entry.depth = depth;
  entry.retention = retention;
  entry.created_s = entry.last_use_s = NowS();
  AgesOf(entry).PushHot(index);
  token_ids.NoteAdded(index);
  return index;
}

void CacheState::LinkToParent(EntryIndex index, const BlockHash& parent_hash) {
  const BlockEntry& entry = directory[index];
  if (entry.depth == 0 || lineage.ParentOf(index) != kNoEntry) return;
  const BlockKey key{entry.namespace_id, parent_hash};
  // Sequences are mostly committed in their order: the parent's row is the one before.
  EntryIndex parent = directory.FindAfter(EntryIndex(index.value - 2), key);
  if (parent == kNoEntry) {
    parent = directory.Insert(key);
    directory[parent].depth = entry.depth - 1;
    directory[parent].last_use_s = NowS();
    lost.PushHot(parent);
  }
  LinkToParent(index, parent);
  if (lost.Contains(parent) && !lineage.HasChildren(parent)) Erase(parent);
}

void CacheState::LinkToParent(EntryIndex index, EntryIndex parent) {
  // Each link goes up by one: without this a client could make a circle of its blocks.
  if (lineage.ParentOf(index) != kNoEntry || directory[index].depth == 0 ||
      directory[parent].depth != directory[index].depth - 1) {
    return;
  }
  lineage.Link(index, parent);
  if (!directory[index].hinted()) ForgetHint(parent);
}

std::optional<BlockHash> CacheState::ParentHashOf(EntryIndex index) const {
  const EntryIndex parent = lineage.ParentOf(index);
  if (parent == kNoEntry) return std::nullopt;
  return directory[parent].hash;
}

void CacheState::Extend(EntryIndex index) {
  BlockEntry& entry = directory[index];
  if (entry.retention == RetentionClass::kExtended) return;
  AgesOf(entry).Remove(index);
  entry.retention = RetentionClass::kExtended;
  AgesOf(entry).PushHot(index);
  UpdateTables(index);
}

void CacheState::Use(CachePool* pool, EntryIndex index) {
  BlockEntry& entry = directory[index];
  ++entry.uses;
  if (entry.recent_uses < BlockEntry::kMostRecentUses) ++entry.recent_uses;
  Apply(index, BlockEvent::kAllowPersist);
  if (!entry.once()) ForgetHint(index);
  orders.ForgetReturn(index);
  const uint32_t before_s = entry.last_use_s;
  NoteUse(index);
  Touch(index);
  stats.reuse_gap.ObserveMs((int64_t{entry.last_use_s} - before_s) * 1000);
  pool->victims.NoteUse(FactsOf(index));
}

void CacheState::NoteUse(EntryIndex index) {
  if (!Admits()) return;
  disk_admission.NoteUse(TenantOf(directory[index]), FactsOf(index), NowS());
}

// What was not worth writing may be now.
void CacheState::NoteIdle(EntryIndex index) {
  if (!Admits()) return;
  disk_admission.NoteIdle(TenantOf(directory[index]), FactsOf(index));
  QueueIfUndecided(index);
}

void CacheState::QueuePersist(EntryIndex index) {
  Apply(index, BlockEvent::kAllowPersist);
  QueueIfUndecided(index);
}

// The index and the table beside host learn of other uses once in a while, but of this one now: the
// block may be at the end of its maximum age. An encrypted slot on disk can be read for as long as
// there is the key of the hour in which it was made, and no hour but that of the block's age is
// known of it: with such a slot the block grows no younger. One that only lower tiers had counts
// its uses anew, as it would if it had been read from there.
void CacheState::UseComputedAnew(CachePool* pool, EntryIndex index, RetentionClass retention) {
  BlockEntry& entry = directory[index];
  if (retention == RetentionClass::kExtended) Extend(index);
  if (env.keys == nullptr || !entry.has_disk_slot()) entry.created_s = NowS();
  ForgetHint(index);
  const bool in_memory = entry.in_pool() || entry.in_host();
  Use(pool, index);
  if (!in_memory) CountUsesAnew(index);
  UpdateTables(index);
  QueueRecencyUpdate(index);
}

// Of the hash the first word is enough: two blocks that have it in common are one block in what a
// policy learns, and nowhere else.
BlockFacts CacheState::FactsOf(EntryIndex index) const {
  const BlockEntry& entry = directory[index];
  return {.parent = lineage.ParentOf(index),
          .hash = entry.hash.Prefix64(),
          .last_use_s = entry.last_use_s,
          .tokens = entry.tokens,
          .uses = entry.recent_uses,
          .leaves_first = entry.LeavesFirst()};
}

// Blocks after one that is of use may stay hinted, none before it: a block is nothing without those
// before it. Each step takes back a hint, so that a client pays for what it has said.
void CacheState::ForgetHint(EntryIndex index) {
  for (; index != kNoEntry && directory[index].hinted(); index = lineage.ParentOf(index)) {
    Apply(index, BlockEvent::kForgetHint);
    QueueIfUndecided(index);
  }
}

// What is on its way to host or passes through it has the place that its movement gave it.
void CacheState::Reorder(EntryIndex index) {
  const BlockEntry& entry = directory[index];
  if (entry.pinned()) return;
  ForEachPlace(entry, [&](CachePool& pool, BlockIndex) {
    if (pool.victims.Contains(index)) pool.victims.Touch(index, FactsOf(index));
  });
  if (entry.in_host() && !entry.loading()) orders.ReorderInHost(TenantOf(entry), index, entry);
}

std::optional<BlockFacts> CacheState::FactsIfAwaited(EntryIndex index) const {
  if (!Awaited(index)) return std::nullopt;
  BlockFacts facts = FactsOf(index);
  facts.last_use_s = NowS();
  return facts;
}

bool CacheState::IsErased(const Erasing& scope, const BlockEntry& entry) const {
  constexpr uint32_t kSecondsPerHour = 3600;
  return entry.created_s <= scope.begun_s &&
         ToWallS(entry.created_s) / kSecondsPerHour < scope.request.end_hour &&
         namespaces[entry.namespace_id.value].identity.tenant == scope.request.tenant;
}

bool CacheState::IsShared(TenantId tenant) const {
  const std::string* first = nullptr;
  for (const Namespace& name_space : namespaces) {
    if (name_space.tenant != tenant) continue;
    if (first != nullptr && *first != name_space.identity.tenant) return true;
    first = &name_space.identity.tenant;
  }
  return false;
}

void CacheState::Touch(EntryIndex index) {
  BlockEntry& entry = directory[index];
  const uint32_t before_s = std::exchange(entry.last_use_s, NowS());
  AgesOf(entry).Touch(index);
  if (orders.unpersisted.Contains(index)) orders.unpersisted.Touch(index);
  NoteIdle(index);
  if (before_s / kTableRecencyS != entry.last_use_s / kTableRecencyS) UpdateTables(index);
  if (!entry.has_disk_slot() && !entry.persist_wanted()) return;
  TouchDisk(index);
  QueueUpdateIfBehind(index);
}

void CacheState::Pin(EntryIndex index, int64_t until_ms) {
  Apply(index, BlockEvent::kPin);
  orders.pins.Set(index, until_ms);
}

void CacheState::Unpin(EntryIndex index) {
  Apply(index, BlockEvent::kUnpin);
  orders.pins.Erase(index);
}

void CacheState::QueueUpdateIfBehind(EntryIndex index) {
  const BlockEntry& entry = directory[index];
  const int64_t behind_ms = (int64_t{entry.last_use_s} - entry.indexed_use_s) * 1000;
  const int64_t ttl_ms = tenants.TtlMs(TenantOf(entry), RetentionClass::kExtended);
  if (behind_ms * kRecencyWrites > ttl_ms) QueueRecencyUpdate(index);
}

void CacheState::QueueRecencyUpdate(EntryIndex index) {
  const BlockEntry& entry = directory[index];
  if (entry.update_queued() || !entry.in_index() || entry.committing()) return;
  Apply(index, BlockEvent::kQueueUpdate);
  recency_updates.push_back(directory.RefOf(index));
}

// Times are compared on the age clock, so that setting the wall clock expires nothing. What is
// pinned does not expire.
bool CacheState::Expired(const BlockEntry& entry) const {
  return !entry.pinned() && AgeClockMs() > ExpiryMs(entry);
}

int64_t CacheState::ExpiryMs(const BlockEntry& entry) const {
  const TenantId tenant = TenantOf(entry);
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
  const BlockEntry& entry = directory[index];
  if (!entry.gone() || lost.Contains(index)) return;
  AgesOf(entry).Remove(index);
  orders.unpersisted.Remove(index);
  if (entry.pinned()) Unpin(index);
  Apply(index, BlockEvent::kUnwantPersist);
  Apply(index, BlockEvent::kForgetHint);
  orders.ForgetReturn(index);
  token_ids.Forget(index);
  const EntryIndex parent = lineage.ParentOf(index);
  lineage.Unlink(index);
  if (lineage.HasChildren(index)) {
    directory[index].last_use_s = NowS();
    lost.PushHot(index);
  } else {
    Erase(index);
  }
  // A lost block is known for the sake of what follows it.
  if (parent != kNoEntry && lost.Contains(parent) && !lineage.HasChildren(parent)) Erase(parent);
}

void CacheState::Erase(EntryIndex index) {
  lost.Remove(index);
  Apply(index, BlockEvent::kForget);
  if (env.events != nullptr) presence.Forget(index);
  directory.Erase(index);
}

// Once for any number of completions in one event: the parts look at everything anyway.
void CacheState::SchedulePump() {
  if (pump_scheduled_) return;
  pump_scheduled_ = true;
  env.loop->RunAfterEvent(gate_.WhileOpen([this] {
    pump_scheduled_ = false;
    pump();
  }));
}

void CacheState::SchedulePart() {
  if (part_scheduled_) return;
  part_scheduled_ = true;
  env.loop->Post(gate_.WhileOpen([this] {
    part_scheduled_ = false;
    next_part();
  }));
}

// Header and payload. The span is valid while the entry has its host slot; keeping it beyond an
// event takes a pin.
std::span<std::byte> CacheState::HostBytes(const BlockEntry& entry) {
  KVT_CHECK(entry.has_host_slot());
  return {env.arena->data() + entry.host_slot.value * kHostSlotUnit, NamespaceOf(entry).slot_bytes};
}

HostSlotFacts CacheState::HostFactsOf(const BlockEntry& entry) const {
  return {entry.uses, ToWallS(entry.last_use_s), ToWallS(entry.created_s), entry.retention};
}

void CacheState::UpdateTables(EntryIndex index) {
  const BlockEntry& entry = directory[index];
  ForEachPlace(entry, [&](CachePool& pool, BlockIndex block) {
    if (pool.blocks.table() != nullptr) pool.blocks.RecordUse(block, PoolFactsOf(pool, index));
  });
  if (!entry.in_host() || env.arena->table() == nullptr) return;
  env.arena->table()->Update(entry.host_slot.value * kHostSlotUnit, HostFactsOf(entry));
}

PoolEntryFacts CacheState::PoolFactsOf(const CachePool& pool, EntryIndex index) const {
  const BlockEntry& entry = directory[index];
  PoolEntryFacts facts{.hash = entry.hash,
                       .parent = ParentHashOf(index),
                       .checksum = std::nullopt,
                       .depth = entry.depth,
                       .tokens = entry.tokens,
                       .retention = entry.retention,
                       .uses = entry.uses,
                       .last_use_s = ToWallS(entry.last_use_s),
                       .created_s = ToWallS(entry.created_s)};
  const auto given = commit_checksums.find(ArrivalKey(pool, index));
  if (given != commit_checksums.end()) facts.checksum = given->second;
  return facts;
}

void CacheState::EnterPoolTable(CachePool* pool, EntryIndex index) {
  if (pool->blocks.table() == nullptr) return;
  pool->blocks.Record(BlockIn(*pool, directory[index]), PoolFactsOf(*pool, index));
}

void CacheState::BeginHostChange(const BlockEntry& entry) {
  KVT_CHECK(entry.has_host_slot());
  if (env.arena->table() == nullptr) return;
  env.arena->table()->BeginFill(entry.host_slot.value * kHostSlotUnit,
                                NamespaceOf(entry).slot_bytes);
}

void CacheState::EndHostChange(const BlockEntry& entry) {
  if (env.arena->table() == nullptr) return;
  env.arena->table()->Complete(entry.host_slot.value * kHostSlotUnit, HostFactsOf(entry));
}

SlotExpectation CacheState::ExpectationOf(const BlockEntry& entry) {
  return {NamespaceOf(entry).identity, entry.hash,   entry.disk,
          entry.disk_generation,       entry.tokens, env.keys != nullptr};
}

}  // namespace kvtier
