// SPDX-License-Identifier: Apache-2.0
#include "tiers/space/pool_space.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "tiers/policy/eviction_duel.h"
#include "tiers/policy/use_class_policy.h"

namespace kvtier {
namespace {

// The pools of a model whose sizes are left to the daemon get together at least one part in so many
// of the device, if closing unused pools can make that much.
constexpr uint64_t kUnsizedShare = 4;

Error PoolsReturning() {
  return {ErrorCode::kUnavailable, "pool_bytes_returning",
          "pools of clients that have gone are being closed"};
}

int PoolsWithBytes(const CacheState& state, const BlockEntry& entry) {
  int pools = 0;
  state.blocks.ForEachPlace(entry, [&](const CachePool& pool, BlockIndex block) {
    // Blocks of an engine's region are its own for the time of a transfer only.
    pools += !pool.is_region && !pool.blocks[block].loading();
  });
  return pools;
}

}  // namespace

uint64_t PoolSpace::capacity_bytes(DeviceIndex device) const {
  const uint64_t own_bytes = state_.env.devices[device.value].pool_bytes;
  return own_bytes > 0 ? own_bytes : state_.options.pool_bytes;
}

uint64_t PoolSpace::capacity_bytes() const {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < state_.env.devices.size(); ++i) bytes += capacity_bytes(DeviceIndex(i));
  return bytes;
}

uint64_t PoolSpace::returning_bytes(DeviceIndex device) const {
  uint64_t bytes = 0;
  for (const Returning& memory : returning_) bytes += memory.device == device ? memory.bytes : 0;
  return bytes;
}

std::unique_ptr<EvictionPolicy> PoolSpace::MakeOrder(const Namespace& name_space,
                                                     uint64_t blocks) const {
  const CacheOptions& options = state_.options;
  const auto now_s = [&state = state_] { return state.clock.NowS(); };
  if (options.pool_eviction == PoolEviction::kLru) return MakeLruPolicy();
  if (options.pool_eviction == PoolEviction::kClsAlways) return MakeUseClassPolicy(now_s);
  // Pools are taken to share host memory by their sizes. It has besides the blocks of a pool that
  // are kept ready to be dropped.
  const uint64_t slot_bytes = std::max<uint64_t>(name_space.slot_bytes, 1);
  const double host_share = static_cast<double>(blocks * name_space.identity.block_bytes) /
                            static_cast<double>(capacity_bytes());
  const double host_blocks = host_share * static_cast<double>(state_.env.arena->capacity_bytes()) /
                                 static_cast<double>(slot_bytes) -
                             options.pool_clean_fraction * static_cast<double>(blocks);
  return MakeDuelPolicy(now_s, {.pool_blocks = blocks,
                                .host_blocks = static_cast<uint64_t>(std::max(host_blocks, 0.0))});
}

// Tenants' reserves and caps count over all devices.
uint64_t PoolSpace::BytesLeft(TenantId tenant, DeviceIndex device) const {
  return std::min(capacity_bytes(device) - used_bytes(device),
                  state_.tenants.PoolBytesLeft(tenant, capacity_bytes()));
}

