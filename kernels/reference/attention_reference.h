// SPDX-License-Identifier: Apache-2.0
// Attention over a paged KV cache on the CPU: the reference for judging the kernels.
//
// All pointers are host pointers, here and in the structs of kernels.h used as parameters; layouts
// and meanings are those of the kernels. Any thread may call; nothing is kept between calls.
#pragma once

#include <cstdint>
#include <vector>

#include "kvtier/kernels.h"

namespace kvtier::kernels {

// Queries of several sequences, one row after another: row r lies at query + r * token_stride.
struct ReferenceAttention {
  const void* query = nullptr;
  kvt_dtype query_dtype = KVT_BF16;
  int32_t q_heads = 0;
  int64_t query_token_stride = 0;
  int64_t query_head_stride = 0;
  // [sequences + 1]: the rows of sequence s are [query_starts[s], query_starts[s + 1]). They are
  // its last tokens: row i of n sees the keys [0, length - n + i]. Null: one row for each sequence.
  const int32_t* query_starts = nullptr;
  kvt_paged_kv kv = {};
  // Columns of a value and of the output; 0: as many as of a key. A latent cache's values are its
  // keys' first columns: kv.value is kv.key there.
  int32_t value_dim = 0;
  kvt_sequences sequences = {};
  float softmax_scale = 1.0F;
  float soft_cap = 0;         // 0: none; else score = cap * tanh(score / cap)
  int32_t window_tokens = 0;  // 0: all; else a row sees only its last so many keys, itself included
  const float* sinks = nullptr;  // [q_heads]: logits that take weight but have no value; null: none
};

enum class ReferenceArithmetic : uint8_t {
  kExact,  // fp64 throughout
  // The result of a plain implementation in the query's 16-bit type: fp32 sums, probabilities and
  // the output rounded to 16 bits. Its error is the yardstick for a kernel's.
  kPlain16Bit,
};

struct ReferenceOutput {
  std::vector<double> output;  // [rows, q_heads, value_dim]
  std::vector<double> lse;     // [rows, q_heads], natural logarithm; -infinity where no key is seen
};

[[nodiscard]] ReferenceOutput AttentionReference(
    const ReferenceAttention& attention,
    ReferenceArithmetic arithmetic = ReferenceArithmetic::kExact);

}  // namespace kvtier::kernels
