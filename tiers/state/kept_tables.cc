// SPDX-License-Identifier: Apache-2.0
#include "tiers/state/kept_tables.h"

#include "base/result.h"
#include "tiers/state/cache_state.h"

namespace kvtier {

// Header and payload. The span is valid while the entry has its host slot; keeping it beyond an
// event takes a pin.
std::span<std::byte> KeptTables::HostBytes(const BlockEntry& entry) {
  KVT_CHECK(entry.has_host_slot());
  return {state_.env.arena->data() + entry.host_slot.value * kHostSlotUnit,
          state_.blocks.NamespaceOf(entry).slot_bytes};
}

HostSlotFacts KeptTables::HostFactsOf(EntryIndex index) const {
  const BlockEntry& entry = state_.blocks.directory[index];
  return {entry.uses, state_.clock.ToWallS(entry.last_use_s), state_.clock.ToWallS(entry.created_s),
          entry.retention, state_.pin_records.RecordedS(index)};
}

void KeptTables::Update(EntryIndex index) {
  const BlockEntry& entry = state_.blocks.directory[index];
  state_.blocks.ForEachPlace(entry, [&](CachePool& pool, BlockIndex block) {
    if (pool.blocks.table() != nullptr) pool.blocks.RecordUse(block, PoolFactsOf(pool, index));
  });
  if (!entry.in_host() || state_.env.arena->table() == nullptr) return;
  state_.env.arena->table()->Update(entry.host_slot.value * kHostSlotUnit, HostFactsOf(index));
}

PoolEntryFacts KeptTables::PoolFactsOf(const CachePool& pool, EntryIndex index) const {
  const BlockEntry& entry = state_.blocks.directory[index];
  PoolEntryFacts facts{.hash = entry.hash,
                       .parent = state_.blocks.ParentHashOf(index),
                       .checksum = std::nullopt,
                       .depth = entry.depth,
                       .tokens = entry.tokens,
                       .retention = entry.retention,
                       .uses = entry.uses,
                       .last_use_s = state_.clock.ToWallS(entry.last_use_s),
                       .created_s = state_.clock.ToWallS(entry.created_s),
                       .pinned_until_s = state_.pin_records.RecordedS(index)};
  const PayloadChecksum* const given = state_.blocks.CommitChecksum(pool, index);
  if (given != nullptr) facts.checksum = *given;
  return facts;
}

void KeptTables::EnterPool(CachePool* pool, EntryIndex index) {
  if (pool->blocks.table() == nullptr) return;
  pool->blocks.Record(state_.blocks.BlockIn(*pool, state_.blocks.directory[index]),
                      PoolFactsOf(*pool, index));
}

void KeptTables::BeginHostChange(const BlockEntry& entry) {
  KVT_CHECK(entry.has_host_slot());
  if (state_.env.arena->table() == nullptr) return;
  state_.env.arena->table()->BeginFill(entry.host_slot.value * kHostSlotUnit,
                                       state_.blocks.NamespaceOf(entry).slot_bytes);
}

void KeptTables::EndHostChange(EntryIndex index) {
  if (state_.env.arena->table() == nullptr) return;
  const HostSlot slot = state_.blocks.directory[index].host_slot;
  state_.env.arena->table()->Complete(slot.value * kHostSlotUnit, HostFactsOf(index));
}

SlotExpectation KeptTables::ExpectationOf(const BlockEntry& entry) {
  return {state_.blocks.NamespaceOf(entry).identity,
          entry.hash,
          entry.disk,
          entry.disk_generation,
          entry.tokens,
          state_.env.keys != nullptr};
}

}  // namespace kvtier
