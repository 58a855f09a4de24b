// Host memory whose pools can be made to take their time, as large ones on a GPU do.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "gpu/host_device.h"

namespace kvtier {

// Event loop only, as every device.
class LateDevice final : public Device {
 public:
  explicit LateDevice(EventQueue* loop) : host_(loop) {}

  // From here on no pool says that it is ready.
  void HoldPools() { held_ = true; }
  void LetPoolsBeReady() {
    held_ = false;
    for (const Waiter& waiter : std::exchange(waiters_, {})) waiter.ready();
  }

  [[nodiscard]] DeviceInfo info() const override { return host_.info(); }
  [[nodiscard]] Result<std::unique_ptr<DevicePool>> CreatePool(uint64_t bytes) override {
    KVT_ASSIGN_OR_RETURN(std::unique_ptr<DevicePool> memory, host_.CreatePool(bytes));
    return std::make_unique<LatePool>(this, std::move(memory));
  }
  void Copy(CopyRequest request) override {
    request.pool = static_cast<LatePool*>(request.pool)->memory();
    host_.Copy(std::move(request));
  }

 private:
  class LatePool final : public DevicePool {
   public:
    LatePool(LateDevice* device, std::unique_ptr<DevicePool> memory)
        : device_(*device), memory_(std::move(memory)) {}
    ~LatePool() override {
      std::erase_if(device_.waiters_, [this](const Waiter& waiter) { return waiter.pool == this; });
    }

    [[nodiscard]] DevicePool* memory() const { return memory_.get(); }
    [[nodiscard]] uint64_t bytes() const override { return memory_->bytes(); }
    [[nodiscard]] std::byte* data() const override { return memory_->data(); }
    [[nodiscard]] int shareable_fd() const override { return memory_->shareable_fd(); }
    void WhenReady(std::function<void()> ready) override {
      if (!device_.held_) return ready();
      device_.waiters_.push_back({this, std::move(ready)});
    }

   private:
    LateDevice& device_;
    const std::unique_ptr<DevicePool> memory_;
  };
  struct Waiter {
    const DevicePool* pool;
    std::function<void()> ready;
  };

  HostDevice host_;
  bool held_ = false;
  std::vector<Waiter> waiters_;
};

}  // namespace kvtier
