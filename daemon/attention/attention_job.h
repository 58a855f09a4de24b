// SPDX-License-Identifier: Apache-2.0
// One call of attention, checked and ready to be computed. Plain data.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "kvtier/kernels.h"

namespace kvtier {

// A cache's scales, one for each KV head; none: all are 1.
[[nodiscard]] inline kvt_scales ScalesByHead(std::span<const float> values) {
  return {.values = values.empty() ? nullptr : values.data(),
          .block_stride = 0,
          .token_stride = 0,
          .head_stride = 1};
}

// Tables, lengths and scales are the job's own, in host memory; all other pointers are of the
// device that computes. What they point at must stay until the job is done.
struct AttentionJob {
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
  std::vector<int32_t> block_table;         // [sequences, table_stride]
  int32_t table_stride = 0;
  int32_t max_kv_length = 0;
  const void* query = nullptr;  // [query tokens, q_heads, head_dim], contiguous
  void* output = nullptr;       // likewise
  float* lse = nullptr;         // [query tokens, q_heads]; null: not wanted

  // Nobody waits for the results any more. The only member that may change meanwhile.
  std::atomic<bool> cancelled = false;

  [[nodiscard]] int32_t sequences() const { return static_cast<int32_t>(kv_lengths.size()); }
  [[nodiscard]] int32_t query_tokens() const { return query_starts.back(); }
  [[nodiscard]] kvt_sequences tables() const {
    return {.block_table = block_table.data(),
            .kv_lengths = kv_lengths.data(),
            .table_stride = table_stride,
            .sequences = sequences(),
            .max_kv_length = max_kv_length};
  }
};

}  // namespace kvtier
