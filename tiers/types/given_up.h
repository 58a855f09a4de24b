// SPDX-License-Identifier: Apache-2.0
// Counts the blocks that a drain could not bring to disk.
#pragma once

#include <cstdint>

#include "tiers/types/cache_stats.h"

namespace kvtier {

// Blocks of which it is known, since the daemon's start, that a restart will not find them on disk:
// their write was refused or failed, or the index did not take their records. A drain has given up
// as many as this has grown by.
[[nodiscard]] inline uint64_t BlocksGivenUp(const CacheStats& stats) {
  uint64_t blocks = 0;
  for (const DropReason reason :
       {DropReason::kDiskFull, DropReason::kWriteBudget, DropReason::kWriteError}) {
    blocks += stats.drops[static_cast<size_t>(Tier::kDisk)][static_cast<size_t>(reason)];
  }
  return blocks;
}

}  // namespace kvtier
