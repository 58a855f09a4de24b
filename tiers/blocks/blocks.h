// SPDX-License-Identifier: Apache-2.0
// Which blocks there are and where: the directory of all of them, the pools that hold them, and
// which block follows which.
//
// Each part of the cache reads all of it here. CacheState alone changes the states and places of a
// block, because its places in the orders change with them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/hang_up.h"
#include "base/result.h"
#include "gpu/device.h"
#include "tiers/blocks/namespace_table.h"
#include "tiers/blocks/trust.h"
#include "tiers/directory/directory.h"
#include "tiers/directory/lineage.h"
#include "tiers/directory/pool_blocks.h"
#include "tiers/policy/eviction_policy.h"
#include "tiers/policy/tenant_orders.h"
#include "tiers/policy/tenant_queues.h"
#include "tiers/policy/tenant_table.h"
#include "tiers/storage/slot_header.h"
#include "tiers/types/cache_options.h"
#include "tiers/types/cache_requests.h"
#include "tiers/types/published_blocks.h"

namespace kvtier {

// How much of a kind of work one event does: CacheOptions::search_part_blocks steps.
struct EventPart {
  uint64_t pump = 0;  // as EventParts counts them
  uint64_t left = 0;
};

struct CachePool {
  PoolId id;
  NamespaceId namespace_id;
  DeviceIndex device;  // none of a region in host memory
  CopyLine copy_line;  // in which its copies wait
  PoolSlot slot;
  uint64_t generation = 0;
  uint64_t block_bytes = 0;
  Device* copier = nullptr;           // copies between `memory` and host
  std::shared_ptr<const void> place;  // among its tenant's pools; goes after `memory`
  std::unique_ptr<DevicePool> memory;
  PoolBlocks blocks;
  PagedArray<std::optional<PayloadChecksum>> checksums;  // given at commit, by block
  PagedArray<uint32_t> load_waiters;                     // rows of LoadWaiters, by entry
  VictimQueue victims;  // cached blocks: committed, loaded, unreferenced; of a region none
  EventPart search;     // for victims that can leave
  // The parts of a region's block, in the order of its payload; none: blocks lie one after the
  // other.
  std::vector<RegionPiece> pieces;
  bool is_region = false;
  bool to_prepare = false;                           // in CacheState::to_prepare
  std::shared_ptr<const HangUp> lender;              // RegionMemory::lender; null: of a pool
  std::shared_ptr<const PublishedBlocks> published;  // of a region; null: its engine says nothing
  uint32_t readers = 0;         // copies that have the region as their source, or wait to
  uint32_t sessions = 0;        // that use it (SessionTable::UsePool)
  uint32_t ended_sessions = 0;  // that did, and hold blocks or may still write to them
  uint32_t operations = 0;      // acquires under way
  // When the last of its sessions ended; none of a pool that is used, or never was.
  std::optional<int64_t> unused_since_ms;
  uint32_t next_to_close = 0;  // the block at which PoolSpace goes on to empty the pool

  // A piece, and where in the payload it begins.
  struct PiecePlace {
    size_t piece = 0;
    uint64_t begin = 0;
  };
  [[nodiscard]] bool IsLent() const { return lender == nullptr || !lender->Seen(); }

  // Calls `visit(offset in the memory, offset in the payload, bytes)` for each contiguous part of
  // the given part, which is not empty, of a block's payload. Its first piece is looked for from
  // `*at` on, unless that lies behind it, and left there.
  template <typename Visit>
  void ForEachPart(BlockIndex block, uint64_t offset, uint64_t bytes, PiecePlace* at,
                   Visit visit) const {
    if (pieces.empty()) return visit(block.value * block_bytes + offset, offset, bytes);
    if (offset < at->begin) *at = {};
    while (at->begin + pieces[at->piece].bytes <= offset) at->begin += pieces[at->piece++].bytes;
    uint64_t begin = at->begin;
    for (size_t i = at->piece; begin < offset + bytes; begin += pieces[i++].bytes) {
      const RegionPiece& piece = pieces[i];
      const uint64_t first = std::max(begin, offset);
      const uint64_t end = std::min(begin + piece.bytes, offset + bytes);
      visit(piece.offset + block.value * piece.block_stride + (first - begin), first, end - first);
    }
  }
};

// Event loop only.
class Blocks {
 public:
  // Both are borrowed and outlive this.
  Blocks(const CacheOptions* options, const TenantTable* tenants)
      : options_(*options), tenants_(*tenants), token_tenants_(options->token_tenants) {}

  Directory directory;
  NamespaceTable namespaces;                           // by NamespaceId
  std::map<PoolId, std::unique_ptr<CachePool>> pools;  // regions among them
  // Which block follows which.
  Lineage lineage;
  // The storers of blocks, and which of them can be believed.
  Trust trust;
  // Blocks that no tier holds while blocks that follow them are cached, the longest lost first;
  // their `last_use_s` says since when. Their entries stay, so that they are known again when they
  // are committed again. Blocks that follow them are unusable.
  EntryList lost;
  // How many lost blocks have come back.
  uint64_t returned = 0;

