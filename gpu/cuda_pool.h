// SPDX-License-Identifier: Apache-2.0
// A pool in a GPU's memory. Internal to gpu/.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/executor.h"
#include "base/posix.h"
#include "base/result.h"
#include "gpu/cuda_driver.h"
#include "gpu/cuda_memory.h"
#include "gpu/device.h"

namespace kvtier {

// One physical allocation, mapped here and exported as a descriptor. Its memory returns to the GPU
// when every process that imported it has let go of it, or died.
class CudaPool final : public CudaMemory {
 public:
  // Allocates, and has a stream write the zeros. `loop` outlives the pool. The device
  // is the calling thread's current one. Errors: kInvalidArgument "empty_pool"; kResourceExhausted
  // "pool_exceeds_vram", which names the requested, the free and the total bytes; kIoError.
  [[nodiscard]] static Result<std::unique_ptr<CudaPool>> Create(const CudaDriver* driver,
                                                                int ordinal, uint64_t bytes,
                                                                EventQueue* loop);
  // Maps the allocation of an earlier process's pool, which stays as it was. Errors: kCorrupt
  // "other_device", "size_changed"; kIoError.
  [[nodiscard]] static Result<std::unique_ptr<CudaPool>> Adopt(const CudaDriver* driver,
                                                               int ordinal, UniqueFd fd,
                                                               uint64_t bytes);
  ~CudaPool() override;
  CudaPool(const CudaPool&) = delete;
  CudaPool& operator=(const CudaPool&) = delete;

  [[nodiscard]] uint64_t bytes() const override { return bytes_; }
  [[nodiscard]] int shareable_fd() const override { return fd_.get(); }
  // In the GPU's address space: not to be read or written by the CPU.
  [[nodiscard]] std::byte* data() const override { return reinterpret_cast<std::byte*>(address_); }
  void WhenReady(std::function<void()> ready) override;
  void AwaitReady() override;
  [[nodiscard]] Status LetRead(int ordinal) override;

 private:
  // For the event loop alone.
  struct Readiness {
    bool reached = false;
    std::vector<std::function<void()>> waiting;
  };
  // The argument of the stream's callback, which frees it.
  struct Zeroed {
    EventQueue* loop = nullptr;
    std::weak_ptr<Readiness> readiness;
  };

  CudaPool(const CudaDriver* driver, int ordinal) : CudaMemory(ordinal), driver_(*driver) {}
  [[nodiscard]] Status Allocate(uint64_t bytes);
  [[nodiscard]] Status Import(UniqueFd fd, uint64_t bytes);
  [[nodiscard]] Status Map();
  [[nodiscard]] Status Allow(int ordinal);
  [[nodiscard]] Status Zero(EventQueue* loop);
  // On a thread of the driver's, which may not call it.
  static void OnZeroed(void* zeroed);

  // A copy, because a queued event may hold the pool for longer than its device lives.
  const CudaDriver driver_;
  uint64_t bytes_ = 0;
  CUmemGenericAllocationHandle handle_ = 0;
  UniqueFd fd_;
  CUdeviceptr address_ = 0;
  bool mapped_ = false;
  uint32_t readers_ = 0;  // by ordinal, a bit for each GPU that LetRead named
  cudaStream_t zeroing_ = nullptr;
  const std::shared_ptr<Readiness> readiness_ = std::make_shared<Readiness>();
};

}  // namespace kvtier
