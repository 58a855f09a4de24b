// SPDX-License-Identifier: Apache-2.0
#include "tiers/blocks/blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tiers/storage/disk_geometry.h"

namespace kvtier {

std::optional<NamespaceId> Blocks::FindNamespace(const NamespaceIdentity& identity) const {
  const auto found = std::ranges::find(namespaces, identity, &Namespace::identity);
  if (found == namespaces.end()) return std::nullopt;
  return NamespaceId(static_cast<uint32_t>(found - namespaces.begin()));
}

// There are as many as models times tenants: a search through all of them is short.
Result<NamespaceId> Blocks::InternNamespace(const NamespaceIdentity& identity) {
  if (const auto known = FindNamespace(identity)) return *known;
  Namespace name_space = MakeNamespace(identity);
  if (name_space.slot_bytes + kSlabHeaderBytes > options_.slab_bytes) {
    return MakeError(ErrorCode::kInvalidArgument, "block_too_large",
                     fmt::format("a block of {} bytes and its headers do not fit into slab_bytes "
                                 "= {}",
                                 identity.block_bytes, options_.slab_bytes));
  }
  namespaces.push_back(std::move(name_space));
  return NamespaceId(static_cast<uint32_t>(namespaces.size() - 1));
}

Namespace Blocks::MakeNamespace(const NamespaceIdentity& identity) const {
  Namespace name_space{.identity = identity,
                       .slot_bytes = SlotBytes(identity.block_bytes),
                       .tenant = tenants_.Find(identity.tenant)};
  const auto keeps_ids = std::ranges::find(token_tenants_, identity.tenant);
  if (keeps_ids != token_tenants_.end()) {
    name_space.token_share = static_cast<uint32_t>(keeps_ids - token_tenants_.begin());
  }
  return name_space;
}

CachePool* Blocks::FindPool(PoolId id) {
  return id.value < pools.size() ? pools[id.value].get() : nullptr;
}

// The numbers of closed pools are used again, so that an engine that opens and closes regions does
// not make the table grow. No session can name a region that is not its own, and a pool is closed
// when no session can name it any more.
CachePool* Blocks::AddPool(std::unique_ptr<CachePool> pool) {
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

void Blocks::RemovePool(CachePool* pool) {
  KVT_CHECK(pool->blocks.free() == pool->blocks.size());
  KVT_CHECK(pool->sessions + pool->ended_sessions + pool->operations == 0);
  namespaces[pool->namespace_id.value].pools[pool->slot.value] = nullptr;
  pools[pool->id.value].reset();
}

BlockIndex Blocks::BlockIn(const CachePool& pool, const BlockEntry& entry) const {
  PoolPlace place = entry.place;
  while (place != kNoPlace && place.pool() != pool.slot) {
    const CachePool& holder = *namespaces[entry.namespace_id.value].pools[place.pool().value];
    place = holder.blocks[place.block()].elsewhere;
  }
  return place == kNoPlace ? kNoBlock : place.block();
}

// A pool whose block is still loading is no source: its bytes are not there yet.
CachePool* Blocks::ReadyPool(const BlockEntry& entry) const {
  CachePool* ready = nullptr;
  ForEachPlace(entry, [&](CachePool& pool, BlockIndex block) {
    if (ready == nullptr && !pool.blocks[block].loading()) ready = &pool;
  });
  return ready;
}

uint32_t Blocks::References(const BlockEntry& entry) const {
  uint32_t references = 0;
  ForEachPlace(entry, [&](const CachePool& pool, BlockIndex block) {
    references += pool.blocks[block].references();
  });
  return references;
}

void Blocks::AddPlace(CachePool* pool, BlockIndex block) {
  PoolBlock& record = pool->blocks[block];
  BlockEntry& entry = directory[record.entry];
  // An entry has one block in a pool at most, or the list of its places would name one twice.
  KVT_CHECK(BlockIn(*pool, entry) == kNoBlock);
  record.elsewhere = entry.place;
  entry.place = PoolPlace(pool->slot, block);
}

// The places of an entry form a list through the pools' blocks; there are as many as pools of its
// namespace at most.
BlockIndex Blocks::RemovePlace(CachePool* pool, EntryIndex index) {
  BlockEntry& entry = directory[index];
  PoolPlace* link = &entry.place;
  while (*link != kNoPlace && link->pool() != pool->slot) {
    link = &NamespaceOf(entry).pools[link->pool().value]->blocks[link->block()].elsewhere;
  }
  KVT_CHECK(*link != kNoPlace);
  const BlockIndex block = link->block();
  PoolBlock& record = pool->blocks[block];
  KVT_CHECK(record.entry == index);
  *link = std::exchange(record.elsewhere, kNoPlace);
  commit_checksums.erase(ArrivalKey(*pool, index));
  return block;
}

bool Blocks::Awaited(EntryIndex index) const {
  bool awaited = false;
  ForEachPlace(directory[index], [&](const CachePool& pool, BlockIndex block) {
    awaited |= pool.blocks[block].loading();
  });
  return awaited;
}

// The hash's first word is enough: two blocks that have it in common are one block in the tables of
// a policy that learns, and nowhere else.
BlockFacts Blocks::FactsOf(EntryIndex index) const {
  const BlockEntry& entry = directory[index];
  return {.parent = lineage.ParentOf(index),
          .hash = entry.hash.Prefix64(),
          .last_use_s = entry.last_use_s,
          .tokens = entry.tokens,
          .uses = entry.recent_uses,
          .leaves_first = entry.LeavesFirst()};
}

bool Blocks::IsShared(TenantId tenant) const {
  const std::string* first = nullptr;
  for (const Namespace& name_space : namespaces) {
    if (name_space.tenant != tenant) continue;
    if (first != nullptr && *first != name_space.identity.tenant) return true;
    first = &name_space.identity.tenant;
  }
  return false;
}

std::optional<BlockHash> Blocks::ParentHashOf(EntryIndex index) const {
  const EntryIndex parent = lineage.ParentOf(index);
  if (parent == kNoEntry) return std::nullopt;
  return directory[parent].hash;
}

}  // namespace kvtier
