// SPDX-License-Identifier: Apache-2.0
// Scratch memory on a GPU that grows as the work of one stream needs it.
#pragma once

#include <cstddef>

#include "kernels/service/device_stream.h"

namespace kvtier::kernels {

// Owns the memory. One thread at a time, the stream's.
class DeviceBuffer {
 public:
  // So that growing is rare: buffers have a power of two of bytes, and no less.
  static constexpr size_t kMinBytes = size_t{1} << 20;

  DeviceBuffer() = default;
  // What is queued on the stream must be done.
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;

  // Room for `bytes` at least. What it held is kept if there was room already; else it is gone, the
  // stream has been waited for, and all bytes are 0. On failure there is no room at all. REQUIRES:
  // the same stream every time.
  [[nodiscard]] kvt_kernel_status Reserve(const DeviceStream& stream, size_t bytes);
  // Reserves, and copies `bytes` there; see DeviceStream::Copy.
  [[nodiscard]] kvt_kernel_status Upload(const DeviceStream& stream, const void* from,
                                         size_t bytes);

  [[nodiscard]] void* memory() const { return memory_; }
  [[nodiscard]] size_t bytes() const { return bytes_; }

 private:
  void Release();

  KernelDevice device_;
  void* memory_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace kvtier::kernels