Result<CachePool*> PoolSpace::Attach(NamespaceId namespace_id, DeviceIndex device,
                                     uint64_t pool_bytes, uint32_t shares, uint32_t groups) {
  Namespace& name_space = state_.blocks.namespaces[namespace_id.value];
  if (CachePool* const known = name_space.PoolIn(PoolSlot(device.value))) return known;
  KVT_RETURN_IF_ERROR(state_.blocks.MayAddPool());
  const uint64_t block_bytes = name_space.identity.block_bytes;
  const bool sized = pool_bytes > 0;
  if (sized && pool_bytes < block_bytes) {
    return MakeError(ErrorCode::kInvalidArgument, "pool_below_block",
                     fmt::format("{} bytes hold no block of {}", pool_bytes, block_bytes));
  }
  KVT_RETURN_IF_ERROR(
      MakeRoom(name_space.tenant, device,
               sized ? pool_bytes : capacity_bytes(device) / kUnsizedShare / groups * shares,
               /*any=*/!sized));
  const uint64_t left = BytesLeft(name_space.tenant, device);
  const uint64_t wanted = pool_bytes == 0 ? left / shares : pool_bytes;
  const uint64_t blocks = std::min<uint64_t>(wanted / block_bytes, PoolPlace::kMaxBlocks);
  const auto exhausted = [&](uint64_t bytes) {
    return MakeError(
        ErrorCode::kResourceExhausted, "pool_bytes_exhausted",
        fmt::format("{} wanted in blocks of {}, {} of {} configured bytes are left to tenant "
                    "\"{}\"; {}raise pool.bytes",
                    bytes == 0 ? "a pool of any size" : fmt::format("{} bytes", bytes), block_bytes,
                    left, capacity_bytes(device), name_space.identity.tenant,
                    left == capacity_bytes(device)
                        ? ""
                        : "other models have the rest (kvtierctl status): attach them with fewer "
                          "bytes, or "));
  };
  // Nothing has been charged up to here, so that a refused pool leaves no trace.
  if (wanted > left || blocks == 0) return exhausted(wanted);
  std::shared_ptr<const void> place = places_.TakeOne(name_space.identity.tenant);
  if (place == nullptr) return tl::unexpected(MakePlace(name_space.line));
  KVT_ASSIGN_OR_RETURN(std::unique_ptr<DevicePool> memory,
                       state_.env.devices[device.value].device->CreatePool(blocks * block_bytes));
  // A device may round up; the cap holds for the rounded size.
  if (memory->bytes() > left) return exhausted(memory->bytes());
  // Wall time makes it differ from pools of earlier processes, the count from this process's
  // others: a client that finds the generation that it knows keeps the memory that it has mapped.
  const uint64_t generation =
      static_cast<uint64_t>(state_.env.clock->WallMs()) << 16 | (++created_ & 0xffff);
  CachePool* const pool =
      Add(namespace_id, device, std::move(memory), static_cast<uint32_t>(blocks), generation);
  pool->place = std::move(place);
  Keep(pool);
  return pool;
}

CachePool* PoolSpace::Add(NamespaceId namespace_id, DeviceIndex device,
                          std::unique_ptr<DevicePool> memory, uint32_t blocks,
                          uint64_t generation) {
  const Namespace& name_space = state_.blocks.namespaces[namespace_id.value];
  used_bytes_[device.value] += memory->bytes();
  state_.tenants.Charge(Tier::kPool, name_space.tenant, memory->bytes());
  state_.usage.Take(name_space.line, Tier::kPool, memory->bytes());
  return state_.blocks.AddPool(std::make_unique<CachePool>(CachePool{
      .namespace_id = namespace_id,
      .device = device,
      .slot = PoolSlot(device.value),
      .generation = generation,
      .block_bytes = name_space.identity.block_bytes,
      .copier = state_.env.devices[device.value].device,
      .memory = std::move(memory),
      .blocks = PoolBlocks(blocks),
      .victims = VictimQueue(MakeOrder(name_space, blocks),
                             [this](EntryIndex entry) { return state_.FactsIfAwaited(entry); })}));
}

// Until the memory has been zeroed, the next daemon must not show it to anyone.
void PoolSpace::Keep(CachePool* pool) {
  if (state_.env.pool_keeper == nullptr) return;
  PoolTable* const table = state_.env.pool_keeper->Keep(
      pool->device,
      {.identity = state_.blocks.namespaces[pool->namespace_id.value].identity,
       .generation = pool->generation,
       .memory_bytes = pool->memory->bytes(),
       .device_bytes = capacity_bytes(pool->device),
       .blocks = pool->blocks.size()},
      *pool->memory);
  if (table == nullptr) return;
  pool->blocks.SetTable(table);
  pool->memory->WhenReady(gate_.WhileOpen([this, id = pool->id, table] {
    const CachePool* const ready = state_.blocks.FindPool(id);
    if (ready != nullptr && ready->blocks.table() == table) table->SetReady();
  }));
}

