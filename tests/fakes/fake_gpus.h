// SPDX-License-Identifier: Apache-2.0
// GPUs of a machine that has none: what they are, and who opened them.
#pragma once

#include <mutex>
#include <utility>
#include <vector>

#include "base/units.h"
#include "gpu/gpus.h"
#include "gpu/host_device.h"
#include "gpu/host_pinner.h"

namespace kvtier {

// Counts the pinned memory. Any thread.
class FakePinner final : public HostPinner {
 public:
  [[nodiscard]] Status Pin(std::span<std::byte> memory) override {
    const std::lock_guard lock(mutex_);
    if (refuses_) return MakeError(ErrorCode::kResourceExhausted, "no_pins");
    pinned_.push_back(memory.data());
    return {};
  }
  void Unpin(std::span<std::byte> memory) override {
    const std::lock_guard lock(mutex_);
    KVT_CHECK(std::erase(pinned_, memory.data()) == 1);
  }
  void Refuse() { refuses_ = true; }
  [[nodiscard]] std::vector<std::byte*> pinned() const {
    const std::lock_guard lock(mutex_);
    return pinned_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::byte*> pinned_;
  bool refuses_ = false;
};

// Each has 80 GiB, of which 60 are free, and works in host memory once it is open.
class FakeGpus final : public Gpus {
 public:
  explicit FakeGpus(int count) : count_(count) {}

  // From here on, of each; of 80 GiB.
  void SetFree(uint64_t bytes) { free_bytes_ = bytes; }
  // So many times.
  void RefuseToOpen(int times) { refusals_ = times; }
  // By ordinal, in the order in which they were opened.
  [[nodiscard]] const std::vector<int>& opened() const { return opened_; }
  [[nodiscard]] const std::shared_ptr<FakePinner>& pinner() const { return pinner_; }

  [[nodiscard]] Result<CudaPresence> Find() const override {
    return CudaPresence{.devices = count_, .why_none = count_ == 0 ? "a fake without any" : ""};
  }
  [[nodiscard]] Result<DeviceInfo> LookAt(int ordinal) const override {
    if (count_ == 0) return MakeError(ErrorCode::kUnsupported, "no_cuda");
    if (ordinal >= count_) return MakeError(ErrorCode::kUnsupported, "no_such_device");
    DeviceInfo info{.kind = "cuda",
                    .name = "fake GPU",
                    .ordinal = ordinal,
                    .total_bytes = 80 * kGiB,
                    .free_bytes = free_bytes_};
    info.uuid[0] = static_cast<uint8_t>(ordinal + 1);
    return info;
  }
  [[nodiscard]] std::vector<VramHolder> HoldersOf(int) const override {
    return {{.pid = 4711, .bytes = 20 * kGiB}};
  }
  [[nodiscard]] std::shared_ptr<HostPinner> MakePinner() const override { return pinner_; }
  [[nodiscard]] Result<std::unique_ptr<Device>> Open(CudaDeviceOptions options,
                                                     EventQueue* loop) const override {
    if (refusals_ > 0) {
      --refusals_;
      return MakeError(ErrorCode::kResourceExhausted, "cudaErrorMemoryAllocation");
    }
    opened_.push_back(options.ordinal);
    return std::make_unique<HostDevice>(loop);
  }

 private:
  const int count_;
  uint64_t free_bytes_ = 60 * kGiB;
  mutable int refusals_ = 0;
  mutable std::vector<int> opened_;
  const std::shared_ptr<FakePinner> pinner_ = std::make_shared<FakePinner>();
};

}  // namespace kvtier
