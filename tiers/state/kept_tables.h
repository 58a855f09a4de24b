// SPDX-License-Identifier: Apache-2.0
// The bytes of host slots, and the tables beside host memory and pools that tell a later daemon
// which blocks are whole there, and which are pinned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tiers/directory/block_lifecycle.h"
#include "tiers/memory/host_table.h"
#include "tiers/memory/pool_table.h"
#include "tiers/storage/slot_header.h"
#include "tiers/types/block_key.h"

namespace kvtier {

struct CachePool;
class CacheState;

// Part of CacheState. Event loop only.
class KeptTables {
 public:
  // `state` is borrowed and outlives this.
  explicit KeptTables(CacheState* state) : state_(*state) {}

  // The entry's slot in the arena: header, then payload. REQUIRES: it has one.
  [[nodiscard]] std::span<std::byte> HostBytes(const BlockEntry& entry);
  // The table beside host memory says no longer, or again, that the entry's slot is whole; nothing
  // happens where there is no table. Between the two calls the slot's bytes may change. REQUIRES:
  // it has a slot.
  void BeginHostChange(const BlockEntry& entry);
  void EndHostChange(EntryIndex entry);
  // A slot that holds the entry's block says this.
  [[nodiscard]] SlotExpectation ExpectationOf(const BlockEntry& entry);
  // The pool's block of the entry is whole: the table beside the pool's memory is to say so.
  void EnterPool(CachePool* pool, EntryIndex entry);
  // The tables learn of the entry's times and uses, where it is.
  void Update(EntryIndex entry);

 private:
  [[nodiscard]] PoolEntryFacts PoolFactsOf(const CachePool& pool, EntryIndex entry) const;
  [[nodiscard]] HostSlotFacts HostFactsOf(EntryIndex entry) const;

  CacheState& state_;
};

// Pins as the index and the tables of kept memory have them, for a later daemon: those of more than
// a minute. No session holds them there. Part of CacheState. Event loop only.
class PinRecords {
 public:
  // `state` is borrowed and outlives this.
  explicit PinRecords(CacheState* state) : state_(*state) {}

  // The end of the block's pins, in Unix time; 0 if a restart may forget them. Rounded up to ten
  // minutes, so that a pin that is prolonged is seldom written anew.
  [[nodiscard]] uint32_t RecordedS(EntryIndex index) const;
  // The block's pins have changed since that was recorded: tables and index learn of it.
  void Note(EntryIndex index, uint32_t recorded_before_s);
  // As the index has it of an earlier daemon, unless more than pin_fraction would be pinned then.
  void Restore(EntryIndex index, uint32_t recorded_s);
  // The same for what a table has, of which the index may not know.
  void Adopt(EntryIndex index, uint32_t recorded_s);
  [[nodiscard]] bool Lasts(uint32_t recorded_s) const;

 private:
  CacheState& state_;
};

}  // namespace kvtier
