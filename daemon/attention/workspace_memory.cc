// SPDX-License-Identifier: Apache-2.0
#include "daemon/attention/workspace_memory.h"

#include <fmt/format.h>

#include <utility>

#include "base/units.h"
#include "protocol/limits.h"

namespace kvtier {
namespace {

// A GPU hands memory out in this granularity. Workspaces are counted in it on every device, so that
// limits mean the same everywhere.
constexpr uint64_t kGranuleBytes = 2 * kMiB;
// A session does not wait for a workspace: it must be all zeros when it has been made.
static_assert(wire::kMaxWorkspaceBytes <= kReadyAtOnceBytes &&
              kReadyAtOnceBytes % kGranuleBytes == 0);

}  // namespace

Result<std::shared_ptr<DevicePool>> WorkspaceMemory::Create(Device* device, uint64_t wanted_bytes) {
  const uint64_t bytes = (wanted_bytes + kGranuleBytes - 1) / kGranuleBytes * kGranuleBytes;
  // Compared by subtraction, so that no sum can overflow.
  if (bytes > limit_bytes_ || bytes_ > limit_bytes_ - bytes) {
    return MakeError(ErrorCode::kLimitExceeded, "workspace_limit",
                     fmt::format("{} asked for, {} of {} are taken", FormatByteSize(bytes),
                                 FormatByteSize(bytes_), FormatByteSize(limit_bytes_)));
  }
  KVT_ASSIGN_OR_RETURN(std::unique_ptr<DevicePool> memory, device->CreatePool(bytes));
  if (!thread_) thread_ = std::make_unique<ThreadExecutor>("kvt-return", 1, &loop_);
  bytes_ += bytes;
  return std::shared_ptr<DevicePool>(
      memory.release(),
      [self = shared_from_this(), bytes](DevicePool* pool) { self->Return(pool, bytes); });
}

void WorkspaceMemory::Return(DevicePool* memory, uint64_t bytes) {
  ++returning_;
  thread_->Run([memory] { delete memory; }, gate_.WhileOpen([this, bytes] {
    bytes_ -= bytes;
    --returning_;
  }));
}

// The thread does one thing after the other: its next comes after all that goes back now.
void WorkspaceMemory::WhenReturned(std::function<void()> done) {
  if (returning_ == 0) return done();
  thread_->Run([] {}, gate_.WhileOpen(std::move(done)));
}

}  // namespace kvtier
