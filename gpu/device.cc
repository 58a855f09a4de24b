// SPDX-License-Identifier: Apache-2.0
#include "gpu/device.h"

#include <fmt/format.h>

namespace kvtier {

Status CheckCopyBounds(const CopyRequest& request) {
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

Result<std::unique_ptr<DevicePool>> Device::AdoptPool(UniqueFd /*fd*/, uint64_t /*bytes*/) {
  return MakeError(ErrorCode::kUnsupported, "adopt_pool");
}

Result<std::unique_ptr<DevicePool>> Device::Borrow(LentMemory* memory) {
  return MakeError(ErrorCode::kUnsupported, "region_memory_kind",
                   fmt::format("kind {} on {}", static_cast<int>(memory->kind), info().name));
}

}  // namespace kvtier
