// SPDX-License-Identifier: Apache-2.0
// Which blocks there are and where: the directory of all of them, the pools that hold them, and
// which block follows which.
//
// All of it is to be read here by everybody. A block's states and places are changed by CacheState
// alone, because its places in the orders change with them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "tiers/blocks/cache_pool.h"
#include "tiers/directory/directory.h"
#include "tiers/directory/lineage.h"
#include "tiers/policy/eviction_policy.h"
#include "tiers/policy/tenant_table.h"
#include "tiers/storage/slot_header.h"
#include "tiers/types/cache_options.h"
#include "tiers/types/cache_requests.h"

namespace kvtier {

// Event loop only.
class Blocks {
 public:
  // Both are borrowed and outlive this.
  Blocks(const CacheOptions* options, const TenantTable* tenants)
      : options_(*options), tenants_(*tenants), token_tenants_(options->token_tenants) {}

  Directory directory;
  std::vector<Namespace> namespaces;              // by NamespaceId
  std::vector<std::unique_ptr<CachePool>> pools;  // by PoolId; null: one that was closed
  // Which block follows which.
  Lineage lineage;
  // Blocks that no tier holds while blocks that follow them are cached, the longest lost first;
  // their `last_use_s` says since when. Their entries stay, so that they are known again when they
  // are committed again. Blocks that follow them are unusable.
  EntryList lost;
  // How many lost blocks have come back.
  uint64_t returned = 0;
  // Checksums given at commit, by ArrivalKey: what one pool holds, compared when it is offloaded.
  std::unordered_map<uint64_t, PayloadChecksum> commit_checksums;

  [[nodiscard]] BlockEntry& operator[](EntryIndex entry) { return directory[entry]; }
  [[nodiscard]] const BlockEntry& operator[](EntryIndex entry) const { return directory[entry]; }
  // The block's entry; kNoEntry if it is not known, or lost.
  [[nodiscard]] EntryIndex Find(const BlockKey& key) const {
    const EntryIndex index = directory.Find(key);
    return index != kNoEntry && lost.Contains(index) ? kNoEntry : index;
  }

  [[nodiscard]] std::optional<NamespaceId> FindNamespace(const NamespaceIdentity& identity) const;
  // Finds or adds. REQUIRES: identity.block_bytes > 0.
  [[nodiscard]] Result<NamespaceId> InternNamespace(const NamespaceIdentity& identity);
  // A space for the identity that has no pool yet. REQUIRES: identity.block_bytes > 0.
  [[nodiscard]] Namespace MakeNamespace(const NamespaceIdentity& identity) const;
  [[nodiscard]] Namespace& NamespaceOf(const BlockEntry& entry) {
    return namespaces[entry.namespace_id.value];
  }
  [[nodiscard]] TenantId TenantOf(const BlockEntry& entry) const {
    return namespaces[entry.namespace_id.value].tenant;
  }
  // Whether tenants share this row of tenant tables: one's hints must not cost another's blocks.
  [[nodiscard]] bool IsShared(TenantId tenant) const;

  // Null if there is no such pool.
  [[nodiscard]] CachePool* FindPool(PoolId id);
  // The pool gets its number and stands in its namespace's slot. REQUIRES: the slot is free.
  CachePool* AddPool(std::unique_ptr<CachePool> pool);
  // The pool's memory goes with it. REQUIRES: no block is taken, and nothing uses the pool.
  void RemovePool(CachePool* pool);

  // The block of `pool` that is the entry's, loaded or not; kNoBlock if there is none. REQUIRES: a
  // pool of the entry's space.
  [[nodiscard]] BlockIndex BlockIn(const CachePool& pool, const BlockEntry& entry) const;
  // Calls `visit(CachePool&, BlockIndex)` for each pool that holds the block or awaits it; `visit`
  // may take that place away.
  template <typename Visit>
  void ForEachPlace(const BlockEntry& entry, Visit visit) const;
  // A pool that holds the block's bytes; null if none does.
  [[nodiscard]] CachePool* ReadyPool(const BlockEntry& entry) const;
  // References over all pools.
  [[nodiscard]] uint32_t References(const BlockEntry& entry) const;
  // Nothing if the block is the first of its sequence, or the one before it is not known.
  [[nodiscard]] std::optional<BlockHash> ParentHashOf(EntryIndex entry) const;
  // What orders of eviction and admission are told of a block.
  [[nodiscard]] BlockFacts FactsOf(EntryIndex index) const;

 private:
  friend class CacheState;
  // The block becomes one of the entry's places. REQUIRES: it is committed for the entry, which has
  // none in its pool.
  void AddPlace(CachePool* pool, BlockIndex block);
  // The reverse; the block is left to the caller. REQUIRES: the entry has a place in the pool.
  BlockIndex RemovePlace(CachePool* pool, EntryIndex entry);
  // Some pool awaits the block's bytes.
  [[nodiscard]] bool Awaited(EntryIndex entry) const;

  const CacheOptions& options_;
  const TenantTable& tenants_;
  const std::vector<std::string> token_tenants_;
};

template <typename Visit>
void Blocks::ForEachPlace(const BlockEntry& entry, Visit visit) const {
  for (PoolPlace place = entry.place; place != kNoPlace;) {
    CachePool& pool = *namespaces[entry.namespace_id.value].pools[place.pool().value];
    const BlockIndex block = place.block();
    place = pool.blocks[block].elsewhere;
    visit(pool, block);
  }
}

}  // namespace kvtier
