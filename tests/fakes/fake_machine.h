// SPDX-License-Identifier: Apache-2.0
// Everything a cache needs of the world, in memory: what stays over a crash (files, index, clock),
// what may stay (arena), and what does not (device, events).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tests/fakes/fake_arena.h"
#include "tests/fakes/fake_block_file.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/fake_device.h"
#include "tests/fakes/fake_drive_sizer.h"
#include "tests/fakes/fake_executor.h"
#include "tests/fakes/fake_index.h"
#include "tests/fakes/fake_loop.h"
#include "tests/fakes/fake_owner.h"
#include "tests/fakes/fake_pool_keeper.h"
#include "tiers/cache.h"
#include "tiers/storage/disk_geometry.h"

namespace kvtier {

struct MachineSizes {
  uint32_t devices = 1;
  bool neighbours = false;            // each device can read the pools of all
  uint64_t device_bytes = 64 * kMiB;  // of each
  uint64_t slab_bytes = 256 * kKiB;   // equal to the cache options'
  uint32_t host_slabs = 4;
  uint32_t host_slabs_ready = 4;  // at the start; the rest when grown
  bool keep_host = false;         // the arena has a table, and may be kept by Crash
  bool keep_pools = false;        // pools have tables, and may be kept by Crash
  uint32_t disk_slabs = 8;
  uint32_t disk_files = 1;  // 0: no disk tier
};

class FakeMachine {
 public:
  FakeMachine(const MachineSizes& sizes, uint64_t seed);

  // For the next cache.
  [[nodiscard]] CacheEnvironment Environment();
  // The content of the index.
  [[nodiscard]] IndexSnapshot Snapshot() const;

  // The machine lost power and came back: events are gone, arena and device are empty, and a part
  // is left of the data that was not synced or acknowledged. With kKept the arena stays as it is,
  // as if only the process had died. Pools stay until pool_keeper loses them. REQUIRES: the cache
  // is destroyed.
  enum class HostMemory : uint8_t { kLost, kKept };
  void Crash(HostMemory host = HostMemory::kLost);

  // Concerns all files; index and device have their own.
  void SetDiskFaultRates(const DiskFaultRates& rates);
  [[nodiscard]] uint64_t disk_reads() const;
  [[nodiscard]] uint64_t disk_writes() const;

  [[nodiscard]] const MachineSizes& sizes() const { return sizes_; }
  [[nodiscard]] DiskGeometry geometry() const;

  FakeClock clock;
  FakeLoop loop;
  std::unique_ptr<FakeExecutor> executor;
  std::vector<std::unique_ptr<FakeDevice>> devices;
  FakeDevice* device = nullptr;  // the first
  FakePoolKeeper pool_keeper{&devices};
  FakeOwner owner;
  std::unique_ptr<FakeArena> arena;
  std::vector<std::unique_ptr<FakeBlockFile>> files;
  FakeDriveSizer drive_sizer{&loop, &files};
  Digest128 disk_set;                // of `files`, as the next cache is told
  uint64_t disk_epoch = 0;           // likewise, of the last cache
  std::unique_ptr<FakeIndex> index;  // null without a disk tier

 private:
  void MakeArena();

  const MachineSizes sizes_;
  SeededRandom random_;
};

}  // namespace kvtier
