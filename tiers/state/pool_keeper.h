// SPDX-License-Identifier: Apache-2.0
// Pools whose memory outlives the process: how the cache gets those of an earlier daemon, and has
// its own kept.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/ids.h"
#include "gpu/device.h"
#include "tiers/memory/pool_table.h"
#include "tiers/types/session_identity.h"

namespace kvtier {

// A pool of an earlier daemon. The table is the keeper's, and goes with Release.
struct LeftPool {
  DeviceIndex device;
  PoolDescription description;
  std::unique_ptr<DevicePool> memory;  // of as many bytes as the description says
  PoolTable* table = nullptr;
};

// The clients of a pool that was taken over when the earlier daemon died. Sessions of the cache
// stand for their blocks, which are given back with Cache::ReleaseQuarantine.
struct AbsentClients {
  struct Session {
    SessionIdentity identity;
    // Its private blocks: until it has been resumed, or its process has ended.
    SessionId holdings;
  };
  DeviceIndex device;
  PoolId pool;
  std::vector<Session> sessions;
  // All blocks that any of them referenced: until each has been resumed, or its process has ended,
  // or it has not come in time.
  SessionId readers;
  // Blocks of which nothing is known but that some process may write to: until each has ended.
  SessionId writers;
  bool writers_hold = false;  // there are such blocks
};

// Event loop only, or the time before it runs. Outlives the cache.
class PoolKeeper {
 public:
  virtual ~PoolKeeper() = default;
  // The pools that may be taken over, once. The caller releases those that it refuses.
  [[nodiscard]] virtual std::vector<LeftPool> TakeLeft() = 0;
  // Has a new pool's memory kept. Returns the table, which is empty and the keeper's; null if the
  // memory cannot be kept.
  [[nodiscard]] virtual PoolTable* Keep(DeviceIndex device, const PoolDescription& description,
                                        const DevicePool& memory) = 0;
  // The memory is kept no longer, nor is the table there. `refused` says why it was not taken over;
  // empty: the pool has ended.
  virtual void Release(PoolTable* table, const std::string& refused) = 0;
};

}  // namespace kvtier
