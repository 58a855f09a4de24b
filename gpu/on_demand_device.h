// SPDX-License-Identifier: Apache-2.0
// A GPU that is opened when a client first wants it. Until then the process has no context on it,
// and takes none of its memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/executor.h"
#include "base/gate.h"
#include "gpu/deferred_pinner.h"
#include "gpu/device.h"

namespace kvtier {

// As of any Device: all calls on the event loop's thread. Calls for memory fail with kWrongState
// "device_not_open" before the device is open. REQUIRES: all work given to the executor has ended
// when it is destroyed.
class OnDemandDevice final : public Device {
 public:
  struct Environment {
    Executor* executor = nullptr;  // opens it and maps memory; borrowed, as is the pinner
    DeferredPinner* pinner = nullptr;
    // Takes some 100 ms; on a thread of the executor.
    std::function<Result<std::unique_ptr<Device>>()> open;
    // Told of each opening that a client waited for. May be empty.
    std::function<void(const Status&)> on_opened = {};
  };

  // `info` has the facts that need no opening.
  OnDemandDevice(DeviceInfo info, Environment environment)
      : info_(std::move(info)), environment_(std::move(environment)) {}

  // Opens it within the call, for the time before the event loop runs. Errors: of opening.
  [[nodiscard]] Status OpenNow();

  [[nodiscard]] bool is_open() const override { return device_ != nullptr; }
  // Clients that come meanwhile wait for one and the same opening. Errors: of opening; the next
  // call tries again.
  void WhenOpen(std::function<void(Status)> done) override;
  [[nodiscard]] DeviceInfo info() const override { return info_; }
  [[nodiscard]] Result<std::unique_ptr<DevicePool>> CreatePool(uint64_t bytes) override;
  [[nodiscard]] Result<std::unique_ptr<DevicePool>> AdoptPool(UniqueFd fd, uint64_t bytes) override;
  [[nodiscard]] Result<std::unique_ptr<DevicePool>> Borrow(LentMemory* memory) override;
  void Map(std::shared_ptr<LentMemory> memory, std::function<void(Status)> done) override;
  void Copy(CopyRequest request) override;
  void AwaitBackground(bool awaited) override;
  [[nodiscard]] uint64_t unreachable_counter_pages() const override;
  [[nodiscard]] HostPinner* host_pinner() override { return environment_.pinner; }

 private:
  [[nodiscard]] Status CheckOpen() const;
  void OnOpened(Result<std::unique_ptr<Device>> opened);

  const DeviceInfo info_;
  const Environment environment_;
  std::unique_ptr<Device> device_;                    // null: not open
  std::vector<std::function<void(Status)>> waiting_;  // not empty while it is being opened
  Gate gate_;
};

}  // namespace kvtier
