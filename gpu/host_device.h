// SPDX-License-Identifier: Apache-2.0
// Host memory as a device: pools are sealed memfds that clients map, copies are done by threads.
// For CPU inference and for machines without a GPU.
#pragma once

#include <memory>

#include "base/executor.h"
#include "gpu/copy_threads.h"
#include "gpu/device.h"

namespace kvtier {

inline constexpr int kDefaultCopyThreads = 2;

// `loop` must outlive the device, and the device the copies of its pools. The destructor finishes
// the pieces being copied and fails the rest (kCancelled "device_closed"); every `done` is posted
// before it returns.
class HostDevice final : public Device {
 public:
  explicit HostDevice(EventQueue* loop, int copy_threads = kDefaultCopyThreads);
  ~HostDevice() override;
  HostDevice(const HostDevice&) = delete;
  HostDevice& operator=(const HostDevice&) = delete;

  [[nodiscard]] DeviceInfo info() const override;
  // Errors: as HostPool::Create.
  [[nodiscard]] Result<std::unique_ptr<DevicePool>> CreatePool(uint64_t bytes) override;
  void Copy(CopyRequest request) override;

 private:
  EventQueue* const loop_;
  CopyThreads copier_;
};

}  // namespace kvtier
