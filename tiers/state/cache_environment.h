// SPDX-License-Identifier: Apache-2.0
// The world as the cache needs it: clock, loop, devices, memory, files and index, all of which
// tests and the simulator replace.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/digest.h"
#include "base/executor.h"
#include "base/result.h"
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
#include "tiers/types/incident.h"
#include "tiers/types/tracer.h"

namespace kvtier {

class DriveSizer;
class KeyRing;

// A device for pools, and how many bytes of it they may take together.
struct PoolDevice {
  Device* device = nullptr;
  uint64_t pool_bytes = 0;  // 0: CacheOptions::pool_bytes
};

// Counts the blocks of an earlier daemon in host memory that were taken over or dropped.
struct AdoptionReport {
  uint64_t blocks = 0;
  uint64_t bytes = 0;
  uint64_t dropped = 0;  // CacheStats::adoption_drops says why
  int64_t ms = 0;        // from the first verification to the end
};

// The process that has the cache. The cache reports to it, and asks it questions that no part of
// the cache can answer. Event loop only. No call may lead back into the cache.
class CacheOwner {
 public:
  virtual ~CacheOwner() = default;
  // Whether computations besides the cache's copies read the pool now, though their sessions may
  // have ended: it is not closed then.
  [[nodiscard]] virtual bool ReadsPool(PoolId /*pool*/) { return false; }
  // All that an earlier daemon left in host memory has been looked at. Once, and not if it left
  // nothing.
  virtual void OnAdopted(const AdoptionReport& /*report*/) {}
  // So many keys were wiped, because no block needs them any more.
  virtual void OnKeysExpired(uint64_t /*keys*/) {}
  // An erasure that an earlier daemon had begun for this tenant has ended.
  virtual void OnErasureResumed(const std::string& /*tenant*/, const EraseReport& /*report*/,
                                const Status& /*status*/) {}
  // Something went wrong, or became well again. A disk that fails may make thousands a second.
  virtual void OnIncident(const Incident& /*incident*/) {}
};

// The world as the cache needs it. All pointers are borrowed and outlive the cache; each
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
  DiskGeometry geometry;              // of `files`, at the start
  DriveSizer* drive_sizer = nullptr;  // of `files`; null: they stay as they are
  uint32_t drives_away = 0;           // bit by number: drives of the set that are not there
  Digest128 disk_set;                 // likewise: DiskFiles::set_uuid; zeros without files
  uint64_t disk_epoch = 0;            // likewise: DiskFiles::epoch, which counts their starts
  // The keys of EncryptedFiles, which `files` then are; null: nothing is encrypted.
  KeyRing* keys = nullptr;
  Index* index = nullptr;            // null exactly when `files` is empty
  ColdStore* cold = nullptr;         // null: no cold tier
  Tracer* tracer = nullptr;          // null: nothing is traced
  BlockEventSink* events = nullptr;  // null: no events
  CacheOwner* owner = nullptr;       // null: there is none
};

}  // namespace kvtier
