// SPDX-License-Identifier: Apache-2.0
// Attention and KV writes by libkvtier_kernels.so, in a pool on a GPU that is mapped here.
//
// The kernels compute with 16-bit elements and heads of 64, 128 or 256. The model's heads of 32
// FP32 elements are stored as 64 of FP16, the upper half zeros, which change neither a product nor
// a sum: a vector takes as many bytes as it does in FP32.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "client/examples/attention.h"

namespace kvtier::generate {

// What a head takes in a pool on a GPU.
inline constexpr size_t kGpuHeadDim = 64;

// A pool as this process has it mapped.
struct GpuPool {
  int ordinal = 0;    // of the GPU
  uint64_t base = 0;  // its address
  KvLayout layout;    // of FP16 heads of kGpuHeadDim
  size_t kv_heads = 0;
  size_t query_heads = 0;
};

// Any thread; one call at a time is served.
class GpuAttention {
 public:
  // Errors: kUnsupported "no_kernels", or what CUDA says.
  [[nodiscard]] static Result<std::unique_ptr<GpuAttention>> Open(const GpuPool& pool);
  virtual ~GpuAttention() = default;

  // KvAccess's calls, for a sequence of those blocks. Attend waits for its results, and thereby for
  // all that was stored before. Errors: kIoError, kUnsupported.
  [[nodiscard]] virtual Status Store(const LayerRows& rows, std::span<const int32_t> block_table,
                                     const float* keys, const float* values) = 0;
  [[nodiscard]] virtual Status Attend(const LayerRows& rows, std::span<const int32_t> block_table,
                                      const float* queries, float* mixed) = 0;
  // Within the pool, offsets from its first byte; waits. Errors: kIoError.
  [[nodiscard]] virtual Status Copy(uint64_t to, uint64_t from, uint64_t bytes) = 0;
};

// The keys and values of one sequence in such a pool.
class GpuKv final : public KvAccess {
 public:
  GpuKv(GpuAttention* gpu, std::vector<int32_t> block_table)
      : gpu_(gpu), block_table_(std::move(block_table)) {}

  void Store(const LayerRows& rows, const float* keys, const float* values) override;
  void Attend(const LayerRows& rows, const float* queries, std::span<float> scores,
              float* mixed) override;

  // The first error of the calls above. From then on, nothing that comes out means anything.
  [[nodiscard]] Status status() const;

 private:
  void Remember(const Status& status);

  GpuAttention* const gpu_;
  const std::vector<int32_t> block_table_;
  mutable std::mutex mutex_;
  std::optional<Error> error_;  // guarded by mutex_
};

}  // namespace kvtier::generate
