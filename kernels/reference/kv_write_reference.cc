// SPDX-License-Identifier: Apache-2.0
#include "kernels/reference/kv_write_reference.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/reference/number_format.h"

namespace kvtier::kernels {
namespace {

constexpr float kFp8Max = 448.0F;

using Row = std::vector<float>;

Row LoadRow(const void* base, kvt_dtype dtype, int64_t at, int32_t head_dim) {
  Row row(head_dim);
  for (int32_t i = 0; i < head_dim; ++i) row[i] = LoadElement(base, dtype, at + i);
  return row;
}

void StoreRow(void* base, kvt_dtype dtype, int64_t at, const Row& row) {
  for (size_t i = 0; i < row.size(); ++i) {
    StoreElement(base, dtype, at + static_cast<int64_t>(i), row[i]);
  }
}

// The same fused operations in the same order as on the GPU, since the bytes must agree.
void Rotate(const kvt_rope& rope, kvt_dtype dtype, int64_t token, Row& row) {
  if (rope.style == KVT_ROPE_NONE) return;
  const int32_t half = rope.rotary_dim / 2;
  const float* angles = rope.cos_sin + int64_t{rope.positions[token]} * rope.rotary_dim;
  for (int32_t i = 0; i < half; ++i) {
    float& a = row[rope.style == KVT_ROPE_NEOX ? i : 2 * i];
    float& b = row[rope.style == KVT_ROPE_NEOX ? i + half : 2 * i + 1];
    const float cosine = angles[i], sine = angles[half + i];
    const float b_sine = b * sine, a_sine = a * sine;
    const float turned_a = std::fma(a, cosine, -b_sine);
    const float turned_b = std::fma(b, cosine, a_sine);
    a = RoundTo(dtype, turned_a);
    b = RoundTo(dtype, turned_b);
  }
}

float FindScale(const Row& row) {
  float maximum = 0;
  for (const float value : row) maximum = std::max(maximum, std::fabs(value));
  return maximum > 0 ? maximum / kFp8Max : 1.0F;
}

struct Slot {
  int64_t block, token, head;
};

void WriteCache(const kvt_kv_write_params& p, void* base, const kvt_scales& scales,
                const Slot& slot, Row row) {
  const kvt_paged_kv& cache = p.cache;
  if (cache.dtype == KVT_FP8_E4M3) {
    const int64_t at = slot.block * scales.block_stride + slot.token * scales.token_stride +
                       slot.head * scales.head_stride;
    if (p.dynamic_scales != 0) const_cast<float*>(scales.values)[at] = FindScale(row);
    const float scale = scales.values != nullptr ? scales.values[at] : 1.0F;
    const float inverse = 1.0F / scale;
    for (float& value : row) value *= inverse;
  }
  StoreRow(base, cache.dtype,
           slot.block * cache.block_stride + slot.token * cache.token_stride +
               slot.head * cache.head_stride,
           row);
}

}  // namespace

void KvWriteReference(const kvt_kv_write_params& p) {
  const int32_t head_dim = p.cache.head_dim;
  for (int64_t t = 0; t < p.tokens; ++t) {
    for (int64_t h = 0; p.query != nullptr && h < p.query_heads; ++h) {
      Row row =
          LoadRow(p.query, p.dtype, t * p.query_token_stride + h * p.query_head_stride, head_dim);
      Rotate(p.rope, p.dtype, t, row);
      StoreRow(p.query_output, p.dtype,
               t * p.query_output_token_stride + h * p.query_output_head_stride, row);
    }
    if (p.slot_mapping[t] < 0) continue;
    for (int64_t h = 0; h < p.cache.kv_heads; ++h) {
      const Slot slot{p.slot_mapping[t] / p.cache.page_tokens,
                      p.slot_mapping[t] % p.cache.page_tokens, h};
      Row key = LoadRow(p.key, p.dtype, t * p.key_token_stride + h * p.key_head_stride, head_dim);
      Rotate(p.rope, p.dtype, t, key);
      WriteCache(p, p.cache.key, p.cache.key_scales, slot, std::move(key));
      WriteCache(
          p, p.cache.value, p.cache.value_scales, slot,
          LoadRow(p.value, p.dtype, t * p.value_token_stride + h * p.value_head_stride, head_dim));
    }
  }
}

}  // namespace kvtier::kernels
