// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/cuda_bench.h"

#include <algorithm>
#include <string>
#include <utility>

namespace kvtier::kernels::bench {

void CheckCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw CudaFailure(std::string(what) + ": " + cudaGetErrorString(error));
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

DeviceMemory::DeviceMemory(size_t bytes, Where where) : bytes_(bytes), where_(where) {
  const bool pinned = where == Where::kPinnedHost;
  CheckCuda(pinned ? cudaMallocHost(&data_, bytes) : cudaMalloc(&data_, bytes), "memory");
}

DeviceMemory::~DeviceMemory() {
  (void)(where_ == Where::kPinnedHost ? cudaFreeHost(data_) : cudaFree(data_));
}

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      where_(other.where_) {}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(where_, other.where_);
  return *this;
}

void DeviceMemory::Zero() { CheckCuda(cudaMemset(data_, 0, bytes_), "memset"); }

TimedStream::TimedStream() {
  CheckCuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
  CheckCuda(cudaEventCreate(&begin_), "event");
  CheckCuda(cudaEventCreate(&end_), "event");
}

TimedStream::~TimedStream() {
  (void)cudaEventDestroy(end_);
  (void)cudaEventDestroy(begin_);
  (void)cudaStreamDestroy(stream_);
}

void TimedStream::Begin() { CheckCuda(cudaEventRecord(begin_, stream_), "event"); }

double TimedStream::End() {
  CheckCuda(cudaEventRecord(end_, stream_), "event");
  CheckCuda(cudaEventSynchronize(end_), "measured work");
  float ms = 0;
  CheckCuda(cudaEventElapsedTime(&ms, begin_, end_), "event");
  return ms * 1000.0;
}

}  // namespace kvtier::kernels::bench
