// SPDX-License-Identifier: Apache-2.0
#include "daemon/attention/workspace_memory.h"

#include <fmt/format.h>

#include <utility>

namespace kvtier {

Result<std::shared_ptr<DevicePool>> WorkspaceMemory::Create(Device* device,
                                                            const std::string& tenant,
                                                            uint64_t wanted_bytes) {
  const uint64_t granules = (wanted_bytes + kGranuleBytes - 1) / kGranuleBytes;
  const uint64_t bytes = granules * kGranuleBytes;
  if (!granules_.MayTake(tenant, granules)) {
    return MakeError(
        ErrorCode::kLimitExceeded, "workspace_limit",
        fmt::format("{} asked for; the tenant has {}, all have {} of {}", FormatByteSize(bytes),
                    FormatByteSize(granules_.taken(tenant) * kGranuleBytes), FormatByteSize(bytes_),
                    FormatByteSize(granules_.total() * kGranuleBytes)));
  }
  KVT_ASSIGN_OR_RETURN(std::unique_ptr<DevicePool> memory, device->CreatePool(bytes));
  if (!thread_) thread_ = std::make_unique<ThreadExecutor>("kvt-return", 1, &loop_);
  bytes_ += bytes;
  granules_.Take(tenant, granules);
  return std::shared_ptr<DevicePool>(
      memory.release(), [self = shared_from_this(), tenant, granules](DevicePool* pool) {
        self->Return(pool, tenant, granules);
      });
}

void WorkspaceMemory::Return(DevicePool* memory, const std::string& tenant, uint64_t granules) {
  ++returning_;
  thread_->Run([memory] { delete memory; }, gate_.WhileOpen([this, tenant, granules] {
    bytes_ -= granules * kGranuleBytes;
    granules_.GiveBack(tenant, granules);
    --returning_;
  }));
}

// The thread does one thing after the other: its next comes after all that goes back now.
void WorkspaceMemory::WhenReturned(std::function<void()> done) {
  if (returning_ == 0) return done();
  thread_->Run([] {}, gate_.WhileOpen(std::move(done)));
}

}  // namespace kvtier
