// SPDX-License-Identifier: Apache-2.0
// The dimensions of a Llama-style decoder.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvtier::generate {

// A byte of text.
using Token = uint32_t;

// What the attention is compiled for.
inline constexpr size_t kHeadDim = 32;
// Tokens of a KV block.
inline constexpr size_t kBlockTokens = 16;

struct ModelShape {
  uint32_t layers = 0;
  uint32_t width = 0;
  uint32_t query_heads = 0;
  uint32_t kv_heads = 0;
  uint32_t hidden = 0;
  uint32_t vocabulary = 0;
  uint32_t max_positions = 0;
  float rope_theta = 0;
  float norm_epsilon = 0;

  [[nodiscard]] size_t query_width() const { return query_heads * kHeadDim; }
  [[nodiscard]] size_t kv_width() const { return kv_heads * kHeadDim; }
};

}  // namespace kvtier::generate
