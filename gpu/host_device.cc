// SPDX-License-Identifier: Apache-2.0
#include "gpu/host_device.h"

#include <unistd.h>

#include <utility>

#include "gpu/copy_bounds.h"
#include "gpu/host_pool.h"

namespace kvtier {

HostDevice::HostDevice(EventQueue* loop, int copy_threads)
    : loop_(loop), copier_(copy_threads, loop) {}

HostDevice::~HostDevice() = default;

DeviceInfo HostDevice::info() const {
  return {.kind = "host",
          .name = "host memory (memfd)",
          .ordinal = 0,
          .total_bytes = static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                         static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)),
          .free_bytes = AvailableMemoryBytes().value_or(0)};
}

Result<std::unique_ptr<DevicePool>> HostDevice::CreatePool(uint64_t bytes) {
  return HostPool::Create(bytes);
}

void HostDevice::Copy(CopyRequest request) {
  if (const Status bounds = CheckCopyBounds(request); !bounds) {
    loop_->Post([done = std::move(request.done), bounds] { done(bounds); });
    return;
  }
  // Pools of this device are all of this kind.
  auto* const pool = static_cast<HostPool*>(request.pool);
  copier_.Start(std::move(request), pool->data());
}

}  // namespace kvtier
