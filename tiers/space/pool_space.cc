// SPDX-License-Identifier: Apache-2.0
#include "tiers/space/pool_space.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace kvtier {
namespace {

int PoolsWithBytes(const CacheState& state, const BlockEntry& entry) {
  int pools = 0;
  state.ForEachPlace(entry, [&](const CachePool& pool, BlockIndex block) {
    // What an engine's region has, it has for the time of a transfer.
    pools += pool.region == nullptr && !pool.blocks[block].loading();
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

Result<CachePool*> PoolSpace::Attach(NamespaceId namespace_id, DeviceIndex device,
                                     uint64_t pool_bytes, uint32_t shares) {
  Namespace& name_space = state_.namespaces[namespace_id.value];
  if (CachePool* const known = name_space.pools[device.value]) return known;
  // What is reserved for tenants, and their caps, count over all devices.
  const uint64_t left = std::min(capacity_bytes(device) - used_bytes(device),
                                 state_.tenants.PoolBytesLeft(name_space.tenant, capacity_bytes()));
  const uint64_t block_bytes = name_space.identity.block_bytes;
  const uint64_t wanted = pool_bytes == 0 ? left / shares : pool_bytes;
  const uint64_t blocks = std::min<uint64_t>(wanted / block_bytes, PoolPlace::kMaxBlocks);
  const auto exhausted = [&](uint64_t bytes) {
    return MakeError(
        ErrorCode::kResourceExhausted, "pool_bytes_exhausted",
        fmt::format("{} bytes wanted in blocks of {}, {} of {} configured bytes are left to tenant "
                    "\"{}\"",
                    bytes, block_bytes, left, capacity_bytes(device), name_space.identity.tenant));
  };
  // Nothing has been charged up to here, so that a refused pool leaves no trace.
  if (wanted > left || blocks == 0) return exhausted(wanted);
  KVT_ASSIGN_OR_RETURN(std::unique_ptr<DevicePool> memory,
                       state_.env.devices[device.value].device->CreatePool(blocks * block_bytes));
  // A device may round up; the cap holds for what it takes.
  if (memory->bytes() > left) return exhausted(memory->bytes());
  used_bytes_[device.value] += memory->bytes();
  state_.tenants.Charge(Tier::kPool, name_space.tenant, memory->bytes());
  CachePool* const pool = state_.AddPool(
      std::make_unique<CachePool>(CachePool{.namespace_id = namespace_id,
                                            .device = device,
                                            .slot = PoolSlot(device.value),
                                            .block_bytes = block_bytes,
                                            .copier = state_.env.devices[device.value].device,
                                            .memory = std::move(memory),
                                            .blocks = PoolBlocks(static_cast<uint32_t>(blocks)),
                                            .victims = VictimQueue(MakeLruPolicy())}));
  // Wall time makes it differ from pools of earlier processes, the number from this process's
  // others.
  pool->generation = static_cast<uint64_t>(state_.env.clock->WallMs()) << 16 | pool->id.value;
  return pool;
}

bool PoolSpace::MayLeave(const BlockEntry& entry) const {
  return entry.MayLeavePool(PoolsWithBytes(state_, entry));
}

DropReason PoolSpace::ReasonFor(const BlockEntry& entry, DropReason last_copy) const {
  if (entry.in_host() || entry.on_disk()) return DropReason::kCleanCopyBelow;
  return PoolsWithBytes(state_, entry) > 1 ? DropReason::kOnOtherDevice : last_copy;
}

// In order: the front of the queue decides, and a dirty block there is waited for, though there may
// be clean ones behind it. Otherwise what is copied fastest would leave first, not what is coldest.
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
    // A pinned block that has no other copy may not leave: it goes to the hot end, so that the next
    // one is looked at.
    if (!MayLeave(entry)) {
      pool->victims.Touch(front, entry.facts());
      PrepareVictims(pool, blocks - pool->blocks.free(), Need::kNow);
      continue;
    }
    Drop(pool, front, ReasonFor(entry, DropReason::kLru));
  }
  return pool->blocks.free() >= blocks;
}

// The coldest first again, but what cannot leave now is passed over.
bool PoolSpace::ForceFree(CachePool* pool, uint64_t blocks) {
  PrepareVictims(pool, blocks, Need::kNow);
  EntryIndex victim = pool->victims.Front();
  while (pool->blocks.free() < blocks && victim != kNoEntry) {
    const BlockEntry& entry = state_[victim];
    // One more candidate for each that is being copied right now and has to be passed over.
    if (pool->victims.After(victim) == kNoEntry) {
      PrepareVictims(pool, pool->victims.prepared() + 1, Need::kNow);
    }
    const EntryIndex next = pool->victims.After(victim);
    if (pool->blocks[state_.BlockIn(*pool, entry)].pins() == 0 && MayLeave(entry)) {
      Drop(pool, victim, ReasonFor(entry, DropReason::kPoolPressure));
    }
    victim = next;
  }
  return pool->blocks.free() >= blocks;
}

void PoolSpace::Drop(CachePool* pool, EntryIndex index, DropReason reason) {
  state_.CountDrop(index, Tier::kPool, reason);
  pool->victims.Remove(index);
  const BlockIndex block = state_.RemovePlace(pool, index);
  state_.CountResidence(Tier::kPool, pool->blocks[block].since_ds);
  pool->blocks.Free(block, nullptr);
  // Another device's pool may still serve as the source of a copy that is queued.
  if (state_.ReadyPool(state_[index]) == nullptr) to_host_.SourceGone(index);
  state_.ForgetIfGone(index);
}

void PoolSpace::DropAll(EntryIndex index, DropReason reason) {
  // The last drop forgets the entry: where the block is must be known before.
  std::vector<CachePool*> holders;
  state_.ForEachPlace(state_[index],
                      [&](CachePool& pool, BlockIndex) { holders.push_back(&pool); });
  for (CachePool* const pool : holders) Drop(pool, index, reason);
}

// Copies are asked for before the space is needed: an acquire that finds clean victims does not
// wait for the copy engine.
void PoolSpace::Prepare() {
  for (const auto& pool : state_.pools) {
    if (!pool || pool->region != nullptr) continue;
    const double share = state_.options.pool_clean_fraction;
    const auto wanted = static_cast<uint64_t>(std::ceil(share * pool->blocks.size()));
    if (wanted > pool->blocks.free())
      PrepareVictims(pool.get(), wanted - pool->blocks.free(), Need::kLater);
  }
}

void PoolSpace::PrepareVictims(CachePool* pool, uint64_t target, Need need) {
  pool->victims.Prepare(target, [&](EntryIndex index) {
    if (need == Need::kNow && !state_[index].in_host() && state_[index].CleanInPool()) return;
    to_host_.Want(index);
  });
}

}  // namespace kvtier
