// SPDX-License-Identifier: Apache-2.0
#include "tiers/blocks/blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tiers/storage/disk_geometry.h"

namespace kvtier {

Result<NamespaceId> Blocks::InternNamespace(const NamespaceIdentity& identity) {
  const std::optional<NamespaceId> known = FindNamespace(identity);
  if (known && namespaces[known->value].slot_bytes > 0) return *known;
  Namespace name_space = MakeNamespace(identity);
  if (name_space.slot_bytes + kSlabHeaderBytes > options_.slab_bytes) {
    return MakeError(ErrorCode::kInvalidArgument, "block_too_large",
                     fmt::format("a block of {} bytes and its headers do not fit into slab_bytes "
                                 "= {}",
                                 identity.block_bytes, options_.slab_bytes));
  }
  return namespaces.Add(std::move(name_space));
}

Namespace Blocks::MakeNamespace(const NamespaceIdentity& identity) {
  const auto next_line = TenantLine(static_cast<uint32_t>(lines_.size()));
  Namespace name_space{.identity = identity,
                       .slot_bytes = SlotBytes(identity.block_bytes),
                       .tenant = tenants_.Find(identity.tenant),
                       .line = lines_.try_emplace(identity.tenant, next_line).first->second};
  const auto keeps_ids = std::ranges::find(token_tenants_, identity.tenant);
  if (keeps_ids != token_tenants_.end()) {
    name_space.token_share = static_cast<uint32_t>(keeps_ids - token_tenants_.begin());
  }
  return name_space;
}

CachePool* Blocks::FindPool(PoolId id) {
  const auto found = pools.find(id);
  return found == pools.end() ? nullptr : found->second.get();
}

// Lines, timers and messages name pools by their numbers, and some of them outlive the pool. So a
// number is never given twice. A client that opens regions without a pause uses all of them up in
// days; the daemon then opens no more, and serves those that are open.
Status Blocks::MayAddPool() const {
  if (next_pool_ < UINT32_MAX) return {};
  return MakeError(ErrorCode::kLimitExceeded, "pool_numbers_used_up",
                   "the daemon has to be started again");
}

CachePool* Blocks::AddPool(std::unique_ptr<CachePool> pool) {
  // A line stays: a client that could make up devices would have one for each.
  KVT_CHECK(next_pool_ < UINT32_MAX && pool->device.value <= kMaxDevices);
  pool->id = PoolId(next_pool_++);
  const CopyLine next_line(static_cast<uint32_t>(copy_lines_.size()));
  const TenantLine tenant = namespaces[pool->namespace_id.value].line;
  pool->copy_line = copy_lines_.try_emplace({tenant, pool->device}, next_line).first->second;
  CachePool* const added = pools.emplace(pool->id, std::move(pool)).first->second.get();
  namespaces[added->namespace_id.value].PutPool(added->slot, added);
  return added;
}

std::unique_ptr<CachePool> Blocks::RemovePool(CachePool* pool) {
  KVT_CHECK(pool->blocks.free() == pool->blocks.size());
  KVT_CHECK(pool->sessions + pool->ended_sessions + pool->operations == 0);
  namespaces[pool->namespace_id.value].TakePool(pool->slot);
  return std::move(pools.extract(pool->id).mapped());
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
  PoolBlock& record = pool->blocks.Taken(block);
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
    link = &NamespaceOf(entry).pools[link->pool().value]->blocks.Taken(link->block()).elsewhere;
  }
  KVT_CHECK(*link != kNoPlace);
  const BlockIndex block = link->block();
  PoolBlock& record = pool->blocks.Taken(block);
  KVT_CHECK(record.entry == index);
  *link = std::exchange(record.elsewhere, kNoPlace);
  if (pool->checksums.Find(block.value) != nullptr) pool->checksums[block.value].reset();
  return block;
}

bool Blocks::Awaited(EntryIndex index) const {
  bool awaited = false;
  ForEachPlace(directory[index], [&](const CachePool& pool, BlockIndex block) {
    awaited |= pool.blocks[block].loading();
  });
  return awaited;
}

const PayloadChecksum* Blocks::CommitChecksum(const CachePool& pool, EntryIndex index) const {
  const auto* const given = pool.checksums.Find(BlockIn(pool, directory[index]).value);
  return given != nullptr && *given ? &**given : nullptr;
}

void Blocks::CopyCommitChecksum(const CachePool& from, CachePool* to, EntryIndex index) {
  const PayloadChecksum* const given = CommitChecksum(from, index);
  if (given != nullptr) to->checksums.At(BlockIn(*to, directory[index]).value) = *given;
}

// The hash's first word is enough: two blocks that have it in common are one block in the tables of
// a policy that learns, and nowhere else.
BlockFacts Blocks::FactsOf(EntryIndex index) const {
  const BlockEntry& entry = directory[index];
  return {.parent = lineage.ParentOf(index),
          .hash = entry.hash.Prefix64(),
          .last_use_s = entry.last_use_s,
          .uses = entry.recent_uses,
          .leaves_first = entry.LeavesFirst()};
}

std::optional<BlockHash> Blocks::ParentHashOf(EntryIndex index) const {
  const EntryIndex parent = lineage.ParentOf(index);
  if (parent == kNoEntry) return std::nullopt;
  return directory[parent].hash;
}

}  // namespace kvtier
