// SPDX-License-Identifier: Apache-2.0
#include "client/examples/attention.h"

#include <algorithm>
#include <cmath>

#include "base/result.h"
#include "client/examples/lanes.h"
#include "client/examples/tensor.h"

namespace kvtier::generate {
namespace {

constexpr size_t kVectors = kHeadDim / kLanes;
static_assert(kHeadDim % kLanes == 0);

// scores[i] = scale * query * key of the block's token i.
KVT_VECTOR_CLONES void ScoreBlock(const float* keys, size_t token_stride_floats, size_t tokens,
                                  const float* query, float scale, float* scores) {
  for (size_t token = 0; token < tokens; ++token) {
    const float* key = keys + token * token_stride_floats;
    Lanes products = At(query) * At(key);
    for (size_t i = 1; i < kVectors; ++i) {
      products += At(query + i * kLanes) * At(key + i * kLanes);
    }
    scores[token] = scale * SumOf(&products);
  }
}

// mixed += weights[i] * value of the block's token i.
KVT_VECTOR_CLONES void MixBlock(const float* values, size_t token_stride_floats, size_t tokens,
                                const float* weights, float* mixed) {
  Lanes sums[kVectors];
  for (size_t i = 0; i < kVectors; ++i) sums[i] = At(mixed + i * kLanes);
  for (size_t token = 0; token < tokens; ++token) {
    const float* value = values + token * token_stride_floats;
    for (size_t i = 0; i < kVectors; ++i) sums[i] += At(value + i * kLanes) * weights[token];
  }
  for (size_t i = 0; i < kVectors; ++i) At(mixed + i * kLanes) = sums[i];
}

}  // namespace

void Attend(const KvView& kv, size_t layer, size_t kv_head, size_t position, const float* query,
            std::span<float> scores, float* output) {
  const size_t count = position + 1;
  KVT_CHECK(scores.size() >= count + kLanes);
  const float scale = 1.0f / std::sqrt(static_cast<float>(kHeadDim));
  const size_t key_stride_floats = kv.layout.key_token_stride / sizeof(float);
  for (size_t first = 0; first < count; first += kBlockTokens) {
    ScoreBlock(kv.Key(layer, first, kv_head), key_stride_floats,
               std::min(kBlockTokens, count - first), query, scale, scores.data() + first);
  }
  const float weight_sum = ExponentiateScores(scores.data(), count);

  const size_t value_stride_floats = kv.layout.value_token_stride / sizeof(float);
  std::fill_n(output, kHeadDim, 0.0f);
  for (size_t first = 0; first < count; first += kBlockTokens) {
    MixBlock(kv.Value(layer, first, kv_head), value_stride_floats,
             std::min(kBlockTokens, count - first), scores.data() + first, output);
  }
  for (size_t i = 0; i < kHeadDim; ++i) output[i] /= weight_sum;
}

void HostKv::Store(const LayerRows& rows, const float* keys, const float* values) {
  for (size_t row = 0; row < rows.count; ++row) {
    const size_t position = rows.first_position + row;
    for (size_t head = 0; head < rows.shape.kv_heads; ++head) {
      const size_t at = row * rows.shape.kv_width() + head * kHeadDim;
      std::copy_n(keys + at, kHeadDim, view_.Key(rows.layer, position, head));
      std::copy_n(values + at, kHeadDim, view_.Value(rows.layer, position, head));
    }
  }
}

void HostKv::Attend(const LayerRows& rows, const float* queries, std::span<float> scores,
                    float* mixed) {
  const size_t group = rows.shape.query_heads / rows.shape.kv_heads;
  for (size_t row = 0; row < rows.count; ++row) {
    for (size_t head = 0; head < rows.shape.query_heads; ++head) {
      const size_t at = row * rows.shape.query_width() + head * kHeadDim;
      generate::Attend(view_, rows.layer, head / group, rows.first_position + row, queries + at,
                       scores, mixed + at);
    }
  }
}

}  // namespace kvtier::generate
