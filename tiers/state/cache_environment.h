// SPDX-License-Identifier: Apache-2.0
// What the cache needs of the world: clock, loop, devices, memory, files and index, all of which
// tests and the simulator replace.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/digest.h"
#include "base/executor.h"
#include "gpu/device.h"
#include "tiers/cold/cold_store.h"
#include "tiers/index/index.h"
#include "tiers/memory/host_arena.h"
#include "tiers/policy/eviction_policy.h"
#include "tiers/state/block_event_sink.h"
#include "tiers/state/pool_keeper.h"
#include "tiers/storage/block_file.h"
#include "tiers/storage/disk_geometry.h"
#include "tiers/types/cache_requests.h"
#include "tiers/types/tracer.h"

namespace kvtier {

class KeyRing;

// A device for pools, and how many bytes of it they may take together.
struct PoolDevice {
  Device* device = nullptr;
  uint64_t pool_bytes = 0;  // 0: CacheOptions::pool_bytes
};

// What has become of the blocks that an earlier daemon left in host memory.
struct AdoptionReport {
  uint64_t blocks = 0;
  uint64_t bytes = 0;
  uint64_t dropped = 0;  // CacheStats::adoption_drops says why
  int64_t ms = 0;        // from the first verification to the end
};

// What the cache needs of the world. All pointers are borrowed and outlive the cache; each
// implementation must stop calling back before the cache is destroyed.
struct CacheEnvironment {
  const Clock* clock = nullptr;
  EventQueue* loop = nullptr;
  Executor* executor = nullptr;
  std::vector<PoolDevice> devices;     // by DeviceIndex; one at least, kMaxDevices at most
  Device* lent_host_memory = nullptr;  // for regions in host memory; null: there are none
  HostArena* arena = nullptr;
  PoolKeeper* pool_keeper = nullptr;  // null: pools end with the process
  std::vector<BlockFile*> files;      // empty: no disk tier
  DiskGeometry geometry;              // of `files`
  Digest128 disk_set;                 // likewise: DiskFiles::set_uuid; zeros without files
  uint64_t disk_epoch = 0;            // likewise: DiskFiles::epoch, which counts their starts
  // Of EncryptedFiles, which `files` then are; null: nothing is encrypted.
  KeyRing* keys = nullptr;
  Index* index = nullptr;            // null exactly when `files` is empty
  ColdStore* cold = nullptr;         // null: no cold tier
  Tracer* tracer = nullptr;          // null: nothing is traced
  BlockEventSink* events = nullptr;  // null: no events
  // Replaces what admission to disk has learned: how likely the block of these facts is to be used
  // again. For tests; else null.
  std::function<double(const BlockFacts&)> chance_of_use;
  // Whether computations besides the cache's copies read pools of the device now, though their
  // sessions may have ended: no pool is closed then. Null: there are none.
  std::function<bool(DeviceIndex)> pools_read;
  // Called once, when all that an earlier daemon left in host memory has been looked at; not if it
  // left nothing. May be null.
  std::function<void(const AdoptionReport&)> on_adopted;
  // Told how many keys were wiped because no block needs them any more. May be null.
  std::function<void(uint64_t)> on_keys_expired;
  // An erasure that an earlier daemon had begun for this tenant has ended. May be null.
  std::function<void(const std::string&, const EraseReport&, const Status&)> on_erasure_resumed;
};

}  // namespace kvtier
