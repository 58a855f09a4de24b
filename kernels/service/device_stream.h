// SPDX-License-Identifier: Apache-2.0
// A stream on one GPU and scratch memory that grows as its work needs it, through the table of a
// library that was opened at run time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvtier/kernel_table.h"

namespace kvtier::kernels {

// Which GPU, and the table through which it is called. Plain data; the table outlives every copy.
struct KernelDevice {
  const kvt_kernel_table* table = nullptr;
  int32_t ordinal = 0;

  // Makes it the calling thread's current one, as all calls of the table want it.
  [[nodiscard]] kvt_kernel_status Select() const { return table->select_device(ordinal); }
};

// Owns the stream. One thread at a time; every call selects the device first, since the thread may
// have been another's.
class DeviceStream {
 public:
  DeviceStream() = default;
  // Waits for nothing: queued work must be done, or of no interest any more.
  ~DeviceStream();
  DeviceStream(DeviceStream&& other) noexcept;
  DeviceStream& operator=(DeviceStream&& other) noexcept;

  // Replaces the stream that it had. On failure it has no stream, and may only be opened or
  // destroyed.
  [[nodiscard]] kvt_kernel_status Open(const KernelDevice& device);

  [[nodiscard]] const KernelDevice& device() const { return device_; }
  [[nodiscard]] const kvt_kernel_table& table() const { return *device_.table; }
  // For the table's calls. REQUIRES: Open succeeded, as for the following.
  [[nodiscard]] void* get() const { return stream_; }

  // Queues a copy, either way between host and device or within either. Pageable host memory has
  // been read when this returns.
  [[nodiscard]] kvt_kernel_status Copy(void* to, const void* from, size_t bytes) const;
  // Waits for all that is queued.
  [[nodiscard]] kvt_kernel_status Synchronize() const;

 private:
  void Close();

  KernelDevice device_;
  void* stream_ = nullptr;
};

// Owns the memory. One thread at a time, the stream's.
class DeviceBuffer {
 public:
  // So that growing is rare: buffers have a power of two of bytes, and no less.
  static constexpr size_t kMinBytes = size_t{1} << 20;

  DeviceBuffer() = default;
  // Work that is queued on the stream must be done.
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;

  // Makes room for `bytes` at least. Its contents stay if there was room already; else they are
  // gone, the stream has been waited for, and all bytes are 0. On failure there is no room at all.
  // REQUIRES: the same stream every time.
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
