// SPDX-License-Identifier: Apache-2.0
// Integers that cannot be mistaken for one another, and those that name what all folders speak of:
// sessions, pools, loads, blocks and tiers.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace kvtier {

// An integer of its own type for each tag. Ordered and hashable; converts only on request
// (`value`).
template <typename Tag, typename Rep>
struct Strong {
  using RepType = Rep;
  Rep value{};

  constexpr Strong() = default;
  constexpr explicit Strong(Rep v) : value(v) {}
  friend constexpr auto operator<=>(const Strong&, const Strong&) = default;
};

using SessionId = Strong<struct SessionIdTag, uint64_t>;
// One pool: (device, model, tenant). Valid for the life of the daemon process.
using PoolId = Strong<struct PoolIdTag, uint32_t>;
// One acquire's set of onloads. 0 means that nothing has to be loaded.
using LoadId = Strong<struct LoadIdTag, uint64_t>;
// A block's position in its pool.
using BlockIndex = Strong<struct BlockIndexTag, uint32_t>;

inline constexpr BlockIndex kNoBlock{UINT32_MAX};

// A pool block as a client names it. The generation changes each time the block returns to the free
// list, so that a handle kept too long is an error and not another session's block.
struct BlockHandle {
  BlockIndex index = kNoBlock;
  uint32_t generation = 0;
  friend constexpr auto operator<=>(const BlockHandle&, const BlockHandle&) = default;
};

enum class Tier : uint8_t { kPool = 0, kHost = 1, kDisk = 2 };
inline constexpr int kTierCount = 3;

enum class RetentionClass : uint8_t {
  kMemory = 0,    // never touches the disk
  kExtended = 1,  // persisted
};

// Facts about a sequence that a client knows and its blocks do not tell.
enum class SequenceHint : uint8_t {
  kClosed = 1,   // it will not be continued
  kOnce = 2,     // it will not be asked for again, though it may be used until then
  kReturns = 3,  // it will be asked for again, about then
};

}  // namespace kvtier

template <typename Tag, typename Rep>
struct std::hash<kvtier::Strong<Tag, Rep>> {
  size_t operator()(const kvtier::Strong<Tag, Rep>& id) const noexcept {
    return std::hash<Rep>{}(id.value);
  }
};
