// SPDX-License-Identifier: Apache-2.0
// Small random models and memory for their keys and values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "client/examples/attention.h"
#include "client/examples/model.h"

namespace kvtier::generate {

inline std::vector<float> RandomFloats(size_t count, float scale, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    value = scale * (static_cast<float>(random() >> 8) / 8388608.0f - 1.0f);
  }
  return values;
}

inline ModelShape SmallShape() {
  return {.layers = 2,
          .width = 64,
          .query_heads = 4,
          .kv_heads = 2,
          .hidden = 96,
          .vocabulary = 256,
          .max_positions = 512,
          .rope_theta = 10000.0f,
          .norm_epsilon = 1e-5f};
}

inline Weights RandomWeights(const ModelShape& shape) {
  uint32_t seed = 0;
  const auto matrix = [&](size_t outputs, size_t inputs) {
    return PackedMatrix(RandomFloats(outputs * inputs, 0.3f, ++seed), outputs, inputs);
  };
  Weights weights;
  weights.shape = shape;
  weights.embedding = RandomFloats(size_t{shape.vocabulary} * shape.width, 1.0f, ++seed);
  weights.logits = PackedMatrix(weights.embedding, shape.vocabulary, shape.width);
  for (uint32_t i = 0; i < shape.layers; ++i) {
    weights.layers.push_back({.attention_norm = RandomFloats(shape.width, 1.0f, ++seed),
                              .query = matrix(shape.query_width(), shape.width),
                              .key = matrix(shape.kv_width(), shape.width),
                              .value = matrix(shape.kv_width(), shape.width),
                              .attention_output = matrix(shape.width, shape.query_width()),
                              .feed_forward_norm = RandomFloats(shape.width, 1.0f, ++seed),
                              .gate = matrix(shape.hidden, shape.width),
                              .up = matrix(shape.hidden, shape.width),
                              .down = matrix(shape.width, shape.hidden)});
  }
  weights.final_norm = RandomFloats(shape.width, 1.0f, ++seed);
  return weights;
}

// [block][layer][K,V][token][head][dim] without gaps.
inline KvLayout DenseLayout(const ModelShape& shape) {
  KvLayout layout;
  layout.key_head_stride = layout.value_head_stride = kHeadDim * sizeof(float);
  layout.key_token_stride = layout.value_token_stride = shape.kv_heads * layout.key_head_stride;
  layout.value_offset = kBlockTokens * layout.key_token_stride;
  layout.layer_stride = 2 * layout.value_offset;
  layout.block_stride = shape.layers * layout.layer_stride;
  return layout;
}

// A pool of blocks, filled with NaN, and one sequence's block table in it.
class KvMemory {
 public:
  KvMemory(const KvLayout& layout, size_t pool_blocks, std::vector<int32_t> block_table)
      : layout_(layout),
        block_table_(std::move(block_table)),
        floats_(pool_blocks * layout.block_stride / sizeof(float),
                std::numeric_limits<float>::quiet_NaN()) {}

  // With the blocks in order.
  KvMemory(const KvLayout& layout, size_t blocks) : KvMemory(layout, blocks, InOrder(blocks)) {}

  [[nodiscard]] KvView view() {
    return {reinterpret_cast<std::byte*>(floats_.data()), block_table_, layout_};
  }
  [[nodiscard]] std::vector<float>& floats() { return floats_; }

 private:
  static std::vector<int32_t> InOrder(size_t blocks) {
    std::vector<int32_t> table(blocks);
    std::iota(table.begin(), table.end(), 0);
    return table;
  }

  KvLayout layout_;
  std::vector<int32_t> block_table_;
  std::vector<float> floats_;
};

inline std::vector<Token> RandomTokens(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Token> tokens(count);
  for (Token& token : tokens) token = random() % 256;
  return tokens;
}

inline std::vector<Token> TokensOf(std::string_view text) {
  std::vector<Token> tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

// -0 and 0 differ here, NaNs of the same bits do not.
inline std::vector<uint32_t> BitsOf(std::span<const float> values) {
  std::vector<uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

}  // namespace kvtier::generate
