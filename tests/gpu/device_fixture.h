// SPDX-License-Identifier: Apache-2.0
// A real GPU for tests; without one they skip and say why.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/executor.h"
#include "base/units.h"
#include "client/cuda/cuda_mapping.h"
#include "gpu/cuda_device.h"
#include "tests/gpu/seeded_bytes.h"

namespace kvtier {

// Host memory that is pinned for a device while this lives.
class PinnedBuffer {
 public:
  PinnedBuffer(Device* device, uint64_t bytes);
  ~PinnedBuffer();
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  [[nodiscard]] std::span<std::byte> span() { return buffer_.span(); }
  [[nodiscard]] std::byte* data() { return buffer_.span().data(); }

 private:
  Device* const device_;
  AlignedBuffer buffer_;
};

class CudaDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override;

  // Opens GPU 0; before that there is no device.
  void OpenDevice(CudaDeviceOptions options = {});
  [[nodiscard]] std::unique_ptr<DevicePool> MakePool(uint64_t bytes);
  // The pool as a client maps it.
  [[nodiscard]] static std::shared_ptr<client::CudaMapping> Map(const DevicePool& pool);
  [[nodiscard]] Status CopyAndWait(CopyRequest request);
  // VRAM that no process holds, as a newly opened device tells.
  [[nodiscard]] uint64_t FreeVram();

  BlockingLoop loop_;
  std::unique_ptr<Device> device_;
};

// Runs gpu_pool_peer, another process that maps the pool. Killed with its owner.
class PoolPeer {
 public:
  // `command`: see pool_peer.cc.
  PoolPeer(const DevicePool& pool, const std::string& command, uint64_t seed);
  // One that lends so many bytes of its own on the GPU, filled from the seed.
  PoolPeer(uint64_t lent_bytes, uint64_t seed, int ordinal = 0)
      : PoolPeer(-1, lent_bytes, "lend" + std::to_string(ordinal), seed) {}
  ~PoolPeer();
  PoolPeer(const PoolPeer&) = delete;
  PoolPeer& operator=(const PoolPeer&) = delete;

  // Waits until it says that it is at work. False if it ended instead.
  [[nodiscard]] bool WaitUntilReady();
  // The handle of the memory that it lends. All zeros if it ended instead.
  [[nodiscard]] std::array<uint8_t, 64> ReadIpcHandle();
  [[nodiscard]] uint32_t pid() const { return static_cast<uint32_t>(pid_); }
  void Kill();
  // Waits for its end; its exit code, or minus the signal.
  int Wait();

 private:
  PoolPeer(int fd, uint64_t bytes, const std::string& command, uint64_t seed);

  pid_t pid_ = -1;
  int output_ = -1;
};

}  // namespace kvtier