Result<CachePool*> PoolSpace::Adopt(LeftPool left) {
  KVT_ASSIGN_OR_RETURN(const NamespaceId namespace_id,
                       state_.blocks.InternNamespace(left.description.identity));
  const Namespace& name_space = state_.blocks.namespaces[namespace_id.value];
  if (name_space.PoolIn(PoolSlot(left.device.value)) != nullptr) {
    return MakeError(ErrorCode::kCorrupt, "duplicate");
  }
  if (left.memory->bytes() > BytesLeft(name_space.tenant, left.device)) {
    return MakeError(ErrorCode::kResourceExhausted, "size_changed");
  }
  CachePool* const pool = Add(namespace_id, left.device, std::move(left.memory),
                              left.description.blocks, left.description.generation);
  // No session of this daemon uses it: it may be closed to make room for another.
  pool->unused_since_ms = state_.clock.NowMs();
  return pool;
}

Error PoolSpace::MakePlace(TenantLine line) {
  CachePool* oldest = nullptr;
  bool returning = std::ranges::any_of(
      returning_, [line](const Returning& memory) { return memory.line == line; });
  for (const auto& [id, pool] : state_.blocks.pools) {
    const bool closable = !pool->is_region && pool->unused_since_ms.has_value() &&
                          pool->ended_sessions == 0 &&
                          state_.blocks.namespaces[pool->namespace_id.value].line == line;
    if (!closable) continue;
    if (IsRead(*pool)) {
      returning = true;
    } else if (oldest == nullptr || pool->unused_since_ms < oldest->unused_since_ms) {
      oldest = pool.get();
    }
  }
  if (oldest == nullptr && !returning) {
    return {ErrorCode::kLimitExceeded, "too_many_pools",
            fmt::format("the tenant's clients use all that it may have of {}", kMostPools)};
  }
  if (oldest != nullptr) Empty(oldest);
  return PoolsReturning();
}

Status PoolSpace::MakeRoom(TenantId tenant, DeviceIndex device, uint64_t wanted, bool any) {
  if (BytesLeft(tenant, device) >= wanted) return {};
  const Plan plan = PlanToClose(tenant, device, wanted);
  const bool helps = plan.bytes_left > BytesLeft(tenant, device);
  // A pool that is refused all the same must not have cost others their blocks.
  if (!helps || (plan.bytes_left < wanted && !any)) return {};
  // A process that lost its connection and lives on may keep a pool for long: until all of them can
  // be closed, none is touched.
  if (std::ranges::any_of(plan.pools, [this](const CachePool* pool) { return IsHeld(*pool); })) {
    return tl::unexpected(PoolsReturning());
  }
  for (CachePool* const pool : plan.pools) Empty(pool);
  return tl::unexpected(PoolsReturning());
}

// Each step is tried on a copy of the table, so that caps and reserves count as they will when it
// has been done.
PoolSpace::Plan PoolSpace::PlanToClose(TenantId tenant, DeviceIndex device, uint64_t wanted) const {
  TenantTable tenants = state_.tenants;
  uint64_t free_bytes = capacity_bytes(device) - used_bytes(device);
  const auto left = [&] {
    return std::min(free_bytes, tenants.PoolBytesLeft(tenant, capacity_bytes()));
  };
  const auto give_back = [&](TenantId owner, uint64_t bytes) {
    tenants.Refund(Tier::kPool, owner, bytes);
    free_bytes += bytes;
  };
  for (const Returning& memory : returning_) {
    if (memory.device == device) give_back(memory.tenant, memory.bytes);
  }
  std::vector<CachePool*> unused;
  for (const auto& [id, pool] : state_.blocks.pools) {
    const bool closable = !pool->is_region && pool->unused_since_ms.has_value();
    if (closable && pool->device == device) unused.push_back(pool.get());
  }
  // Pools that can be closed now come before those that a process may still write to.
  std::ranges::sort(unused, {}, [this](const CachePool* pool) {
    return std::tuple(IsHeld(*pool), *pool->unused_since_ms);
  });
  Plan plan;
  for (CachePool* const pool : unused) {
    if (left() >= wanted) break;
    const TenantId owner = state_.blocks.namespaces[pool->namespace_id.value].tenant;
    const uint64_t bytes = pool->memory->bytes();
    // Where its own cap is in the tenant's way, pools of others would not help.
    const bool capped = left() == tenants.CapBytesLeft(Tier::kPool, tenant);
    if (owner != tenant && (capped || !tenants.KeepsPoolReserve(owner, bytes))) continue;
    give_back(owner, bytes);
    plan.pools.push_back(pool);
  }
  plan.bytes_left = left();
  return plan;
}

