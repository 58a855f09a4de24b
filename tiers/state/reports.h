// SPDX-License-Identifier: Apache-2.0
// Reports of the cache: which copies of blocks left a tier and why, and what went wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "tiers/directory/block_lifecycle.h"
#include "tiers/policy/eviction_policy.h"
#include "tiers/storage/slot_header.h"
#include "tiers/types/block_key.h"
#include "tiers/types/block_view.h"
#include "tiers/types/cache_stats.h"
#include "tiers/types/incident.h"

namespace kvtier {

class CacheState;

// Why blocks that are asked about are not there: the latest drops and misses, by block. Each block
// has one place in a table of fixed size, where a later event of any block replaces an earlier one:
// constant time and bounded memory, and recent events are nearly always there. Event loop only.
class BlockHistory {
 public:
  static constexpr size_t kDropsRemembered = 65536;
  static constexpr size_t kMissesRemembered = 16384;

  void NoteDrop(const BlockKey& key, const BlockDrop& drop) {
    Note(&drops_, kDropsRemembered, key, drop);
  }
  // NoteDrop will soon be called for the block: fetches its place, which no core has in its cache.
  void ExpectDrop(const BlockKey& key) const {
    const auto* row = drops_.Find(std::hash<BlockKey>()(key) % kDropsRemembered);
    if (row == nullptr) return;
    __builtin_prefetch(&row->key, 1);
    __builtin_prefetch(&row->event, 1);
    // GCC takes a function that does nothing but prefetch for one without effects, and drops the
    // calls of it. An empty statement that may do anything counts as an effect.
    asm volatile("");
  }
  void NoteMiss(const BlockKey& key, const BlockMiss& miss) {
    Note(&misses_, kMissesRemembered, key, miss);
  }
  [[nodiscard]] BlockPast Of(const BlockKey& key) const {
    return {Recall(drops_, kDropsRemembered, key), Recall(misses_, kMissesRemembered, key)};
  }

 private:
  template <typename Event>
  struct Row {
    BlockKey key;
    std::optional<Event> event;
  };
  // Pages are small, so that a cache that drops little pays for little.
  static constexpr size_t kPageRows = 256;
  template <typename Event>
  using Rows = PagedArray<Row<Event>, kPageRows>;

  template <typename Event>
  static void Note(Rows<Event>* rows, size_t count, const BlockKey& key, const Event& event) {
    Row<Event>& row = rows->At(std::hash<BlockKey>()(key) % count);
    row.key = key;
    row.event = event;
  }
  // Several blocks share a place: the key says whose event is there.
  template <typename Event>
  static std::optional<Event> Recall(const Rows<Event>& rows, size_t count, const BlockKey& key) {
    const Row<Event>* row = rows.Find(std::hash<BlockKey>()(key) % count);
    return row != nullptr && row->key == key ? row->event : std::nullopt;
  }

  Rows<BlockDrop> drops_;
  Rows<BlockMiss> misses_;
};

// Counts copies of blocks that leave a tier, and remembers why. Part of CacheState. Event loop
// only.
class DropLog {
 public:
  // `state` is borrowed and outlives this.
  explicit DropLog(CacheState* state) : state_(*state) {}

  // A copy of the block has left the tier, or never reached it.
  void Count(const BlockKey& key, Tier tier, DropReason reason);
  void Count(EntryIndex entry, Tier tier, DropReason reason);
  // A block leaves the tier that it came to at `since_ds`.
  void CountResidence(Tier tier, uint32_t since_ds);

 private:
  CacheState& state_;
};

// Tells the cache's owner of what goes wrong, each time with the place and the reason. The owner
// decides how many of the same kind it passes on; without one every call does nothing. Part of
// CacheState. Event loop only.
class Incidents {
 public:
  // `state` is borrowed and outlives this.
  explicit Incidents(CacheState* state) : state_(*state) {}

  void Report(IncidentKind kind, const Status& failed);
  void Report(IncidentKind kind, NamespaceId whose, std::string reason);
  // Names a slot on disk, and the block that is or was in it; kNoEntry: none is known.
  void ReportSlot(IncidentKind kind, DiskLocation slot, EntryIndex block, std::string reason);
  // The slot was read, or could not be, and is not to be served: nothing is reported of a block
  // that was erased.
  void ReportRead(DiskLocation slot, EntryIndex block, const Status& read, SlotVerdict verdict);
  // The cold store failed with an object or a question: nothing is reported of an object that it
  // has forgotten, nor while the store is known to be away.
  void ReportCold(const NamespaceIdentity& whose, const Error& error);
  // A drive was given up; `file` as in SlotPlace.
  void ReportDrive(uint32_t file, std::string reason);
  // The day's bytes are spent; reported once a day.
  void ReportBudgetSpent();

 private:
  void Tell(const Incident& incident) const;

  CacheState& state_;
  int64_t budget_spent_on_day_ = -1;  // that was reported
};

}  // namespace kvtier
