// SPDX-License-Identifier: Apache-2.0
// Why blocks that are asked about are not there: the latest drops and misses, by block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "tiers/policy/paged_array.h"
#include "tiers/types/block_key.h"
#include "tiers/types/block_view.h"

namespace kvtier {

// Each block has one place in a table of fixed size, where a later event of any block replaces an
// earlier one: constant time and bounded memory, and what is recent is nearly always there. Event
// loop only.
class BlockHistory {
 public:
  static constexpr size_t kDropsRemembered = 65536;
  static constexpr size_t kMissesRemembered = 16384;

  void NoteDrop(const BlockKey& key, const BlockDrop& drop);
  // NoteDrop will soon be told of the block: its place, which is in nobody's cache, is fetched.
  void ExpectDrop(const BlockKey& key) const;
  void NoteMiss(const BlockKey& key, const BlockMiss& miss);
  [[nodiscard]] BlockPast Of(const BlockKey& key) const;

 private:
  template <typename Event>
  struct Row {
    BlockKey key;
    std::optional<Event> event;
  };
  // Pages are small, so that a cache that drops little pays for little.
  static constexpr size_t kPageRows = 256;

  PagedArray<Row<BlockDrop>, kPageRows> drops_;
  PagedArray<Row<BlockMiss>, kPageRows> misses_;
};

}  // namespace kvtier
