// SPDX-License-Identifier: Apache-2.0
#include "protocol/restorable_prefix.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "base/result.h"

namespace kvtier {
namespace {

// A group's answers about boundaries, each in constant time.
class GroupBlocks {
 public:
  explicit GroupBlocks(const GroupPresence& presence) : presence_(presence) {
    const std::span<const uint8_t> present = presence.present;
    if (presence.group.rule != HitRule::kTrailing) {
      const auto gap = std::ranges::find(present, uint8_t{0});
      prefix_blocks_ = static_cast<uint64_t>(gap - present.begin());
      return;
    }
    run_blocks_.resize(present.size());
    uint32_t run = 0;
    for (size_t i = 0; i < present.size(); ++i) run_blocks_[i] = run = present[i] ? run + 1 : 0;
  }

  [[nodiscard]] uint64_t reach_tokens() const {
    return presence_.present.size() * presence_.group.block_tokens;
  }
  // REQUIRES: a boundary above 0 and within reach.
  [[nodiscard]] bool HasNeeded(uint64_t boundary_tokens) const {
    const BlockRange needed = NeededBlocks(presence_.group, boundary_tokens);
    switch (presence_.group.rule) {
      case HitRule::kAll:
        return needed.end <= prefix_blocks_;
      case HitRule::kTrailing:
        return run_blocks_[needed.end - 1] >= needed.size();
      case HitRule::kState:
        return presence_.present[needed.first] != 0;
    }
    return false;
  }

 private:
  const GroupPresence& presence_;
  uint64_t prefix_blocks_ = 0;        // cached from block 0 on without a gap
  std::vector<uint32_t> run_blocks_;  // kTrailing: cached without a gap up to each block
};

}  // namespace

BlockRange NeededBlocks(const GroupRule& group, uint64_t boundary_tokens) {
  const uint64_t end = boundary_tokens / group.block_tokens;
  switch (group.rule) {
    case HitRule::kAll:
      return {0, end};
    case HitRule::kTrailing: {
      const uint64_t window = std::min<uint64_t>(group.window_tokens, boundary_tokens);
      return {(boundary_tokens - window) / group.block_tokens, end};
    }
    case HitRule::kState:
      return {end - std::min<uint64_t>(end, 1), end};
  }
  return {};
}

uint64_t BoundaryTokens(std::span<const GroupPresence> groups) {
  // Above every sequence, and far enough below overflow for one more factor of 32 bits.
  constexpr uint64_t kBeyondReach = uint64_t{1} << 62;
  uint64_t step = 1;
  for (const GroupPresence& presence : groups) {
    const uint64_t block_tokens = presence.group.block_tokens;
    const uint64_t factor = block_tokens / std::gcd(step, block_tokens);
    if (step > kBeyondReach / factor) return kBeyondReach;
    step *= factor;
  }
  return step;
}

uint64_t LongestRestorable(std::span<const GroupPresence> groups) {
  KVT_CHECK(!groups.empty());
  uint64_t reach = std::numeric_limits<uint64_t>::max();
  std::vector<GroupBlocks> blocks;
  blocks.reserve(groups.size());
  for (const GroupPresence& presence : groups) {
    reach = std::min(reach, blocks.emplace_back(presence).reach_tokens());
  }
  const uint64_t step = BoundaryTokens(groups);
  for (uint64_t boundary = reach / step * step; boundary > 0; boundary -= step) {
    const auto has_needed = [boundary](const GroupBlocks& g) { return g.HasNeeded(boundary); };
    if (std::ranges::all_of(blocks, has_needed)) return boundary;
  }
  return 0;
}

}  // namespace kvtier
