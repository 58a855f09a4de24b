// SPDX-License-Identifier: Apache-2.0
#include "gpu/device.h"

#include <fmt/format.h>

namespace kvtier {
namespace {

bool LiesIn(const DevicePool& pool, const std::byte* first, uint64_t bytes) {
  const uint64_t offset =
      reinterpret_cast<uintptr_t>(first) - reinterpret_cast<uintptr_t>(pool.data());
  return bytes <= pool.bytes() && offset <= pool.bytes() - bytes;
}

}  // namespace

Status CheckCopyBounds(const CopyRequest& request) {
  const uint64_t pool_bytes = request.pool->bytes();
  for (const BlockCopy& copy : request.copies) {
    const bool source_holds =
        request.source == nullptr || LiesIn(*request.source, copy.host, copy.bytes);
    if (!source_holds || copy.bytes > pool_bytes || copy.pool_offset > pool_bytes - copy.bytes) {
      return MakeError(
          ErrorCode::kInvalidArgument, "copy_out_of_bounds",
          fmt::format("{} bytes at {} of a pool of {}", copy.bytes, copy.pool_offset, pool_bytes));
    }
  }
  return {};
}

Result<std::unique_ptr<DevicePool>> Device::AdoptPool(UniqueFd /*fd*/, uint64_t /*bytes*/) {
  return MakeError(ErrorCode::kUnsupported, "adopt_pool");
}

Result<std::unique_ptr<DevicePool>> Device::Borrow(LentMemory* memory) {
  return MakeError(ErrorCode::kUnsupported, "region_memory_kind",
                   fmt::format("kind {} on {}", static_cast<int>(memory->kind), info().name));
}

}  // namespace kvtier
