// SPDX-License-Identifier: Apache-2.0
// The cache's reports on itself: gauges and invariants.
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "base/result.h"
#include "tiers/cache_impl.h"

namespace kvtier {
namespace {

PoolGauges GaugesOf(const CachePool& pool) {
  PoolGauges gauges;
  gauges.id = pool.id;
  gauges.namespace_id = pool.namespace_id;
  gauges.device = pool.device;
  gauges.block_bytes = pool.block_bytes;
  gauges.blocks = pool.blocks.size();
  gauges.free = pool.blocks.free();
  gauges.private_blocks = pool.blocks.count(PoolBlockState::kPrivate);
  gauges.quarantined = pool.blocks.count(PoolBlockState::kQuarantined);
  gauges.cached = pool.victims.size();
  gauges.loading = pool.blocks.loading();
  gauges.referenced = pool.blocks.count(PoolBlockState::kCommitted) +
                      pool.blocks.count(PoolBlockState::kOrphaned) - gauges.cached - gauges.loading;
  return gauges;
}

// Tenants of group 0 share slabs, so that none of these can be said to be one tenant's.
uint64_t OwnSlabBytes(const TenantTable& tenants, Tier tier, TenantId tenant,
                      const SlabAllocator& allocator) {
  const uint32_t group = tenants.GroupOf(tier, tenant);
  return group == 0 ? 0 : allocator.GroupSlabs(group) * allocator.slab_bytes();
}

std::vector<TenantGauges> GaugesOf(const TenantTable& tenants, const SlabAllocator& host,
                                   const SlabAllocator& disk) {
  std::vector<TenantGauges> all;
  for (uint32_t i = 1; i < tenants.rows(); ++i) {
    const TenantId tenant(i);
    TenantGauges& gauges = all.emplace_back();
    gauges.quota = tenants.quota(tenant);
    for (size_t tier = 0; tier < kTierCount; ++tier) {
      gauges.used_bytes[tier] = tenants.used_bytes(static_cast<Tier>(tier), tenant);
      gauges.bound_bytes[tier] = tenants.bound_bytes(static_cast<Tier>(tier), tenant);
    }
    gauges.own_slab_bytes = {0, OwnSlabBytes(tenants, Tier::kHost, tenant, host),
                             OwnSlabBytes(tenants, Tier::kDisk, tenant, disk)};
  }
  return all;
}

std::vector<DriveGauges> GaugesOf(const DiskGeometry& geometry, const DiskSlots& disk) {
  std::vector<DriveGauges> all;
  for (uint32_t drive = 0; drive < kMaxDrives; ++drive) {
    if (geometry.drive_slabs[drive] == 0) continue;
    const bool failed = (disk.health().failed() >> drive & 1) != 0;
    const uint64_t slabs = failed ? geometry.drive_slabs[drive] : disk.allocator().slabs(drive);
    all.push_back({.number = drive,
                   .capacity_bytes = slabs * geometry.slab_bytes,
                   .used_bytes = disk.allocator().used_bytes(drive),
                   .failed = (disk.health().failed() >> drive & 1) != 0});
  }
  return all;
}

// Each tenant's; those that are not told apart follow as one.
std::vector<TenantUsage> UsageOf(const CacheState& state) {
  std::vector<TenantUsage> all;
  std::optional<TenantUsage> others;
  for (const auto& [name, line] : state.blocks.lines()) {
    TenantUsage usage = state.usage.Of(line);
    if (!UsageTable::IsToldApart(line)) {
      others = std::move(usage);
      continue;
    }
    usage.tenant = name;
    all.push_back(std::move(usage));
  }
  if (others) all.push_back(*std::move(others));
  return all;
}

// Counts at most kMostCounted of them, so that a look at the gauges does not hold the event loop.
std::array<uint64_t, kTierCount> UnusableBlocks(const CacheState& state) {
  constexpr int kMostCounted = 4096;
  std::array<uint64_t, kTierCount> blocks{};
  int left = kMostCounted;
  for (EntryIndex lost = state.blocks.lost.coldest(); lost != kNoEntry && left > 0;
       lost = state.blocks.lost.Hotter(lost)) {
    for (EntryIndex child = state.blocks.lineage.FirstChildOf(lost); child != kNoEntry && left > 0;
         child = state.blocks.lineage.NextSiblingOf(child), --left) {
      const BlockEntry& entry = state.blocks.directory[child];
      blocks[static_cast<size_t>(Tier::kPool)] += entry.in_pool();
      blocks[static_cast<size_t>(Tier::kHost)] += entry.in_host();
      blocks[static_cast<size_t>(Tier::kDisk)] += entry.on_disk();
    }
  }
  return blocks;
}

}  // namespace

PoolGauges Cache::GaugesOfPool(PoolId id) const {
  const CachePool* const pool = impl_->state.blocks.FindPool(id);
  KVT_CHECK(pool != nullptr);
  return GaugesOf(*pool);
}

CacheGauges Cache::Impl::Gauges() const {
  CacheGauges gauges;
  uint64_t order_bytes = 0;
  for (const auto& [id, pool] : state.blocks.pools) {
    if (pool->is_region) continue;
    gauges.pools.push_back(GaugesOf(*pool));
    order_bytes += pool->victims.memory_bytes();
  }
  gauges.usage = UsageOf(state);
  gauges.tenants = GaugesOf(state.tenants, host.allocator(), disk.allocator());
  gauges.disk_read_bytes_per_s = state.load_rates.disk().bytes_per_s();
  gauges.cold_read_bytes_per_s = state.load_rates.cold().bytes_per_s();
  for (uint32_t i = 0; i < state.env.devices.size(); ++i) {
    const DeviceIndex device(i);
    gauges.devices.push_back({pools.capacity_bytes(device), pools.used_bytes(device),
                              state.load_rates.bus(device).bytes_per_s()});
    gauges.pool_capacity_bytes += pools.capacity_bytes(device);
    gauges.pool_used_bytes += pools.used_bytes(device);
  }
  gauges.host_capacity_bytes = host.capacity_bytes();
  gauges.host_ready_bytes = state.env.arena->ready_bytes();
  gauges.host_used_bytes = host.allocator().used_bytes();
  gauges.host_blocks = host.blocks();
  gauges.host_return_ds = state.pressure.returns.ds();
  gauges.disk_used_bytes = disk.allocator().used_bytes();
  gauges.disk_blocks = disk.blocks();
  gauges.disk_persisted = state.orders.persisted_blocks();
  gauges.unusable_blocks = UnusableBlocks(state);
  gauges.entries = state.blocks.directory.size();
  for (const EntryList& list : state.orders.by_age) order_bytes += list.memory_bytes();
  gauges.entry_bytes =
      state.blocks.directory.memory_bytes() + state.orders.unpersisted.memory_bytes() +
      state.orders.returns_s.memory_bytes() + state.orders.cold_until_s.memory_bytes() +
      state.orders.cold_line.memory_bytes() + host.memory_bytes() + disk.memory_bytes() +
      order_bytes + state.blocks.lineage.memory_bytes() + state.blocks.lost.memory_bytes();
  gauges.unpersisted_blocks = state.orders.unpersisted.size() +
                              state.orders.persist_wanted_blocks() +
                              down.persister.writes_in_flight();
  gauges.pinned_blocks = state.orders.pins.size();
  for (const auto& [whose, tenant] : state.blocks.trust.distrusted()) {
    gauges.distrusted.push_back(whose);
  }
  gauges.token_blocks = state.token_ids.blocks();
  gauges.token_bytes = state.token_ids.bytes();
  gauges.sessions = sessions.size();
  gauges.sessions_closing = sessions.closing();
  gauges.references = sessions.references();
  up.loader.Report(&gauges);
  gauges.offloads_in_flight = down.offloader.in_flight();
  gauges.disk_writes_in_flight = down.persister.writes_in_flight();
  gauges.acquires_waiting = up.acquirer.waiting();
  gauges.regions = regions.size();
  gauges.region_blocks_in_flight = regions.in_flight();
  gauges.prefixes_to_touch = touches.waiting();
  gauges.offloads_queued = to_host.size();
  gauges.disk_writes_queued = to_disk.size();
  gauges.write_budget_left_bytes = down.persister.budget_left_bytes();
  gauges.write_budget_spent_bytes = state.write_budget.state().spent_bytes;
  gauges.infinite_missed_blocks = state.infinite_cache.misses();
  for (const BlockFile* file : state.env.files) gauges.disk_engines.emplace_back(file->engine());
  gauges.drives = GaugesOf(state.env.geometry, disk);
  for (const DriveGauges& drive : gauges.drives) gauges.disk_capacity_bytes += drive.capacity_bytes;
  gauges.disk_degraded = disk.degraded() || disk.health().failed() != 0;
  gauges.adoption_waiting = upkeep.adoption.left();
  gauges.drain_left =
      gauges.unpersisted_blocks + (state.has_disk() ? gauges.adoption_waiting : uint64_t{0});
  gauges.cold_available = state.env.cold != nullptr && state.env.cold->Available();
  return gauges;
}

// One walk over the rows for what concerns single blocks, then each pool, then the sums.
void Cache::Impl::CheckInvariants() const {
  size_t live = 0;
  size_t persist_wanted = 0;
  for (uint32_t row = 0; row < state.blocks.directory.end(); ++row) {
    if (!state.blocks.directory.Live(EntryIndex(row))) continue;
    ++live;
    CheckLineage(EntryIndex(row));
    if (state.blocks.lost.Contains(EntryIndex(row))) continue;
    persist_wanted += state.blocks.directory[EntryIndex(row)].persist_wanted();
    CheckEntry(EntryIndex(row));
  }
  KVT_CHECK(live == state.blocks.directory.size());
  KVT_CHECK(persist_wanted == state.orders.persist_wanted_blocks());
  std::array<uint64_t, kMaxDevices> pool_bytes{};
  for (const auto& [id, pool] : state.blocks.pools) {
    CheckPool(*pool);
    if (pool->is_region) continue;
    pool_bytes[pool->device.value] += pool->memory->bytes();
  }
  for (uint32_t i = 0; i < state.env.devices.size(); ++i) {
    const DeviceIndex device(i);
    KVT_CHECK(pool_bytes[i] + pools.returning_bytes(device) == pools.used_bytes(device));
    KVT_CHECK(pools.used_bytes(device) <= pools.capacity_bytes(device));
  }
  KVT_CHECK(host.allocator().used_bytes() <= state.env.arena->capacity_bytes());
  uint64_t file_bytes = 0;
  for (const BlockFile* file : state.env.files) file_bytes += file->bytes();
  KVT_CHECK(disk.allocator().used_bytes() <= file_bytes);
  CheckTenants();
  CheckUsage();
  const CacheStats::Asked& blocks = state.stats.blocks;
  KVT_CHECK(blocks.asked ==
            blocks.hit[0] + blocks.hit[1] + blocks.hit[2] + blocks.miss + blocks.declined);
  const CacheStats::Asked& tokens = state.stats.tokens;
  KVT_CHECK(tokens.asked ==
            tokens.hit[0] + tokens.hit[1] + tokens.hit[2] + tokens.miss + tokens.declined);
  CacheStats::AskedOf sums;
  for (const CacheStats::AskedOf& asked : state.stats.of_namespaces) {
    sums.blocks.Add(asked.blocks);
    sums.tokens.Add(asked.tokens);
  }
  KVT_CHECK(sums.blocks == blocks && sums.tokens == tokens);
}

// A block without a tier is known only while blocks follow it; links go up by one.
void Cache::Impl::CheckLineage(EntryIndex index) const {
  const BlockEntry& entry = state.blocks.directory[index];
  const EntryIndex parent = state.blocks.lineage.ParentOf(index);
  KVT_CHECK(state.blocks.lost.Contains(index) == entry.gone());
  KVT_CHECK(!entry.gone() || (state.blocks.lineage.HasChildren(index) && parent == kNoEntry));
  if (parent == kNoEntry) return;
  KVT_CHECK(state.blocks.directory.Live(parent));
  KVT_CHECK(state.blocks.directory[parent].namespace_id == entry.namespace_id);
  KVT_CHECK(state.blocks.directory[parent].depth + 1 == entry.depth);
  // If a block is to be evicted early, so are all of its descendants.
  KVT_CHECK(entry.hinted() || !state.blocks.directory[parent].hinted());
}

// Checks that each tenant's usage equals the sum of its blocks and stays within its cap.
void Cache::Impl::CheckTenants() const {
  const TenantTable& tenants = state.tenants;
  std::vector<uint64_t> host_bytes(tenants.rows());
  std::vector<uint64_t> disk_bytes(tenants.rows());
  for (uint32_t row = 0; row < state.blocks.directory.end(); ++row) {
    if (!state.blocks.directory.Live(EntryIndex(row))) continue;
    const BlockEntry& entry = state.blocks.directory[EntryIndex(row)];
    const Namespace& name_space = state.blocks.namespaces[entry.namespace_id.value];
    if (entry.host_slot != kNoHostSlot)
      host_bytes[name_space.tenant.value] += name_space.slot_bytes;
    if (!entry.disk.valid()) continue;
    disk_bytes[name_space.tenant.value] += name_space.slot_bytes;
    KVT_CHECK(disk.allocator().ClassAt(entry.disk.offset).slot_bytes == name_space.slot_bytes);
  }
  for (uint32_t i = 0; i < tenants.rows(); ++i) {
    const TenantId tenant(i);
    KVT_CHECK(tenants.used_bytes(Tier::kHost, tenant) == host_bytes[i]);
    KVT_CHECK(tenants.used_bytes(Tier::kDisk, tenant) ==
              disk_bytes[i] + disk.leaving_bytes(tenant));
    for (const Tier tier : {Tier::kPool, Tier::kHost, Tier::kDisk}) {
      KVT_CHECK(tenants.used_bytes(tier, tenant) <= tenants.bound_bytes(tier, tenant));
    }
  }
}

// Checks that the tenants' bytes are those that the tiers hold. Slots on disk whose deletion is not
// durable yet are no tenant's.
void Cache::Impl::CheckUsage() const {
  std::array<uint64_t, kTierCount> held{};
  for (const TenantUsage& usage : UsageOf(state)) {
    for (size_t tier = 0; tier < kTierCount; ++tier) held[tier] += usage.held_bytes[tier];
  }
  std::array<uint64_t, kTierCount> charged{};
  for (uint32_t i = 0; i < state.tenants.rows(); ++i) {
    for (size_t tier = 0; tier < kTierCount; ++tier) {
      charged[tier] += state.tenants.used_bytes(static_cast<Tier>(tier), TenantId(i));
    }
    charged[static_cast<size_t>(Tier::kDisk)] -= disk.leaving_bytes(TenantId(i));
  }
  KVT_CHECK(held == charged);
}

// Checks that an entry agrees with the pools, orders and tables that refer to it. The transitions
// alone are checked in production (block_lifecycle.h).
void Cache::Impl::CheckEntry(EntryIndex index) const {
  const BlockEntry& entry = state.blocks.directory[index];
  KVT_CHECK(state.blocks.directory.Find({entry.namespace_id, entry.hash}) == index);
  KVT_CHECK(state.orders.AgesOf(state.blocks.TenantOf(entry), entry.retention).Contains(index));
  KVT_CHECK(!entry.gone());
  KVT_CHECK(state.presence.Agrees(index));
  bool loading = false;
  uint32_t copied_from = 0;
  state.blocks.ForEachPlace(entry, [&](const CachePool& pool, BlockIndex at) {
    const PoolBlock& block = pool.blocks[at];
    KVT_CHECK(pool.namespace_id == entry.namespace_id && state.blocks.BlockIn(pool, entry) == at);
    KVT_CHECK(block.state() == PoolBlockState::kCommitted && block.entry == index);
    KVT_CHECK(pool.victims.Contains(index) == block.cached());
    KVT_CHECK(!block.loading() || block.pins() == 0);
    loading |= block.loading();
    copied_from += block.pins();
  });
  KVT_CHECK(entry.loading() == loading);
  KVT_CHECK(copied_from == (entry.offloading() ? 1 : 0));
  KVT_CHECK(entry.has_host_slot() == (entry.host_slot != kNoHostSlot));
  KVT_CHECK(entry.has_disk_slot() == entry.disk.valid());
  if (entry.has_host_slot()) {
    KVT_CHECK(entry.in_host() || entry.offloading() || entry.reading());
  } else {
    KVT_CHECK(!entry.in_host() && entry.host_pins() == 0);
  }
  KVT_CHECK(!entry.persisted() || entry.on_disk());
  KVT_CHECK(host.InOrder(index) == (entry.in_host() || entry.expected_in_host()));
  KVT_CHECK(state.orders.disk.Contains(state.blocks.TenantOf(entry), index) ==
            (!entry.pinned() && (entry.has_disk_slot() || entry.persist_wanted())));
  KVT_CHECK(!state.orders.unpersisted.Contains(index) || state.orders.Undecided(entry));
  KVT_CHECK(entry.retention == RetentionClass::kExtended || !entry.has_disk_slot());
  KVT_CHECK(entry.pinned() == state.orders.pins.Contains(index));
}

// Counts that are kept along with every change equal those that a walk finds.
void Cache::Impl::CheckPool(const CachePool& pool) const {
  uint32_t free = 0;
  uint32_t loading = 0;
  for (uint32_t i = 0; i < pool.blocks.size(); ++i) {
    const PoolBlock& block = pool.blocks[BlockIndex(i)];
    if (block.state() == PoolBlockState::kFree) ++free;
    if (block.state() != PoolBlockState::kCommitted) continue;
    KVT_CHECK(state.blocks.BlockIn(pool, state.blocks.directory[block.entry]) == BlockIndex(i));
    if (block.loading()) ++loading;
  }
  KVT_CHECK(free == pool.blocks.free());
  KVT_CHECK(loading == pool.blocks.loading());
  KVT_CHECK(pool.is_region || pool.to_prepare ||
            pool.victims.prepared() >= std::min(pools.ToBeReady(pool), pool.victims.size()));
}

}  // namespace kvtier
