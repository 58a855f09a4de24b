// SPDX-License-Identifier: Apache-2.0
// The memory of clients' workspaces, all of them within one bound. A thread of its own gives it
// back, because that takes the kernel milliseconds for the largest; the bytes count until then.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/executor.h"
#include "base/gate.h"
#include "base/result.h"
#include "gpu/device.h"

namespace kvtier {

// Event loop only. Workspaces hold it, so that it lives as long as the last of them; the devices
// and the loop outlive it.
class WorkspaceMemory : public std::enable_shared_from_this<WorkspaceMemory> {
 public:
  // `limit_bytes` bounds the workspaces of all sessions on all devices together.
  WorkspaceMemory(uint64_t limit_bytes, EventQueue* loop)
      : limit_bytes_(limit_bytes), loop_(*loop) {}

  // Memory on the device in whole 2 MiB; it goes back when its last owner drops it, which must
  // happen on the loop. Errors: kLimitExceeded "workspace_limit"; those of Device::CreatePool.
  [[nodiscard]] Result<std::shared_ptr<DevicePool>> Create(Device* device, uint64_t wanted_bytes);
  // Calls `done` when all memory that is on its way back now has gone: within this call if none is.
  // So a client that replaces its workspace is not refused because the old one still counts.
  void WhenReturned(std::function<void()> done);

  // Taken, and on their way back.
  [[nodiscard]] uint64_t bytes() const { return bytes_; }

 private:
  void Return(DevicePool* memory, uint64_t bytes);

  const uint64_t limit_bytes_;
  EventQueue& loop_;
  uint64_t bytes_ = 0;
  uint64_t returning_ = 0;  // workspaces on their way back
  Gate gate_;
  // Made with the first workspace. Last: its thread gives memory back until the end.
  std::unique_ptr<Executor> thread_;
};

}  // namespace kvtier
