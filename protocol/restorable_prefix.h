// SPDX-License-Identifier: Apache-2.0
// Which prefixes of a sequence can be restored from the blocks that are cached, for models whose
// layers form groups that need different blocks of a prefix (full attention, sliding windows,
// recurrent state). Pure functions.
//
// A prefix ends at a boundary, a number of tokens that is a multiple of every group's block. Block
// i of a group ends at (i + 1) * block_tokens.
#pragma once

#include <cstdint>
#include <span>

namespace kvtier {

// Which blocks of its group a prefix needs. Values are part of the model's fingerprint and never
// change; new ones are appended.
enum class HitRule : uint8_t {
  kAll = 1,       // every block: full attention, indexers
  kTrailing = 2,  // those with any of the last `window_tokens` tokens: sliding windows
  kState = 3,     // the one that ends at the boundary: Mamba, linear attention
};

// How a group's blocks relate to a prefix.
struct GroupRule {
  HitRule rule = HitRule::kAll;
  uint32_t block_tokens = 0;   // at least 1
  uint32_t window_tokens = 0;  // at least 1 with kTrailing, else unused
};

// Blocks [first, end) of a group.
struct BlockRange {
  uint64_t first = 0;
  uint64_t end = 0;
  [[nodiscard]] uint64_t size() const { return end - first; }
  friend bool operator==(const BlockRange&, const BlockRange&) = default;
};

// The blocks of its group that a prefix of `boundary_tokens` needs. REQUIRES: a multiple of
// block_tokens.
[[nodiscard]] BlockRange NeededBlocks(const GroupRule& group, uint64_t boundary_tokens);

// Positions of blocks in their sequences are below this.
inline constexpr uint32_t kMaxBlockPosition = (1u << 31) - 1;

// The cache evicts the deeper of two blocks first. With full attention that is the later one, which
// nothing else needs; with a window or a state the earlier one, which fewer and shorter prefixes
// need. REQUIRES: position <= kMaxBlockPosition.
[[nodiscard]] constexpr uint32_t EvictionDepth(HitRule rule, uint32_t position) {
  return rule == HitRule::kAll ? position : UINT32_MAX - position;
}
// The position that such a depth stands for.
[[nodiscard]] constexpr uint32_t PositionOf(uint32_t eviction_depth) {
  return eviction_depth <= kMaxBlockPosition ? eviction_depth : UINT32_MAX - eviction_depth;
}

// One group's blocks of the sequence, from block 0 on: nonzero where one is cached.
struct GroupPresence {
  GroupRule group;
  std::span<const uint8_t> present;
};

// The least distance of two boundaries, or one that no sequence reaches.
[[nodiscard]] uint64_t BoundaryTokens(std::span<const GroupPresence> groups);

// The last boundary, in tokens, up to which every group has the blocks that it needs, or 0. Only
// boundaries that all of the `present` lists reach are considered. Takes time in the number of
// blocks and boundaries, and allocates one counter per block of a windowed group.
// REQUIRES: at least one group.
[[nodiscard]] uint64_t LongestRestorable(std::span<const GroupPresence> groups);

}  // namespace kvtier