// In parts, since a pool may have very many blocks. A block that is being copied, or awaited by a
// prefetch, is skipped until that has ended; a pinned block without a copy, until it has one.
void PoolSpace::Empty(CachePool* pool) {
  const CacheTrace::Together together(&state_.trace);
  const uint32_t blocks = pool->blocks.size();
  for (uint32_t i = std::min(blocks, state_.options.close_part_blocks); i > 0; --i) {
    const BlockIndex index(pool->next_to_close);
    pool->next_to_close = (pool->next_to_close + 1) % blocks;
    const PoolBlock& block = pool->blocks[index];
    if (block.state() != PoolBlockState::kCommitted || block.loading() || block.pins() > 0 ||
        block.references() > 0) {
      continue;
    }
    const EntryIndex entry = block.entry;
    if (MayLeave(state_[entry])) {
      Drop(pool, entry, ReasonFor(state_[entry], DropReason::kPoolPressure));
    } else {
      to_host_.Want(entry);
    }
  }
  if (pool->blocks.free() == blocks && pool->operations == 0) Close(pool);
}

// Memory and records go on a thread of the executor, because giving back a hundred gigabytes takes
// the kernel seconds; checksums have one thread less meanwhile.
void PoolSpace::Close(CachePool* pool) {
  const Namespace& name_space = state_.blocks.namespaces[pool->namespace_id.value];
  const auto returning = returning_.insert(
      returning_.end(), {name_space.tenant, name_space.line, pool->device, pool->memory->bytes()});
  PoolTable* const table = pool->blocks.table();
  const auto gone = std::make_shared<std::unique_ptr<CachePool>>(state_.blocks.RemovePool(pool));
  if (table != nullptr) state_.env.pool_keeper->Release(table, "");
  state_.env.executor->Run(
      [gone] {
        (*gone)->memory->Discard();
        gone->reset();
      },
      gate_.WhileOpen([this, returning] {
        used_bytes_[returning->device.value] -= returning->bytes;
        state_.tenants.Refund(Tier::kPool, returning->tenant, returning->bytes);
        state_.usage.GiveBack(returning->line, Tier::kPool, returning->bytes);
        returning_.erase(returning);
      }));
}

bool PoolSpace::MayLeave(const BlockEntry& entry) const {
  return !entry.pinned() || entry.in_host() || entry.on_disk() || PoolsWithBytes(state_, entry) > 1;
}

DropReason PoolSpace::ReasonFor(const BlockEntry& entry, DropReason last_copy) const {
  if (entry.in_host() || entry.on_disk()) return DropReason::kCleanCopyBelow;
  return PoolsWithBytes(state_, entry) > 1 ? DropReason::kOnOtherDevice : last_copy;
}

// In order: the front of the queue decides, and a dirty block there is waited for, though there may
// be clean ones behind it. Otherwise the blocks copied fastest would leave first, not the coldest.
bool PoolSpace::EnsureFree(CachePool* pool, uint64_t blocks) {
  if (pool->blocks.free() >= blocks) return true;
  PrepareVictims(pool, blocks - pool->blocks.free(), Need::kNow);
  const CacheTrace::Together together(&state_.trace);
  for (size_t tries = pool->victims.size(); tries > 0 && pool->blocks.free() < blocks; --tries) {
    const EntryIndex front = pool->victims.Front();
    if (front == kNoEntry) break;
    const BlockEntry& entry = state_[front];
    if (!entry.CleanInPool()) {
      to_host_.Want(front);
      break;
    }
    if (const EntryIndex later = pool->victims.After(front); later != kNoEntry) {
      state_.history.ExpectDrop({state_[later].namespace_id, state_[later].hash});
    }
    if (!MayLeave(entry)) {
      if (!PassOver(pool, front)) break;
      PrepareVictims(pool, blocks - pool->blocks.free(), Need::kNow);
      continue;
    }
    Drop(pool, front, ReasonFor(entry, DropReason::kLru));
  }
  return pool->blocks.free() >= blocks;
}

