// SPDX-License-Identifier: Apache-2.0
// The slabs that pins may hold of host memory and of the disk.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "tiers/memory/slab_allocator.h"
#include "tiers/state/cache_state.h"
#include "tiers/types/block_key.h"

namespace kvtier {

// Pins may hold a share of so many slabs of host memory, of which the tier has so many bytes.
[[nodiscard]] inline uint64_t ExpectedHostSlabs(const CacheState& state, uint64_t capacity_bytes) {
  const uint64_t bytes = std::min(state.env.arena->expected_bytes(), capacity_bytes);
  return bytes / state.options.slab_bytes;
}

// Blocks of the class `wanted` need room in the tier. If pins hold more of its `tier_slabs`
// than options.pin_fraction, the pins end in one that has another class and least of pinned blocks.
// Returns one of these blocks, or kNoEntry: its slab is to leave at once, since a client could pin
// blocks anew that wait for their turn. `evictable` tells of a group whether its slabs may go to
// others. Event loop only.
template <typename Evictable>
[[nodiscard]] EntryIndex EndPinsBeyondShare(CacheState* state, Tier tier,
                                            const SlabAllocator& allocator, uint64_t tier_slabs,
                                            const SlotClass& wanted, Evictable evictable) {
  PinnedSlabsByTier& slabs = state->pinned_slabs;
  PinnedSlabs& pinned = tier == Tier::kHost ? slabs.host : slabs.disk;
  const auto most_held =
      static_cast<uint64_t>(state->options.pin_fraction * static_cast<double>(tier_slabs));
  // Blocks of a slab that leaves move with their pins.
  const std::optional<uint64_t> least =
      pinned.LeastBeyond(most_held, state->options.search_part_blocks, [&](const SlotClass& slots) {
        return slots != wanted && (slots.group == wanted.group || evictable(TenantId(slots.group)));
      });
  if (!least) return kNoEntry;
  std::vector<EntryIndex> ended;
  allocator.ForEachInSlab(*least * allocator.slab_bytes(), [&](uint64_t, EntryIndex owner) {
    if (owner != kNoEntry && state->HoldsSlab(tier, (*state)[owner])) ended.push_back(owner);
  });
  for (const EntryIndex index : ended) {
    state->Unpin(index);
    // A pin counts as use until it ends.
    state->Touch(index);
    state->usage.CountPins(state->blocks.LineOf((*state)[index]), PinOutcome::kEndedForSpace, 1);
  }
  state->stats.pins_ended_for_space += ended.size();
  return ended.empty() ? kNoEntry : ended.front();
}

}  // namespace kvtier
