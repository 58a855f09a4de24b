// SPDX-License-Identifier: Apache-2.0
// A stream on one GPU, through the table of a library that was opened at run time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvtier/kernel_table.h"

namespace kvtier::kernels {

// Which GPU, and by whose calls. Plain data; the table outlives whoever has it.
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
  // Waits for nothing: what is queued must be done, or of no interest any more.
  ~DeviceStream();
  DeviceStream(DeviceStream&& other) noexcept;
  DeviceStream& operator=(DeviceStream&& other) noexcept;

  // In place of what it had. On failure it has no stream, and may only be opened or destroyed.
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

}  // namespace kvtier::kernels
