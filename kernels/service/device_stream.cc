// SPDX-License-Identifier: Apache-2.0
#include "kernels/service/device_stream.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace kvtier::kernels {

DeviceStream::~DeviceStream() { Close(); }

DeviceStream::DeviceStream(DeviceStream&& other) noexcept
    : device_(other.device_), stream_(std::exchange(other.stream_, nullptr)) {}

DeviceStream& DeviceStream::operator=(DeviceStream&& other) noexcept {
  if (this == &other) return *this;
  Close();
  device_ = other.device_;
  stream_ = std::exchange(other.stream_, nullptr);
  return *this;
}

void DeviceStream::Close() {
  void* const stream = std::exchange(stream_, nullptr);
  if (stream == nullptr || device_.Select() != KVT_KERNEL_OK) return;
  device_.table->destroy_stream(stream);
}

kvt_kernel_status DeviceStream::Open(const KernelDevice& device) {
  Close();
  device_ = device;
  if (const auto selected = device_.Select(); selected != KVT_KERNEL_OK) return selected;
  const kvt_kernel_status created = device_.table->create_stream(&stream_);
  if (created != KVT_KERNEL_OK) stream_ = nullptr;
  return created;
}

kvt_kernel_status DeviceStream::Copy(void* to, const void* from, size_t bytes) const {
  if (const auto selected = device_.Select(); selected != KVT_KERNEL_OK) return selected;
  return device_.table->copy(to, from, bytes, stream_);
}

kvt_kernel_status DeviceStream::Synchronize() const {
  if (const auto selected = device_.Select(); selected != KVT_KERNEL_OK) return selected;
  return device_.table->synchronize(stream_);
}

DeviceBuffer::~DeviceBuffer() { Release(); }

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : device_(other.device_),
      memory_(std::exchange(other.memory_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  if (this == &other) return *this;
  Release();
  device_ = other.device_;
  memory_ = std::exchange(other.memory_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

void DeviceBuffer::Release() {
  void* const memory = std::exchange(memory_, nullptr);
  bytes_ = 0;
  if (memory == nullptr || device_.Select() != KVT_KERNEL_OK) return;
  device_.table->release(memory);
}

kvt_kernel_status DeviceBuffer::Reserve(const DeviceStream& stream, size_t bytes) {
  if (bytes <= bytes_) return KVT_KERNEL_OK;
  // Queued work may still use the old memory.
  if (const auto waited = stream.Synchronize(); waited != KVT_KERNEL_OK) return waited;
  Release();
  device_ = stream.device();
  const size_t wanted = std::max(std::bit_ceil(bytes), kMinBytes);
  const kvt_kernel_status allocated = device_.table->allocate(&memory_, wanted);
  if (allocated == KVT_KERNEL_OK) {
    bytes_ = wanted;
  } else {
    memory_ = nullptr;
  }
  return allocated;
}

kvt_kernel_status DeviceBuffer::Upload(const DeviceStream& stream, const void* from, size_t bytes) {
  if (const auto reserved = Reserve(stream, bytes); reserved != KVT_KERNEL_OK) return reserved;
  return bytes == 0 ? KVT_KERNEL_OK : stream.Copy(memory_, from, bytes);
}

}  // namespace kvtier::kernels
