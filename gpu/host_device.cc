#include "gpu/host_device.h"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>

#include "gpu/host_pool.h"

namespace kvtier {
namespace {

Status CheckBounds(const CopyRequest& request) {
  const uint64_t pool_bytes = request.pool->bytes();
  for (const BlockCopy& copy : request.copies) {
    if (copy.bytes > pool_bytes || copy.pool_offset > pool_bytes - copy.bytes) {
      return MakeError(
          ErrorCode::kInvalidArgument, "copy_out_of_bounds",
          fmt::format("{} bytes at {} of a pool of {}", copy.bytes, copy.pool_offset, pool_bytes));
    }
  }
  return {};
}

}  // namespace

HostDevice::HostDevice(EventQueue* loop, int copy_threads)
    : loop_(loop), copier_(copy_threads, loop) {}

HostDevice::~HostDevice() = default;

DeviceInfo HostDevice::info() const {
  return {.kind = "host",
          .name = "host memory (memfd)",
          .ordinal = 0,
          .total_bytes = static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                         static_cast<uint64_t>(::sysconf(_SC_PAGESIZE))};
}

Result<std::unique_ptr<DevicePool>> HostDevice::CreatePool(uint64_t bytes) {
  return HostPool::Create(bytes);
}

void HostDevice::Copy(CopyRequest request) {
  if (Status bounds = CheckBounds(request); !bounds) {
    loop_->Post([done = std::move(request.done), bounds] { done(bounds); });
    return;
  }
  // Pools of this device are all of this kind.
  auto* const pool = static_cast<HostPool*>(request.pool);
  copier_.Start(std::move(request), pool->data());
}

}  // namespace kvtier
