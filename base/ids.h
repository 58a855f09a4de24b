// SPDX-License-Identifier: Apache-2.0
// Names of things that every room speaks of.
#pragma once

#include <cstdint>

#include "base/strong.h"

namespace kvtier {

using SessionId = Strong<struct SessionIdTag, uint64_t>;
// One pool: (device, model, tenant). Valid for the life of the daemon process.
using PoolId = Strong<struct PoolIdTag, uint32_t>;
// One acquire's set of onloads. 0 means that nothing has to be loaded.
using LoadId = Strong<struct LoadIdTag, uint64_t>;
// A block's position in its pool.
using BlockIndex = Strong<struct BlockIndexTag, uint32_t>;

inline constexpr BlockIndex kNoBlock{UINT32_MAX};

// A pool block as a client names it. The generation changes each time the block returns to the free
// list, so that a handle kept too long is an error and not somebody else's block.
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

}  // namespace kvtier
