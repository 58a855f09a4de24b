// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_floors.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_set>
#include <utility>

#include "tests/fakes/derived_bytes.h"
#include "tests/sim/sim_check.h"
#include "tiers/storage/disk_geometry.h"
#include "tiers/storage/slot_header.h"

namespace kvtier {
namespace {

constexpr Tier kTiers[] = {Tier::kHost, Tier::kDisk};
constexpr uint32_t kPieceBlocks = 4;
constexpr uint64_t kHashStream = 0xF1005;

const char* NameOf(Tier tier) { return tier == Tier::kHost ? "host" : "disk"; }

uint64_t SlotsPerSlab(Tier tier, uint64_t slab_bytes, uint64_t block_bytes) {
  const uint64_t header_bytes = tier == Tier::kDisk ? kSlabHeaderBytes : 0;
  return (slab_bytes - header_bytes) / (block_bytes + kSlotHeaderBytes);
}

}  // namespace

std::vector<uint32_t> SimFloors::NamespacesOf(const std::string& tenant, bool others) const {
  std::vector<uint32_t> namespaces;
  for (uint32_t i = 0; i < context_.plan.namespaces.size(); ++i) {
    if ((context_.plan.namespaces[i].identity.tenant == tenant) != others) namespaces.push_back(i);
  }
  return namespaces;
}

uint64_t SimFloors::ReservedSlabs(const TenantQuota& tenant, Tier tier) const {
  const uint64_t slab_bytes = context_.plan.options.slab_bytes;
  return (tenant.tiers[static_cast<size_t>(tier)].reserved_bytes + slab_bytes - 1) / slab_bytes;
}

NamespaceId SimFloors::CachesNamespace(uint32_t name_space) const {
  const Cache& cache = context_.world.cache();
  const NamespaceIdentity& wanted = context_.plan.namespaces[name_space].identity;
  const auto is_wanted = [&](NamespaceId id) {
    const NamespaceIdentity& identity = cache.IdentityOf(id);
    return identity.tenant == wanted.tenant && identity.model == wanted.model;
  };
  NamespaceId id(0);
  while (id.value < cache.NamespaceCount() && !is_wanted(id)) ++id.value;
  return id;
}

SimFloors::Holdings SimFloors::HoldingsOf(const TenantQuota& tenant) const {
  Holdings holdings;
  const CacheStats& stats = context_.world.cache().stats();
  for (const Tier tier : kTiers) {
    holdings.tiers[tier].parents_lost =
        stats.drops[static_cast<size_t>(tier)][static_cast<size_t>(DropReason::kParentLost)];
  }
  const CacheGauges gauges = context_.world.cache().Gauges();
  for (const TenantGauges& row : gauges.tenants) {
    if (row.quota.name != tenant.name) continue;
    for (const Tier tier : kTiers) {
      holdings.tiers[tier].slabs =
          row.own_slab_bytes[static_cast<size_t>(tier)] / context_.plan.options.slab_bytes;
    }
  }
  for (const uint32_t name_space : NamespacesOf(tenant.name, /*others=*/false)) {
    std::vector<BlockHash> hashes = context_.universe.all();
    if (const auto own = stored_.find(name_space); own != stored_.end()) {
      hashes.insert(hashes.end(), own->second.begin(), own->second.end());
    }
    const NamespaceId in_cache = CachesNamespace(name_space);
    const auto present = context_.world.cache().Lookup(in_cache, hashes);
    for (size_t i = 0; i < present.size(); ++i) {
      const BlockKey key{in_cache, hashes[i]};
      const bool extended = SimUniverse::RetentionOf(hashes[i]) == RetentionClass::kExtended;
      const bool above = present[i].pool || present[i].host;
      if (extended && above && !present[i].disk) holdings.wants_disk = true;
      if (present[i].host) holdings.tiers[Tier::kHost].blocks.push_back(key);
      if (present[i].disk) holdings.tiers[Tier::kDisk].blocks.push_back(key);
    }
  }
  return holdings;
}

bool SimFloors::StorePiece(SessionId session, SimPool pool, uint32_t count,
                           std::vector<BlockHash>* stored) {
  Cache& cache = context_.world.cache();
  // The reply may come when the session is closed.
  const auto reply = std::make_shared<std::optional<Result<AcquireReply>>>();
  cache.Acquire({.session = session, .pool = context_.world.pool(pool).id, .new_blocks = count},
                [reply](const Result<AcquireReply>& result) { *reply = result; });
  context_.world.machine().loop.RunAll();
  if (!*reply || !**reply) return false;
  for (const BlockHandle handle : (**reply)->new_blocks) {
    const SimBlock block{pool, handle};
    const BlockHash hash = TestHash(kHashStream, next_hash_++);
    const std::span<std::byte> bytes = context_.world.Bytes(pool, handle);
    FillFromHash(SimUniverse::ContentsOf(pool.name_space, hash), bytes);
    context_.oracle.OnPrivate(block);
    const auto committed = cache.Commit(
        session, context_.world.pool(pool).id,
        {.block = handle, .hash = hash, .tokens = 16, .retention = SimUniverse::RetentionOf(hash)});
    SIM_CHECK(committed.has_value() && !committed->duplicate, "a new block cannot be committed");
    context_.oracle.OnCommitted(block, hash);
    context_.oracle.OnReferenceDropped(block);
    stored->push_back(hash);
  }
  const auto errors = cache.Release(session, context_.world.pool(pool).id, (**reply)->new_blocks);
  SIM_CHECK(errors.empty(), errors.front().error.ToString());
  context_.world.machine().loop.RunAll();
  return true;
}

std::vector<BlockHash> SimFloors::Store(SessionId session, uint32_t name_space, uint64_t count) {
  const SimPool pool{name_space, static_cast<uint32_t>(random_.Below(context_.plan.sizes.devices))};
  Cache& cache = context_.world.cache();
  std::vector<BlockHash> stored;
  cache.OpenSession(session, [](const LoadProgress&) {});
  while (stored.size() < count && StorePiece(session, pool, kPieceBlocks, &stored)) {
    if (random_.Chance(0.1)) drain_();
  }
  drain_();
  context_.world.machine().loop.RunAll();
  cache.CloseSession(session);
  cache.ReleaseQuarantine(session);
  auto& all = stored_[name_space];
  all.insert(all.end(), stored.begin(), stored.end());
  return stored;
}

uint64_t SimFloors::MoreThanFits(uint32_t name_space) const {
  const MachineSizes& sizes = context_.plan.sizes;
  const uint64_t bytes = (sizes.host_slabs + sizes.disk_slabs) * sizes.slab_bytes;
  return bytes * 3 / 2 /
         (context_.plan.namespaces[name_space].identity.block_bytes + kSlotHeaderBytes);
}

uint64_t SimFloors::Gone(const Holding& had, const Holding& has) {
  const std::unordered_set<BlockKey> there(has.blocks.begin(), has.blocks.end());
  return static_cast<uint64_t>(
      std::ranges::count_if(had.blocks, [&](const BlockKey& key) { return !there.contains(key); }));
}

uint64_t SimFloors::GoneWithParents(const Holding& had, const Holding& has) {
  return std::min(Gone(had, has), has.parents_lost - had.parents_lost);
}

void SimFloors::CheckKept(const TenantQuota& tenant, const Terms& terms) {
  drain_();
  context_.world.machine().loop.RunAll();
  const Holdings before = HoldingsOf(tenant);
  for (const uint32_t name_space : NamespacesOf(tenant.name, /*others=*/true)) {
    (void)Store(terms.session, name_space, MoreThanFits(name_space));
  }
  const Holdings after = HoldingsOf(tenant);
  for (const Tier tier : kTiers) {
    const uint64_t reserved = ReservedSlabs(tenant, tier);
    const Holding& had = before.tiers.at(tier);
    const Holding& has = after.tiers.at(tier);
    // A tenant that still has something to write takes the slots for it from itself: its coldest
    // block may have been alone in a slab, which is then free for all until the tenant needs it.
    // A disk that fails may have held slots for writes that then came to nothing.
    if (tier == Tier::kDisk && (before.wants_disk || !terms.disk_sound)) continue;
    // The last block of a slab may be one that cannot be hit any more.
    SIM_CHECK(has.slabs + GoneWithParents(had, has) >= std::min(had.slabs, reserved),
              fmt::format("{}: {} had {} slabs, {} are reserved, others left {}", NameOf(tier),
                          tenant.name, had.slabs, reserved, has.slabs));
    // Blocks that a restart found may lie in slabs of others, and share their lot.
    if (had.slabs > reserved || before.wants_disk || !terms.disk_sound) continue;
    if (reserved > 0) CheckAllThere(tenant, tier, had, has);
  }
}

void SimFloors::CheckReached(const TenantQuota& tenant, Tier tier, uint64_t blocks,
                             uint32_t name_space) const {
  const uint64_t slab_bytes = context_.plan.options.slab_bytes;
  const uint64_t reserved = ReservedSlabs(tenant, tier);
  const TierQuota& quota = tenant.tiers[static_cast<size_t>(tier)];
  // A cap below whole slabs is reached before.
  if (quota.max_bytes > 0 && quota.max_bytes < reserved * slab_bytes) return;
  const uint64_t slots =
      SlotsPerSlab(tier, slab_bytes, context_.plan.namespaces[name_space].identity.block_bytes);
  const uint64_t wanted = std::min(reserved, blocks / slots);
  const uint64_t slabs = HoldingsOf(tenant).tiers.at(tier).slabs;
  SIM_CHECK(slabs >= wanted,
            fmt::format("{}: {} stored {} blocks, {} of them to a slab, and has {} slabs of {} "
                        "that are reserved",
                        NameOf(tier), tenant.name, blocks, slots, slabs, reserved));
}

// So that it comes back with little, and that cold.
void SimFloors::TakeMostAway(const TenantQuota& tenant) {
  const Holdings holdings = HoldingsOf(tenant);
  for (const auto& [tier, holding] : holdings.tiers) {
    for (const BlockKey& key : holding.blocks) {
      if (random_.Chance(0.7)) (void)context_.world.cache().Evict(key, tier);
    }
  }
  context_.world.machine().loop.RunAll();
}

// As long as it has less than is reserved for it, it need not give up anything of its own.
void SimFloors::CheckGrowsFromOthers(const TenantQuota& tenant, const Terms& terms,
                                     uint32_t name_space) {
  constexpr int kPieces = 12;
  for (int i = 0; i < kPieces; ++i) {
    const Holdings before = HoldingsOf(tenant);
    (void)Store(terms.session, name_space, kPieceBlocks);
    const Holdings after = HoldingsOf(tenant);
    for (const Tier tier : kTiers) {
      const uint64_t reserved = ReservedSlabs(tenant, tier);
      const Holding& had = before.tiers.at(tier);
      const Holding& has = after.tiers.at(tier);
      // Under its cap it gives up its own; so it does if a restart found it among others.
      const bool capped = tenant.tiers[static_cast<size_t>(tier)].max_bytes > 0;
      if (had.slabs >= reserved || has.slabs >= reserved || capped || !terms.disk_sound) continue;
      // It may have reached its reserve meanwhile, and cut one model's slab for another.
      if (tier == Tier::kDisk && NamespacesOf(tenant.name, /*others=*/false).size() > 1) continue;
      CheckAllThere(tenant, tier, had, has);
    }
  }
}

void SimFloors::CheckAllThere(const TenantQuota& tenant, Tier tier, const Holding& had,
                              const Holding& has) const {
  const uint64_t gone = Gone(had, has);
  SIM_CHECK(gone <= GoneWithParents(had, has),
            fmt::format("{}: {} blocks of {} were evicted, which has {} slabs of {} that are "
                        "reserved for it",
                        NameOf(tier), gone, tenant.name, has.slabs, ReservedSlabs(tenant, tier)));
}

void SimFloors::CheckHadBack(const TenantQuota& tenant, const Terms& terms) {
  const std::vector<uint32_t> namespaces = NamespacesOf(tenant.name, /*others=*/false);
  const uint32_t name_space = namespaces[random_.Below(namespaces.size())];
  CheckGrowsFromOthers(tenant, terms, name_space);
  const std::vector<BlockHash> stored = Store(terms.session, name_space, MoreThanFits(name_space));
  // Blocks that stay in the pool need not be anywhere else.
  const uint64_t pool_blocks = context_.world.pool({name_space, 0}).blocks;
  CheckReached(tenant, Tier::kHost, stored.size() - std::min(stored.size(), pool_blocks),
               name_space);
  const CacheOptions& options = context_.world.options();
  if (!terms.disk_sound || options.disk_write_budget_bytes_per_day > 0) return;
  const auto extended =
      static_cast<uint64_t>(std::ranges::count_if(stored, [](const BlockHash& hash) {
        return SimUniverse::RetentionOf(hash) == RetentionClass::kExtended;
      }));
  CheckReached(tenant, Tier::kDisk, extended, name_space);
}

bool SimFloors::Try(const Terms& terms) {
  // Nothing gets anywhere before the arena's first slice.
  if (context_.world.cache().Gauges().host_ready_bytes == 0) return false;
  std::vector<TenantQuota> candidates;
  for (const TenantQuota& tenant : context_.world.options().tenants) {
    const bool reserves =
        ReservedSlabs(tenant, Tier::kHost) + ReservedSlabs(tenant, Tier::kDisk) > 0;
    if (!reserves || NamespacesOf(tenant.name, false).empty()) continue;
    if (!NamespacesOf(tenant.name, true).empty()) candidates.push_back(tenant);
  }
  if (candidates.empty()) return false;
  const TenantQuota& tenant = candidates[random_.Below(candidates.size())];
  if (random_.Chance(0.5)) TakeMostAway(tenant);
  CheckKept(tenant, terms);
  CheckHadBack(tenant, terms);
  CheckKept(tenant, terms);
  return true;
}

}  // namespace kvtier
