// SPDX-License-Identifier: Apache-2.0
// GPU memory that another process lends. Internal to gpu/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/result.h"
#include "gpu/cuda_driver.h"
#include "gpu/cuda_memory.h"
#include "gpu/device.h"

namespace kvtier {

// Mapped here for as long as this lives, whatever becomes of the lender: its memory returns to the
// GPU when both have let go of it. Event loop only, but for Open and the destructor.
class CudaLentMemory final : public CudaMemory {
 public:
  // Any thread; the device is its current one. `log` is called by the destructor if the memory
  // stays held; it may be empty. Errors: kInvalidArgument "bad_region_memory" if the driver does
  // not know the memory, or if it is smaller than said or on another GPU.
  [[nodiscard]] static Result<std::unique_ptr<DevicePool>> Open(
      const CudaDriver* driver, int ordinal, std::function<void(std::string)> log,
      LentMemory* memory);
  ~CudaLentMemory() override;
  CudaLentMemory(const CudaLentMemory&) = delete;
  CudaLentMemory& operator=(const CudaLentMemory&) = delete;

  [[nodiscard]] uint64_t bytes() const override { return bytes_; }
  // Only the lender may hand the memory on.
  [[nodiscard]] int shareable_fd() const override { return -1; }
  // In the GPU's address space: not to be read or written by the CPU.
  [[nodiscard]] std::byte* data() const override { return reinterpret_cast<std::byte*>(address_); }
  [[nodiscard]] Status LetRead(int ordinal) override;

 private:
  CudaLentMemory(const CudaDriver* driver, int ordinal, std::function<void(std::string)> log,
                 uint64_t bytes)
      : CudaMemory(ordinal), driver_(*driver), log_(std::move(log)), bytes_(bytes) {}
  // Maps memory that was exported as a descriptor.
  [[nodiscard]] Status MapAllocation(int fd);
  // Opens memory that cudaIpcGetMemHandle named.
  [[nodiscard]] Status OpenIpcHandle(const LentMemory& memory);

  // A copy, because a copy in flight may hold the memory for longer than its device lives.
  const CudaDriver driver_;
  const std::function<void(std::string)> log_;
  const uint64_t bytes_;
  CUmemGenericAllocationHandle allocation_ = 0;
  CUdeviceptr address_ = 0;
  bool mapped_ = false;
  uint32_t readers_ = 0;  // by ordinal, a bit for each GPU that may read it
  void* ipc_ = nullptr;
};

}  // namespace kvtier
