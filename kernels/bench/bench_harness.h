// SPDX-License-Identifier: Apache-2.0
// What every kernel bench stands on: device memory, random data, and times that mean something.
//
// Protocol: each case owns several sets of buffers, so many that L2 never serves what a launch
// reads; a CUDA graph of launches, one set after another, is replayed and the median time of a
// launch reported. Gaps between launches inside the graph are part of it. Ceilings are measured in
// the same run. One thread; errors of CUDA end the program with a message.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kvtier/kernels.h"

namespace kvtier::kernels::bench {

// Ends the program with `what` unless `error` is success.
void CheckCuda(cudaError_t error, const char* what);
void CheckStatus(kvt_kernel_status status, const char* what);

// Device memory, freed by the destructor.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  explicit DeviceMemory(size_t bytes);
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
};

// A copy of `values` on the device.
template <typename T>
DeviceMemory ToDevice(const std::vector<T>& values) {
  DeviceMemory memory(values.size() * sizeof(T));
  CheckCuda(cudaMemcpy(memory.get(), values.data(), memory.bytes(), cudaMemcpyHostToDevice),
            "copy to the device");
  return memory;
}

// `count` elements of N(0, 1), the same for the same seed.
void FillRandom(void* device, kvt_dtype dtype, size_t count, uint64_t seed);

// Sets of buffers needed so that L2 serves none of the `bytes` a launch reads.
[[nodiscard]] int RotationCount(size_t bytes);

// One launch, reading buffer set `rotation`, on that stream. Queues work only: it is captured.
using Launch = std::function<void(int rotation, cudaStream_t stream)>;

// Median microseconds of a launch.
[[nodiscard]] double MedianMicroseconds(int rotations, const Launch& launch);

// The same for one launch at a time on a stream. A copy, say, takes another path inside a graph.
[[nodiscard]] double MedianMicrosecondsOutsideGraph(
    const std::function<void(cudaStream_t stream)>& launch);

struct Ceilings {
  double copy_gbps = 0;    // device to device, bytes read plus bytes written
  double read_gbps = 0;    // read-only, 4 GiB
  double bf16_tflops = 0;  // 8192 cubed through cuBLAS; 0: no cuBLAS here
};
[[nodiscard]] Ceilings MeasureCeilings();

// Microseconds to read so many bytes and do nothing else, under the same protocol.
[[nodiscard]] double ReadFloorMicroseconds(size_t bytes);

// One line of the report. Counts that make no sense for a kernel stay 0.
struct BenchResult {
  std::string kernel;
  std::string variant;  // what the other fields do not say; may be empty
  std::string dtype = "bf16";
  std::string kv_dtype = "bf16";
  int batch = 0;
  int q_len = 0;
  int context = 0;
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int page = 0;
  double us = 0;
  double gbps = 0;
  double tflops = 0;
  double ceiling_ratio = 0;  // share of the ceiling that binds the case
};

// Which cases a run is made of.
enum class Grid : uint8_t {
  kBars,   // the cells that have bars
  kUsual,  // and a few of every other shape
  kWide,   // and decode over batches and contexts, group, head size, page and lengths varied
};

// What a run is asked for and what it has found.
class BenchRun {
 public:
  // `filter`: only cases whose name contains it; empty: all.
  BenchRun(std::string filter, Grid grid) : filter_(std::move(filter)), grid_(grid) {}

  [[nodiscard]] bool Wants(const std::string& case_name) const {
    return filter_.empty() || case_name.find(filter_) != std::string::npos;
  }
  [[nodiscard]] bool quick() const { return grid_ == Grid::kBars; }
  [[nodiscard]] bool wide() const { return grid_ == Grid::kWide; }
  [[nodiscard]] const Ceilings& ceilings() const { return ceilings_; }
  void set_ceilings(const Ceilings& ceilings) { ceilings_ = ceilings; }

  // Keeps the result and prints its line.
  void Add(const BenchResult& result);
  // The whole run as a document of schema kvtier.kernel-bench/1.
  [[nodiscard]] std::string Json(const std::string& commit) const;

 private:
  std::string filter_;
  Grid grid_;
  Ceilings ceilings_;
  std::vector<BenchResult> results_;
};

// Each kernel's cases.
void BenchDecode(BenchRun* run);
void BenchDecodeShared(BenchRun* run);
void BenchPrefill(BenchRun* run);
void BenchKvWrite(BenchRun* run);
void BenchBlockOps(BenchRun* run);
void BenchSuffix(BenchRun* run);
void BenchMla(BenchRun* run);

}  // namespace kvtier::kernels::bench
