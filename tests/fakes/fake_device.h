// SPDX-License-Identifier: Apache-2.0
// A device whose pools are plain memory and whose copies complete when the loop is stepped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "gpu/counter_page.h"
#include "gpu/device.h"
#include "tests/fakes/aligned_bytes.h"
#include "tests/fakes/fake_loop.h"
#include "tests/fakes/seeded_random.h"

namespace kvtier {

class FakeDevice;

class FakeDevicePool final : public DevicePool {
 public:
  FakeDevicePool(FakeDevice* device, std::shared_ptr<AlignedBytes> memory, int fd);
  ~FakeDevicePool() override;
  FakeDevicePool(const FakeDevicePool&) = delete;
  FakeDevicePool& operator=(const FakeDevicePool&) = delete;

  [[nodiscard]] uint64_t bytes() const override { return memory_->size(); }
  [[nodiscard]] int shareable_fd() const override { return fd_; }
  [[nodiscard]] std::byte* data() const override { return memory_->data(); }
  void WhenReady(std::function<void()> ready) override;
  // A holder has the bytes as they are when the pool is gone.
  [[nodiscard]] const std::shared_ptr<AlignedBytes>& memory() const { return memory_; }
  // Whether it is a region.
  [[nodiscard]] bool is_lent() const;

 private:
  FakeDevice* const device_;
  const std::shared_ptr<AlignedBytes> memory_;
  const int fd_;
};

// Each copy's destination is filled with garbage when the copy is requested and gets its bytes when
// it completes, so that code which looks too early sees it. A source that changes meanwhile is a
// broken promise of the caller and aborts, but for regions that others copy from. Requests complete
// in any order; what they count is counted in the order in which they came.
class FakeDevice final : public Device {
 public:
  FakeDevice(FakeLoop* loop, uint64_t total_bytes, uint64_t seed);
  ~FakeDevice() override;

  [[nodiscard]] DeviceInfo info() const override;
  [[nodiscard]] Result<std::unique_ptr<DevicePool>> CreatePool(uint64_t bytes) override;
  // A pool that takes over another's memory.
  [[nodiscard]] std::unique_ptr<DevicePool> Reopen(std::shared_ptr<AlignedBytes> memory, int fd);
  // Makes memory of its own: the newest of `lent()`.
  [[nodiscard]] Result<std::unique_ptr<DevicePool>> Borrow(LentMemory* memory) override;
  void Copy(CopyRequest request) override;
  void AwaitBackground(bool awaited) override { background_awaited_ = awaited; }

  // The memory as a client sees it that mapped the pool with this descriptor.
  [[nodiscard]] FakeDevicePool* PoolByFd(int fd) const;

  // The memory that regions have borrowed, the latest last.
  [[nodiscard]] const std::vector<FakeDevicePool*>& lent() const { return lent_; }

  // Pools made from now on show this descriptor, which must be open, instead of a number that no
  // file has: a session sends it to its client.
  void ShareDescriptor(int fd) { shared_fd_ = fd; }
  // It is the device of this number, and reads the pools of those whose bits are set.
  void BeNeighbour(int ordinal, uint32_t neighbours) {
    ordinal_ = ordinal;
    neighbours_ = neighbours;
  }
  // Pools are ready only when an event of the device has run.
  void TakeTimeForPools() { pools_take_time_ = true; }
  // The next `count` requests fail after copying a part.
  void FailNextCopies(int count) { fail_next_ = count; }
  // Each later request fails with this probability.
  void FailCopiesAtRate(double rate) { failure_rate_ = rate; }

  [[nodiscard]] bool background_awaited() const { return background_awaited_; }
  [[nodiscard]] EventSource source() const { return source_; }
  [[nodiscard]] uint64_t copies_completed() const { return copies_completed_; }
  [[nodiscard]] uint64_t copies_requested() const { return copies_requested_; }
  // In one request so far.
  [[nodiscard]] size_t most_copies() const { return most_copies_; }
  [[nodiscard]] uint64_t allocated_bytes() const { return allocated_bytes_; }

 private:
  friend class FakeDevicePool;
  void Complete(const CopyRequest& request, uint64_t source_checksum, uint64_t counting);
  [[nodiscard]] bool ShouldFail();

  FakeLoop* const loop_;
  const EventSource source_;
  const uint64_t total_bytes_;
  SeededRandom random_;
  std::vector<FakeDevicePool*> pools_;
  std::vector<FakeDevicePool*> lent_;  // of these
  CountingOrder counting_;
  uint64_t allocated_bytes_ = 0;
  int next_fd_ = 1'000'000;
  int shared_fd_ = -1;
  int ordinal_ = 0;
  uint32_t neighbours_ = 0;
  bool pools_take_time_ = false;
  bool background_awaited_ = false;
  int fail_next_ = 0;
  double failure_rate_ = 0;
  uint64_t copies_completed_ = 0;
  uint64_t copies_requested_ = 0;
  size_t most_copies_ = 0;
};

}  // namespace kvtier