  [[nodiscard]] BlockEntry& operator[](EntryIndex entry) { return directory[entry]; }
  [[nodiscard]] const BlockEntry& operator[](EntryIndex entry) const { return directory[entry]; }
  // The block's entry; kNoEntry if it is not known, or lost.
  [[nodiscard]] EntryIndex Find(const BlockKey& key) const {
    const EntryIndex index = directory.Find(key);
    return index != kNoEntry && lost.Contains(index) ? kNoEntry : index;
  }

  [[nodiscard]] std::optional<NamespaceId> FindNamespace(const NamespaceIdentity& identity) const {
    return namespaces.Find(identity);
  }
  // Finds or adds. REQUIRES: identity.block_bytes > 0. Errors: kInvalidArgument "block_too_large";
  // those of NamespaceTable::Add.
  [[nodiscard]] Result<NamespaceId> InternNamespace(const NamespaceIdentity& identity);
  // The same for a pool that may be refused, which then costs no number: those of all tenants are
  // bounded, and any client can ask. `make` gets the number and returns a Result.
  template <typename Make>
  [[nodiscard]] auto WithNamespace(const NamespaceIdentity& identity, Make make)
      -> decltype(make(NamespaceId())) {
    const bool is_new = !FindNamespace(identity);
    KVT_ASSIGN_OR_RETURN(const NamespaceId id, InternNamespace(identity));
    auto made = make(id);
    if (!made && is_new) namespaces.TakeBack(id);
    return made;
  }
  // A space for the identity that has no pool yet. REQUIRES: identity.block_bytes > 0.
  [[nodiscard]] Namespace MakeNamespace(const NamespaceIdentity& identity);
  [[nodiscard]] Namespace& NamespaceOf(const BlockEntry& entry) {
    return namespaces[entry.namespace_id.value];
  }
  [[nodiscard]] TenantId TenantOf(const BlockEntry& entry) const {
    return namespaces[entry.namespace_id.value].tenant;
  }
  // The line in which blocks of the entry's tenant wait for the disk.
  [[nodiscard]] TenantLine LineOf(const BlockEntry& entry) const {
    return namespaces[entry.namespace_id.value].line;
  }
  // The lines by their tenants' names; of all tenants that were ever named.
  [[nodiscard]] const auto& lines() const { return lines_; }
  // Whether tenants share this row of tenant tables: one's hints must not cost another's blocks.
  [[nodiscard]] bool IsShared(TenantId tenant) const { return namespaces.IsShared(tenant); }

  // The block must not be served, known (kNoEntry: it is not) or about to be.
  [[nodiscard]] bool Distrusts(NamespaceId namespace_id, EntryIndex entry) const {
    if (trust.Distrusts(namespace_id)) return true;
    return entry != kNoEntry && trust.Refuses(namespace_id, directory.RefOf(entry));
  }

  // Null if there is no such pool.
  [[nodiscard]] CachePool* FindPool(PoolId id);
  // Errors: kLimitExceeded "pool_numbers_used_up".
  [[nodiscard]] Status MayAddPool() const;
  // The pool gets a number that no pool has had before, so that a handle of a closed one finds
  // none, and stands in its namespace's slot. REQUIRES: the slot is free; MayAddPool().
  CachePool* AddPool(std::unique_ptr<CachePool> pool);
  // Returns the pool, with its memory and records. REQUIRES: no block is taken, and nothing uses
  // the pool.
  std::unique_ptr<CachePool> RemovePool(CachePool* pool);

  // The block of `pool` that is the entry's, loaded or not; kNoBlock if there is none. REQUIRES: a
  // pool of the entry's space.
  [[nodiscard]] BlockIndex BlockIn(const CachePool& pool, const BlockEntry& entry) const;
  // Calls `visit(CachePool&, BlockIndex)` for each pool that holds the block or awaits it; `visit`
  // may take that place away.
  template <typename Visit>
  void ForEachPlace(const BlockEntry& entry, Visit visit) const;
  // A pool that holds the block's bytes; null if none does.
  [[nodiscard]] CachePool* ReadyPool(const BlockEntry& entry) const;
  // The tier that would serve the block to a pool without it.
  [[nodiscard]] Tier SourceOf(const BlockEntry& entry) const {
    return entry.in_host() || ReadyPool(entry) != nullptr ? Tier::kHost : Tier::kDisk;
  }
  // Whether that is the cold store, which counts as disk to clients.
  [[nodiscard]] bool FromCold(const BlockEntry& entry) const {
    return SourceOf(entry) == Tier::kDisk && !entry.on_disk();
  }
  // References over all pools.
  [[nodiscard]] uint32_t References(const BlockEntry& entry) const;
  // Nothing if the block is the first of its sequence, or the one before it is not known.
  [[nodiscard]] std::optional<BlockHash> ParentHashOf(EntryIndex entry) const;
  // The checksum that the client gave when it committed the pool's block: compared when the block
  // is offloaded. Null if it gave none.
  [[nodiscard]] const PayloadChecksum* CommitChecksum(const CachePool& pool,
                                                      EntryIndex entry) const;
  // The pool `to` has got the entry's bytes from `from`, and with them the checksum of the commit.
  void CopyCommitChecksum(const CachePool& from, CachePool* to, EntryIndex entry);
  // Describes the block to orders of eviction and to admission.
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
  std::map<std::string, TenantLine, std::less<>> lines_;
  std::map<std::pair<TenantLine, DeviceIndex>, CopyLine> copy_lines_;
  uint32_t next_pool_ = 0;
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
