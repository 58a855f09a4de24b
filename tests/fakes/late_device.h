// SPDX-License-Identifier: Apache-2.0
// Host memory whose pools can be made to take their time, as large ones on a GPU do.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "gpu/host_device.h"

namespace kvtier {

// Event loop only, as every device.
class LateDevice final : public Device {
 public:
  explicit LateDevice(EventQueue* loop) : host_(loop) {}

  // From here on no pool says that it is ready.
  void HoldPools() { line_->held = true; }
  void LetPoolsBeReady() {
    line_->held = false;
    std::vector<Waiter> waiters;
    {
      const std::scoped_lock lock(line_->mutex);
      waiters.swap(line_->waiters);
    }
    for (const Waiter& waiter : waiters) waiter.ready();
  }

  [[nodiscard]] size_t pools_awaited() const {
    const std::scoped_lock lock(line_->mutex);
    return line_->waiters.size();
  }

  // So many pools, from here on, find no memory.
  void RefusePools(int count) { refusals_ = count; }

  // Copies begin only when they are let go.
  void HoldCopies() { copies_held_ = true; }
  void LetCopiesGo() {
    copies_held_ = false;
    for (CopyRequest& request : std::exchange(held_copies_, {})) host_.Copy(std::move(request));
  }
  [[nodiscard]] size_t held_copies() const { return held_copies_.size(); }

  // From here on it is not open, until it is opened or refuses.
  void HoldOpening() { held_open_ = true; }
  void EndOpening(const Status& outcome) {
    held_open_ = !outcome.has_value();
    for (const auto& done : std::exchange(opening_, {})) done(outcome);
  }
  [[nodiscard]] size_t openings_awaited() const { return opening_.size(); }

  [[nodiscard]] bool is_open() const override { return !held_open_; }
  void WhenOpen(std::function<void(Status)> done) override {
    if (is_open()) return done({});
    opening_.push_back(std::move(done));
  }
  [[nodiscard]] DeviceInfo info() const override { return host_.info(); }
  [[nodiscard]] Result<std::unique_ptr<DevicePool>> CreatePool(uint64_t bytes) override {
    if (refusals_ > 0) {
      --refusals_;
      return MakeError(ErrorCode::kResourceExhausted, "cuda_out_of_memory");
    }
    KVT_ASSIGN_OR_RETURN(std::unique_ptr<DevicePool> memory, host_.CreatePool(bytes));
    return std::make_unique<LatePool>(line_, std::move(memory));
  }
  [[nodiscard]] Result<std::unique_ptr<DevicePool>> Borrow(LentMemory* lent) override {
    KVT_ASSIGN_OR_RETURN(std::unique_ptr<DevicePool> memory, host_.Borrow(lent));
    return std::make_unique<LatePool>(line_, std::move(memory));
  }
  void Copy(CopyRequest request) override {
    request.pool = static_cast<LatePool*>(request.pool)->memory();
    if (copies_held_) return held_copies_.push_back(std::move(request));
    host_.Copy(std::move(request));
  }

 private:
  struct Waiter {
    const DevicePool* pool;
    std::function<void()> ready;
  };
  // Outlives the device with its pools, which a request in an event that never runs may hold.
  struct Line {
    bool held = false;
    std::mutex mutex;  // pools end on any thread
    std::vector<Waiter> waiters;
  };

  class LatePool final : public DevicePool {
   public:
    LatePool(std::shared_ptr<Line> line, std::unique_ptr<DevicePool> memory)
        : line_(std::move(line)), memory_(std::move(memory)) {}
    ~LatePool() override {
      const std::scoped_lock lock(line_->mutex);
      std::erase_if(line_->waiters, [this](const Waiter& waiter) { return waiter.pool == this; });
    }

    [[nodiscard]] DevicePool* memory() const { return memory_.get(); }
    [[nodiscard]] uint64_t bytes() const override { return memory_->bytes(); }
    [[nodiscard]] std::byte* data() const override { return memory_->data(); }
    [[nodiscard]] int shareable_fd() const override { return memory_->shareable_fd(); }
    void WhenReady(std::function<void()> ready) override {
      if (!line_->held) return ready();
      const std::scoped_lock lock(line_->mutex);
      line_->waiters.push_back({this, std::move(ready)});
    }
    void Discard() override { memory_->Discard(); }

   private:
    const std::shared_ptr<Line> line_;
    const std::unique_ptr<DevicePool> memory_;
  };

  int refusals_ = 0;
  bool held_open_ = false;
  std::vector<std::function<void(Status)>> opening_;
  bool copies_held_ = false;
  std::vector<CopyRequest> held_copies_;
  HostDevice host_;
  const std::shared_ptr<Line> line_ = std::make_shared<Line>();
};

}  // namespace kvtier
