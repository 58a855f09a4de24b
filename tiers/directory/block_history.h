// SPDX-License-Identifier: Apache-2.0
// Why blocks that are asked about are not there: the latest drops and misses, by block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "tiers/policy/eviction_policy.h"
#include "tiers/types/block_key.h"
#include "tiers/types/block_view.h"

namespace kvtier {

// Each block has one place in a table of fixed size, where a later event of any block replaces an
// earlier one: constant time and bounded memory, and recent events are nearly always there. Event
// loop only.
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

}  // namespace kvtier
