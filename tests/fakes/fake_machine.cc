// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/fake_machine.h"

namespace kvtier {

FakeMachine::FakeMachine(const MachineSizes& sizes, uint64_t seed) : sizes_(sizes), random_(seed) {
  executor = std::make_unique<FakeExecutor>(&loop);
  for (uint32_t i = 0; i < sizes_.devices; ++i) {
    devices.push_back(std::make_unique<FakeDevice>(&loop, sizes_.device_bytes, random_.Next()));
    devices.back()->BeNeighbour(static_cast<int>(i), sizes_.neighbours ? UINT32_MAX : 0);
  }
  device = devices.front().get();
  MakeArena();
  for (uint32_t i = 0; i < sizes_.disk_files; ++i) {
    files.push_back(
        std::make_unique<FakeBlockFile>(&loop, geometry().FileBytes(i), random_.Next()));
  }
  disk_set.bytes[0] = sizes_.disk_files > 0 ? 1 : 0;
  if (sizes_.disk_files > 0) index = std::make_unique<FakeIndex>(&loop, random_.Next());
}

void FakeMachine::MakeArena() {
  arena = std::make_unique<FakeArena>(sizes_.host_slabs * sizes_.slab_bytes,
                                      sizes_.host_slabs_ready * sizes_.slab_bytes,
                                      sizes_.keep_host ? sizes_.slab_bytes : 0);
}

DiskGeometry FakeMachine::geometry() const {
  return DiskGeometry{sizes_.slab_bytes, sizes_.disk_files, sizes_.disk_slabs};
}

CacheEnvironment FakeMachine::Environment() {
  CacheEnvironment environment{.clock = &clock,
                               .loop = &loop,
                               .executor = executor.get(),
                               .lent_host_memory = device,
                               .arena = arena.get(),
                               .geometry = geometry(),
                               .disk_set = disk_set,
                               .disk_epoch = ++disk_epoch,
                               .index = index.get()};
  environment.owner = &owner;
  drive_sizer.Begin(geometry());
  if (!files.empty()) environment.drive_sizer = &drive_sizer;
  if (sizes_.keep_pools) environment.pool_keeper = &pool_keeper;
  for (const auto& each : devices) environment.devices.push_back({each.get()});
  for (uint32_t i = 0; i < files.size(); ++i) {
    files[i]->SetBytes(geometry().FileBytes(i));
    environment.files.push_back(files[i].get());
  }
  return environment;
}

IndexSnapshot FakeMachine::Snapshot() const { return index ? index->Snapshot() : IndexSnapshot{}; }

void FakeMachine::Crash(HostMemory host) {
  loop.DropAll();
  for (const auto& each : devices) KVT_CHECK(each->allocated_bytes() == 0);
  if (host == HostMemory::kKept) {
    arena->Restart(sizes_.host_slabs_ready * sizes_.slab_bytes);
  } else {
    MakeArena();
  }
  for (const auto& file : files) file->Crash();
  if (index) index->Crash();
}

void FakeMachine::SetDiskFaultRates(const DiskFaultRates& rates) {
  for (const auto& file : files) file->SetFaultRates(rates);
}

uint64_t FakeMachine::disk_reads() const {
  uint64_t reads = 0;
  for (const auto& file : files) reads += file->reads();
  return reads;
}

uint64_t FakeMachine::disk_writes() const {
  uint64_t writes = 0;
  for (const auto& file : files) writes += file->writes();
  return writes;
}

}  // namespace kvtier
