// SPDX-License-Identifier: Apache-2.0
#include "tiers/state/kept_tables.h"

#include <algorithm>

#include "base/result.h"
#include "tiers/state/cache_state.h"

namespace kvtier {
namespace {

// A pin that ends so soon may end with the process: it covers the moments between a lookup and its
// load.
constexpr int64_t kUnrecordedPinMs = 60'000;
constexpr int64_t kRecordedPinS = 600;

}  // namespace

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
  if (!entry.in_host() || entry.is_copy || state_.env.arena->table() == nullptr) return;
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

// A canary's copy stays unfinished for a later process, which would take it for a block.
void KeptTables::EndHostChange(EntryIndex index) {
  const BlockEntry& entry = state_.blocks.directory[index];
  if (entry.is_copy || state_.env.arena->table() == nullptr) return;
  state_.env.arena->table()->Complete(entry.host_slot.value * kHostSlotUnit, HostFactsOf(index));
}

SlotExpectation KeptTables::ExpectationOf(const BlockEntry& entry) {
  return {state_.blocks.NamespaceOf(entry).identity,
          entry.hash,
          entry.disk,
          entry.disk_generation,
          entry.tokens,
          state_.env.keys != nullptr};
}

uint32_t PinRecords::RecordedS(EntryIndex index) const {
  if (!state_.orders.pins.Contains(index)) return 0;
  const int64_t until_ms = state_.orders.pins.UntilMs(index);
  if (until_ms - state_.clock.AgeMs() <= kUnrecordedPinMs) return 0;
  // The two clocks are read one after the other: a millisecond more is no ten minutes more.
  const int64_t until_s = (until_ms + state_.clock.WallStepMs() - 500) / 1000;
  return static_cast<uint32_t>((until_s / kRecordedPinS + 1) * kRecordedPinS);
}

void PinRecords::Note(EntryIndex index, uint32_t recorded_before_s) {
  if (RecordedS(index) == recorded_before_s) return;
  state_.tables.Update(index);
  // A commit under way may have read the entry before: it is to be written again.
  if (state_.blocks.directory[index].committing()) state_.blocks.directory[index].indexed_use_s = 0;
  state_.QueueRecencyUpdate(index);
  state_.SchedulePump();
}

// The tables have no checksums: an end that no pin has is a damaged one.
bool PinRecords::Lasts(uint32_t recorded_s) const {
  const int64_t left_ms =
      int64_t{recorded_s} * 1000 - (state_.clock.AgeMs() + state_.clock.WallStepMs());
  return recorded_s % kRecordedPinS == 0 && left_ms > 0 &&
         left_ms <= kMaxPinTtlMs + kRecordedPinS * 1000;
}

// The limit bounds the harm that a damaged end can do which passes for a true one.
void PinRecords::Restore(EntryIndex index, uint32_t recorded_s) {
  if (!Lasts(recorded_s)) return;
  const uint64_t lowest_bytes =
      state_.has_disk() ? state_.env.geometry.bytes() : state_.env.arena->expected_bytes();
  const uint64_t bytes = state_.blocks.NamespaceOf(state_.blocks.directory[index]).slot_bytes;
  const auto most =
      static_cast<uint64_t>(state_.options.pin_fraction * static_cast<double>(lowest_bytes));
  if (!state_.orders.pins.Contains(index) && (state_.orders.pins.size() + 1) * bytes > most) return;
  const int64_t until_ms = int64_t{recorded_s} * 1000 - state_.clock.WallStepMs();
  state_.Apply(index, BlockEvent::kPin);
  state_.orders.pins.Set(index, kNobody, std::min(until_ms, state_.clock.AgeMs() + kMaxPinTtlMs));
}

void PinRecords::Adopt(EntryIndex index, uint32_t recorded_s) {
  const uint32_t before_s = RecordedS(index);
  Restore(index, recorded_s);
  Note(index, before_s);
}

}  // namespace kvtier
