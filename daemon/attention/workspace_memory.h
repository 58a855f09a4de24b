// SPDX-License-Identifier: Apache-2.0
// The memory of clients' workspaces, all of them within one bound, of which each tenant has its
// share. A thread of its own gives it back, because that takes the kernel milliseconds for the
// largest; the bytes count until then.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/executor.h"
#include "base/gate.h"
#include "base/result.h"
#include "base/tenant_budget.h"
#include "base/units.h"
#include "gpu/device.h"

namespace kvtier {

// Event loop only. Workspaces hold it, so that it lives as long as the last of them; the devices
// and the loop outlive it.
class WorkspaceMemory : public std::enable_shared_from_this<WorkspaceMemory> {
 public:
  // `limit_bytes` bounds the workspaces of all sessions on all devices together.
  WorkspaceMemory(uint64_t limit_bytes, EventQueue* loop)
      : granules_(limit_bytes / kGranuleBytes), loop_(*loop) {}

  // Memory on the device in whole 2 MiB; it goes back when its last owner drops it, which must
  // happen on the loop. Errors: kLimitExceeded "workspace_limit"; those of Device::CreatePool.
  [[nodiscard]] Result<std::shared_ptr<DevicePool>> Create(Device* device,
                                                           const std::string& tenant,
                                                           uint64_t wanted_bytes);
  // Calls `done` when all memory that is on its way back now has gone: within this call if none is.
  // So a client that replaces its workspace is not refused because the old one still counts.
  void WhenReturned(std::function<void()> done);

  // Taken, and on their way back.
  [[nodiscard]] uint64_t bytes() const { return bytes_; }

 private:
  // A GPU hands memory out in this granularity. Workspaces are counted in it on every device, so
  // that limits mean the same everywhere.
  static constexpr uint64_t kGranuleBytes = 2 * kMiB;
  void Return(DevicePool* memory, const std::string& tenant, uint64_t granules);

  TenantBudget granules_;
  EventQueue& loop_;
  uint64_t bytes_ = 0;
  uint64_t returning_ = 0;  // workspaces on their way back
  Gate gate_;
  // Made with the first workspace. Last: its thread gives memory back until the end.
  std::unique_ptr<Executor> thread_;
};

}  // namespace kvtier
