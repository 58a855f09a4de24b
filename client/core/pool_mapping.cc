// SPDX-License-Identifier: Apache-2.0
#include "client/core/pool_mapping.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/memory_file.h"

namespace kvtier::client {

Result<std::shared_ptr<PoolMapping>> PoolMapping::Map(UniqueFd fd, uint64_t generation,
                                                      uint64_t bytes,
                                                      wire::DeviceKind device_kind) {
  if (!fd.valid()) return MakeError(ErrorCode::kCorrupt, "pool_descriptor_missing");
  if (device_kind != wire::DeviceKind::kHost) {
    return std::make_shared<PoolMapping>(std::move(fd), nullptr, generation, bytes, device_kind);
  }
  if (const uint64_t there = FileBytes(fd.get()); there < bytes) {
    return MakeError(ErrorCode::kCorrupt, "pool_too_small",
                     fmt::format("{} bytes announced, {} there", bytes, there));
  }
  void* base =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
  if (base == MAP_FAILED) {
    return MakeError(ErrorCode::kIoError, "pool_map_failed",
                     fmt::format("{} bytes: {}", bytes, std::strerror(errno)));
  }
  return std::make_shared<PoolMapping>(std::move(fd), static_cast<std::byte*>(base), generation,
                                       bytes, device_kind);
}

PoolMapping::PoolMapping(UniqueFd fd, std::byte* base, uint64_t generation, uint64_t bytes,
                         wire::DeviceKind device_kind)
    : fd_(std::move(fd)),
      base_(base),
      generation_(generation),
      bytes_(bytes),
      device_kind_(device_kind) {}

PoolMapping::~PoolMapping() {
  if (base_ != nullptr) (void)::munmap(base_, bytes_);
}

bool PoolMapping::Serves(uint64_t generation, uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  return generation == generation_ && bytes == bytes_ && fd_.valid();
}

Result<std::shared_ptr<const CudaMapping>> PoolMapping::OnDevice() {
  const std::lock_guard lock(mutex_);
  if (on_device_) return on_device_;
  if (device_kind_ != wire::DeviceKind::kCuda) {
    return MakeError(ErrorCode::kUnsupported, "host_memory", "the pool is not on a GPU");
  }
  if (!fd_.valid()) return MakeError(ErrorCode::kUnsupported, "pool_unmapped");
  KVT_ASSIGN_OR_RETURN(on_device_, CudaMapping::Map(fd_.get(), bytes_));
  return on_device_;
}

void PoolMapping::Unmap() {
  const std::lock_guard lock(mutex_);
  if (device_kind_ != wire::DeviceKind::kCuda) return;
  on_device_.reset();
  fd_.Reset();
}

void PoolMapping::Empty() {
  const std::lock_guard lock(mutex_);
  fd_.Reset();
  if (base_ == nullptr) return;
  (void)::mmap(base_, bytes_, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
}

}  // namespace kvtier::client
