// SPDX-License-Identifier: Apache-2.0
// Device memory for tests: arrays that free themselves, and whether there is a device at all.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvtier::kernels {

// The major number of the compute capability; 0: there is no device.
[[nodiscard]] inline int DeviceMajor() {
  int major = 0;
  const bool is_there =
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess;
  return is_there ? major : 0;
}

// Whether the library has kernels that are built for Hopper alone, and runs them here.
[[nodiscard]] inline bool RunsHopperKernels() {
#ifdef KVTIER_AMPERE_KERNELS_ONLY
  return false;
#else
  return DeviceMajor() == 9;
#endif
}

// For kernels that are built for all devices.
#define KVT_SKIP_WITHOUT_GPU()              \
  if (::kvtier::kernels::DeviceMajor() < 8) \
  GTEST_SKIP() << "no GPU of compute capability 8.0 or later here"

// For those that are built for Hopper alone.
#define KVT_SKIP_WITHOUT_HOPPER() \
  if (!::kvtier::kernels::RunsHopperKernels()) GTEST_SKIP() << "no Hopper GPU here"

// Makes an element of bf16 or fp16 NaN, on the device.
inline void MakeNan16(const void* array, int64_t element) {
  auto* const at = static_cast<uint16_t*>(const_cast<void*>(array)) + element;
  EXPECT_EQ(cudaMemset(at, 0xFF, sizeof(uint16_t)), cudaSuccess);
}

template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) : count_(count) {
    EXPECT_EQ(cudaMalloc(&data_, count * sizeof(T) + 1), cudaSuccess);
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) { Set(values); }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  [[nodiscard]] T* get() const { return static_cast<T*>(data_); }
  void Set(const std::vector<T>& values) {
    EXPECT_EQ(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyDefault),
              cudaSuccess);
  }
  void Fill(int byte) { EXPECT_EQ(cudaMemset(data_, byte, count_ * sizeof(T)), cudaSuccess); }
  // Waits for all work on the device first.
  [[nodiscard]] std::vector<T> Get() const {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    std::vector<T> values(count_);
    EXPECT_EQ(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDefault), cudaSuccess);
    return values;
  }

 private:
  void* data_ = nullptr;
  size_t count_;
};

}  // namespace kvtier::kernels
