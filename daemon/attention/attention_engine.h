// SPDX-License-Identifier: Apache-2.0
// One call of attention, checked and ready to be computed, and what computes it: the CPU over pools
// in host memory, the kernels over those on a GPU.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "kvtier/kernel_table.h"
#include "kvtier/kernels.h"

namespace kvtier {

// A cache's scales, one for each KV head; none: all are 1.
[[nodiscard]] inline kvt_scales ScalesByHead(std::span<const float> values) {
  return {.values = values.empty() ? nullptr : values.data(),
          .block_stride = 0,
          .token_stride = 0,
          .head_stride = 1};
}

// Blocks, lengths and scales are the job's own, in host memory; all other pointers are of the
// device that computes. Their targets must stay until the job is done.
struct AttentionJob {
  PoolId pool;
  kvt_paged_kv cache{};  // one layer of a pool, without its scales
  // [kv_heads], what an fp8 cache's numbers are multiplied with; empty: 1.
  std::vector<float> key_scales;
  std::vector<float> value_scales;
  kvt_dtype query_dtype = KVT_BF16;
  int32_t q_heads = 0;
  float softmax_scale = 1;
  float soft_cap = 0;                       // 0: none
  int32_t window_tokens = 0;                // 0: all
  std::vector<int32_t> query_starts = {0};  // [sequences + 1]
  std::vector<int32_t> kv_lengths;          // [sequences]
  std::vector<int32_t> blocks;              // of all sequences, one after another
  int32_t table_stride = 0;                 // of PaddedTable: the longest sequence's blocks
  int32_t max_kv_length = 0;
  const void* query = nullptr;  // [query tokens, q_heads, head_dim], contiguous
  void* output = nullptr;       // likewise
  float* lse = nullptr;         // [query tokens, q_heads]; null: not wanted

  // The results are not wanted any more. The only member that may change while it is computed.
  std::atomic<bool> cancelled = false;

  [[nodiscard]] int32_t sequences() const { return static_cast<int32_t>(kv_lengths.size()); }
  [[nodiscard]] int32_t query_tokens() const { return query_starts.back(); }
  // [sequences, table_stride]. Made where it is used: one long sequence among many short ones makes
  // it a thousand times as long as `blocks`. Entries behind a sequence's last block are 0, a valid
  // block that no kernel reads.
  [[nodiscard]] std::vector<int32_t> PaddedTable() const;
  [[nodiscard]] kvt_sequences tables(const int32_t* padded_table) const {
    return {.block_table = padded_table,
            .kv_lengths = kv_lengths.data(),
            .table_stride = table_stride,
            .sequences = sequences(),
            .max_kv_length = max_kv_length};
  }
};

// Errors: kLimitExceeded "attend_work" if the work is more than is allowed, in whatever unit.
[[nodiscard]] Status CheckWork(double work, double allowed);

// The reason of an error after which nothing of the device works in this process any more.
inline constexpr const char* kDeviceLost = "device_lost";

// Check may be called from any thread; everything else from one thread at a time, or from several
// if `concurrent` says so. An engine borrows nothing of a job beyond the call.
class AttentionEngine {
 public:
  struct Traits {
    std::string_view name;  // "cpu", "cuda"
    bool concurrent = false;
    // The head sizes, and the numbers of query heads per KV head, for which the engine has separate
    // code, each of which the self-test must therefore try. They have static storage.
    std::span<const int32_t> head_dims;
    std::span<const int32_t> groups;
  };
  explicit AttentionEngine(const Traits& traits) : traits_(traits) {}
  virtual ~AttentionEngine() = default;
  [[nodiscard]] const Traits& traits() const { return traits_; }

  // Whether it can compute such a job, whatever its addresses, within a few seconds. Errors:
  // kUnsupported "attend_geometry"; kLimitExceeded "attend_work".
  [[nodiscard]] virtual Status Check(const AttentionJob& job) const = 0;
  // Computes, and returns when the results are there. REQUIRES: Check passed, the job makes sense.
  // Errors: kCancelled; kResourceExhausted when the device's memory does not suffice for this job;
  // kIoError when the device failed, after which it is of no use any more.
  [[nodiscard]] virtual Status Run(const AttentionJob& job) = 0;

  // Between host memory and the device's, either way. Errors: kIoError.
  [[nodiscard]] virtual Status Copy(void* to, const void* from, size_t bytes) = 0;

 private:
  const Traits traits_;
};

// Computes on the CPU, for machines without a GPU, and for pools in host memory beside one. It has
// no state, so that any number of threads may call it.
[[nodiscard]] std::unique_ptr<AttentionEngine> MakeHostAttentionEngine();

// Computes by the kernels of libkvtier_kernels.so, which was opened at run time, on the GPU
// `ordinal`: with a stream and buffers of its own, beside the copies of the cache. `table` outlives
// the engine. Errors: kUnsupported, kIoError from CUDA.
[[nodiscard]] Result<std::unique_ptr<AttentionEngine>> OpenCudaAttentionEngine(
    const kvt_kernel_table* table, int32_t ordinal);

}  // namespace kvtier
