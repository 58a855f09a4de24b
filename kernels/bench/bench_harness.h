// SPDX-License-Identifier: Apache-2.0
// The base of every kernel bench: device memory, random data, and times that mean something.
//
// Protocol: each case owns several sets of buffers, so many that L2 never serves what a launch
// reads; a CUDA graph of launches, one set after another, is replayed and the median time of a
// launch reported. Gaps between launches inside the graph are part of it. Ceilings are measured in
// the same run. One thread; errors of CUDA are thrown (cuda_bench.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/bench/cuda_bench.h"
#include "kvtier/kernels.h"

namespace kvtier::kernels::bench {

// As CheckCuda.
void CheckStatus(kvt_kernel_status status, const char* what);

// `count` elements of N(0, 1), the same for the same seed.
void FillRandom(void* device, kvt_dtype dtype, size_t count, uint64_t seed);
[[nodiscard]] DeviceMemory RandomOnDevice(kvt_dtype dtype, size_t count, uint64_t seed);

// The numbers from 0 to `count` - 1 in an order that the seed decides: blocks in random places.
[[nodiscard]] std::vector<int32_t> Shuffled(size_t count, uint64_t seed);

// "bf16", "fp16", "fp8".
[[nodiscard]] const char* TypeName(kvt_dtype dtype);

// Random keys and values of `blocks` blocks, pages [page, kv_heads, head_dim].
struct CacheShape {
  int64_t blocks = 0;
  int page = 16;
  int kv_heads = 8;
  int head_dim = 128;
  kvt_dtype dtype = KVT_BF16;
  // Layers that a block has, [layer][K, V], as in kvtier's pool. 0: one layer, its keys in one
  // tensor and its values in another.
  int layers = 1;
  // [token][head][K dim, V dim] within a layer, as in vLLM's KV cache. Not with 0 layers.
  bool interleaved = false;
};
class PagedCache {
 public:
  PagedCache() = default;
  explicit PagedCache(const CacheShape& shape);
  [[nodiscard]] kvt_paged_kv Layer(int layer = 0) const;

 private:
  CacheShape shape_;
  DeviceMemory memory_;
};

// Sets of buffers needed so that L2 serves none of the `bytes` a launch reads.
[[nodiscard]] int RotationCount(size_t bytes);

// One launch, reading buffer set `rotation`, on that stream. Queues work only: it is captured.
using Launch = std::function<void(int rotation, cudaStream_t stream)>;

// Median microseconds of a launch.
[[nodiscard]] double MedianMicroseconds(int rotations, const Launch& launch);

// The same of an object that has rotations() and Launch(rotation, stream).
template <typename Work>
[[nodiscard]] double MedianMicroseconds(const Work& work) {
  return MedianMicroseconds(work.rotations(), [&work](int rotation, cudaStream_t stream) {
    work.Launch(rotation, stream);
  });
}

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
  std::string variant;  // details that the other fields lack; may be empty
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

// The bound that a case is compared with: a ceiling of the machine, or the higher of two.
enum class Bound : uint8_t { kRead, kCopy, kMatrix, kReadOrMatrix };

// Which cases a run is made of.
enum class Grid : uint8_t {
  kBars,   // the cells that have bars
  kUsual,  // and a few of every other shape
  kWide,   // and decode over batches and contexts, group, head size, page and lengths varied
};

// A run's options and its results.
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

  // Keeps the result and prints its line. `result` has its shape; time and bytes are filled in
  // here.
  void Add(BenchResult result, double us, double bytes, double flops, Bound bound);
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
void BenchMerge(BenchRun* run);
void BenchSuffix(BenchRun* run);
void BenchMla(BenchRun* run);

}  // namespace kvtier::kernels::bench
