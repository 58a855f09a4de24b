// SPDX-License-Identifier: Apache-2.0
// The base of all benchmarks on a GPU, the kernels' and the pool's: device memory, a stream that
// measures time, medians. Needs nothing but the CUDA runtime.
//
// Errors of CUDA are thrown as CudaFailure: a benchmark cannot go on after one, and its program
// says which measurement it was. One object is used by one thread at a time.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <stdexcept>
#include <vector>

namespace kvtier::kernels::bench {

class CudaFailure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws a CudaFailure that says `what` unless `error` is success.
void CheckCuda(cudaError_t error, const char* what);

// The middle of the values, the mean of both if there are two; 0 of none.
[[nodiscard]] double Median(std::vector<double> values);

// Memory of the device, or pinned memory of the host; freed by the destructor.
class DeviceMemory {
 public:
  enum class Where { kDevice, kPinnedHost };

  DeviceMemory() = default;
  explicit DeviceMemory(size_t bytes, Where where = Where::kDevice);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;

  template <typename T = void>
  [[nodiscard]] T* get() const {
    return static_cast<T*>(data_);
  }
  [[nodiscard]] size_t bytes() const { return bytes_; }
  void Zero();

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
  Where where_ = Where::kDevice;
};

// A copy of `values` on the device.
template <typename T>
[[nodiscard]] DeviceMemory ToDevice(const std::vector<T>& values) {
  DeviceMemory memory(values.size() * sizeof(T));
  CheckCuda(cudaMemcpy(memory.get(), values.data(), memory.bytes(), cudaMemcpyHostToDevice),
            "copy to the device");
  return memory;
}

// A stream that waits for no other, and the time that its work takes.
class TimedStream {
 public:
  TimedStream();
  ~TimedStream();
  TimedStream(const TimedStream&) = delete;
  TimedStream& operator=(const TimedStream&) = delete;

  [[nodiscard]] cudaStream_t get() const { return stream_; }
  // Microseconds from the beginning to the end of what `queue`, called at once, puts on the stream;
  // waits for it.
  template <typename Queue>
  [[nodiscard]] double Microseconds(const Queue& queue) {
    Begin();
    queue();
    return End();
  }

 private:
  void Begin();
  [[nodiscard]] double End();

  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

}  // namespace kvtier::kernels::bench
