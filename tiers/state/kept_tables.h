// SPDX-License-Identifier: Apache-2.0
// The bytes of host slots, and the tables beside host memory and pools that tell a later daemon
// which blocks are whole there.
#pragma once

#include <cstddef>
#include <span>

#include "tiers/directory/block_lifecycle.h"
#include "tiers/memory/host_table.h"
#include "tiers/memory/pool_table.h"
#include "tiers/storage/slot_header.h"

namespace kvtier {

class CacheState;
struct CachePool;

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

}  // namespace kvtier