bool PoolSpace::PassOver(CachePool* pool, EntryIndex entry) {
  if (pool->victims.AllPassedOver()) return false;
  return state_.parts.TakeStep(&pool->search, [&] {
    pool->victims.PassOver(entry, state_.blocks.FactsOf(entry));
    return true;
  });
}

// The coldest first again, but what cannot leave now is passed over: all of it once, however many
// blocks come and go meanwhile.
std::optional<bool> PoolSpace::ForceFree(CachePool* pool, uint64_t blocks, uint64_t* passed) {
  if (pool->blocks.free() >= blocks) return true;
  PrepareVictims(pool, blocks - pool->blocks.free(), Need::kNow);
  EntryIndex victim = pool->victims.Front();
  while (pool->blocks.free() < blocks && victim != kNoEntry) {
    const BlockEntry& entry = state_[victim];
    // One more candidate for each that is being copied right now and has to be passed over.
    if (pool->victims.After(victim) == kNoEntry) {
      PrepareVictims(pool, pool->victims.prepared() + 1, Need::kNow);
    }
    const EntryIndex next = pool->victims.After(victim);
    if (!MayLeave(entry)) {
      if (*passed >= pool->victims.size() || pool->victims.AllPassedOver()) break;
      if (!PassOver(pool, victim)) return std::nullopt;
      ++*passed;
    } else if (pool->blocks[state_.blocks.BlockIn(*pool, entry)].pins() == 0) {
      Drop(pool, victim, ReasonFor(entry, DropReason::kPoolPressure));
    }
    victim = next;
  }
  *passed = 0;
  return pool->blocks.free() >= blocks;
}

void PoolSpace::Drop(CachePool* pool, EntryIndex index, DropReason reason) {
  state_.drops.Count(index, Tier::kPool, reason);
  const BlockIndex block = state_.RemovePlace(pool, index);
  state_.drops.CountResidence(Tier::kPool, pool->blocks[block].since_ds);
  pool->blocks.Free(block, nullptr);
  // Another device's pool may still serve as the source of a copy that is queued.
  if (state_.blocks.ReadyPool(state_[index]) == nullptr) to_host_.SourceGone(index);
  state_.ForgetIfGone(index);
}

void PoolSpace::DropAll(EntryIndex index, DropReason reason) {
  // The last drop forgets the entry: where the block is must be known before.
  std::vector<CachePool*> holders;
  state_.blocks.ForEachPlace(state_[index],
                             [&](CachePool& pool, BlockIndex) { holders.push_back(&pool); });
  for (CachePool* const pool : holders) Drop(pool, index, reason);
}

// Copies are asked for before the space is needed: an acquire that finds clean victims does not
// wait for the copy engine.
void PoolSpace::Prepare() {
  for (const PoolId id : std::exchange(state_.to_prepare, {})) {
    CachePool* const pool = state_.blocks.FindPool(id);
    if (pool == nullptr) continue;
    pool->to_prepare = false;
    PrepareVictims(pool, ToBeReady(*pool), Need::kLater);
  }
}

uint64_t PoolSpace::ToBeReady(const CachePool& pool) const {
  const double share = state_.options.pool_clean_fraction;
  const auto wanted = static_cast<uint64_t>(std::ceil(share * pool.blocks.size()));
  return wanted - std::min<uint64_t>(wanted, pool.blocks.free());
}

void PoolSpace::PrepareVictims(CachePool* pool, uint64_t target, Need need) {
  if (need == Need::kNow) state_.NoteChange(pool);
  pool->victims.Prepare(target, [&](EntryIndex index) {
    if (need == Need::kNow && !state_[index].in_host() && state_[index].CleanInPool()) return;
    to_host_.Want(index);
  });
}

}  // namespace kvtier
