// SPDX-License-Identifier: Apache-2.0
#include "kernels/service/device_stream.h"

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

}  // namespace kvtier::kernels
