// SPDX-License-Identifier: Apache-2.0
// A warp's 16 rows of queries: scores, the running softmax, sums of values, and the results that it
// writes. From an instruction's sums a thread holds columns 2 * (lane % 4) and the next of rows
// lane / 4 and 8 below; the four threads of a quad share a row.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/prefill/ampere_tile.cuh"

namespace kvtier::kernels {

template <typename Traits>
class AmpereRows {
 public:
  __device__ AmpereRows(const AmperePrefillPlan& plan, const PrefillItem& item)
      : plan_(plan), item_(item) {
    const kvt_prefill_params& p = plan.params;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int32_t token = AmperePosition(plan, item, RowOf(r)).token;
      last_[r] = LastKey(p, item, token);
      first_[r] = FirstKey(p, item, token, last_[r]);
    }
    score_scale_ = p.softmax_scale;
    if (Traits::kFp8 && !plan.scales_per_token) {
      score_scale_ *= HeadScale(p.kv.key_scales);
      value_scale_ = HeadScale(p.kv.value_scales);
    } else if (Traits::kFp8) {
      value_scale_ = 1.0F / kLift;
    }
  }

  // Takes in a tile whose first key is `first`.
  __device__ void Process(uint32_t queries, const AmpereKv<Traits>& kv, int stage, int32_t first) {
    float scores[kScoreTiles][4] = {};
    MultiplyKeys(queries, kv.Keys(stage), scores);
    const bool per_token = Traits::kFp8 && plan_.scales_per_token;
    if (per_token) ScaleColumns(kv.KeyScales(stage), 1.0F, scores);
    ScaleAndMask(first, scores);
    UpdateMax(scores);
    Exponentiate(scores);
    if (per_token) ScaleColumns(kv.ValueScales(stage), kLift, scores);
    MultiplyValues(kv.Values(stage), scores);
  }

  // Writes output and LSE. Once, after the last tile.
  __device__ void Write() {
    const kvt_prefill_params& p = plan_.params;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float own = QuadSum(sum_[r]);  // by whole warps
      if (item_.first_row + RowOf(r) >= item_.query_length * plan_.group) continue;
      const RowPosition place = AmperePosition(plan_, item_, RowOf(r));
      const float sink = p.sinks != nullptr ? p.sinks[place.head] * kLog2E : -INFINITY;
      const float peak = fmaxf(peak_[r], sink);
      const float shrink = Power(peak_[r], peak);
      const float total = own * shrink + Power(sink, peak);
      const bool any = !(total == 0);  // a sum that is NaN must show
      const int64_t token = int64_t{item_.query_start} + place.token;
      if (p.lse != nullptr && threadIdx.x % 4 == 0) {
        p.lse[token * p.q_heads + place.head] = any ? (peak + log2f(total)) * kLn2 : -INFINITY;
      }
      WriteRow(token * p.output_token_stride + place.head * p.output_head_stride, r,
               any ? shrink * value_scale_ / total : 0.0F);
    }
  }

 private:
  using Math = typename Traits::Math;
  static constexpr int kScoreTiles = kAmpereKeys / 8;
  static constexpr int kSumTiles = Traits::kHeadDim / 8;
  // Lifts weights times scales of values out of the range where fp16 loses digits.
  static constexpr float kLift = 64.0F;

  // The thread's row `r` of two, in the block's tile.
  __device__ static int RowOf(int r) {
    return static_cast<int>(threadIdx.x / 32) * 16 + static_cast<int>(threadIdx.x % 32) / 4 + 8 * r;
  }
  // exp2(value - peak), 0 for nothing.
  __device__ static float Power(float value, float peak) {
    return value == -INFINITY ? 0.0F : Exp2(value - peak);
  }
  __device__ float HeadScale(const kvt_scales& scales) const {
    return scales.values == nullptr ? 1.0F : scales.values[item_.kv_head * scales.head_stride];
  }

  // Lanes give the rows of four matrices. Queries: rows 0-7 and 8-15 of the first chunk, then both
  // of the second. Keys: both chunks of keys 0-7, then of keys 8-15.
  __device__ static void MultiplyKeys(uint32_t queries, uint32_t keys,
                                      float (&scores)[kScoreTiles][4]) {
    const int lane = threadIdx.x % 32;
    const int query_row = static_cast<int>(threadIdx.x / 32) * 16 + lane % 16;
    const int key_row = lane / 16 * 8 + lane % 8;
#pragma unroll
    for (int step = 0; step < Traits::kHeadDim / 16; ++step) {
      uint32_t a[4];
      LoadMatrices(queries + AmpereChunk<Traits>(query_row, 2 * step + lane / 16), a);
#pragma unroll
      for (int pair = 0; pair < kScoreTiles / 2; ++pair) {
        uint32_t b[4];
        LoadMatrices(keys + AmpereChunk<Traits>(pair * 16 + key_row, 2 * step + lane / 8 % 2), b);
        Math::MultiplyAdd(scores[2 * pair], a, {b[0], b[1]});
        Math::MultiplyAdd(scores[2 * pair + 1], a, {b[2], b[3]});
      }
    }
  }

  // Keys 0-7 and 8-15 of the first chunk, then of the second, each transposed.
  __device__ void MultiplyValues(uint32_t values, const float (&weights)[kScoreTiles][4]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 0; step < kAmpereKeys / 16; ++step) {
      const float* const low = weights[2 * step];
      const float* const high = weights[2 * step + 1];
      const uint32_t a[4] = {Math::Pack(low[0], low[1]), Math::Pack(low[2], low[3]),
                             Math::Pack(high[0], high[1]), Math::Pack(high[2], high[3])};
#pragma unroll
      for (int pair = 0; pair < kSumTiles / 2; ++pair) {
        uint32_t b[4];
        LoadMatricesTransposed(
            values + AmpereChunk<Traits>(step * 16 + lane % 16, 2 * pair + lane / 16), b);
        Math::MultiplyAdd(sums_[2 * pair], a, {b[0], b[1]});
        Math::MultiplyAdd(sums_[2 * pair + 1], a, {b[2], b[3]});
      }
    }
  }

  // Multiplies column c by its scale, which lies in shared memory, and `lift`.
  __device__ static void ScaleColumns(uint32_t scales, float lift,
                                      float (&scores)[kScoreTiles][4]) {
#pragma unroll
    for (int tile = 0; tile < kScoreTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = tile * 8 + 2 * static_cast<int>(threadIdx.x % 4) + i % 2;
        scores[tile][i] *= LoadSharedFloat(scales + column * 4) * lift;
      }
    }
  }

  // To logits times log2 e, so that powers of two serve.
  __device__ void ScaleAndMask(int32_t first, float (&scores)[kScoreTiles][4]) const {
    const float cap = plan_.params.soft_cap;
#pragma unroll
    for (int tile = 0; tile < kScoreTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int32_t key = first + tile * 8 + 2 * static_cast<int>(threadIdx.x % 4) + i % 2;
        const float logit = scores[tile][i] * score_scale_;
        const bool seen = key >= first_[i / 2] && key <= last_[i / 2];
        scores[tile][i] = !seen ? -INFINITY : kLog2E * (cap > 0 ? cap * Tanh(logit / cap) : logit);
      }
    }
  }

  __device__ void UpdateMax(const float (&scores)[kScoreTiles][4]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float largest = -INFINITY;
#pragma unroll
      for (int tile = 0; tile < kScoreTiles; ++tile) {
        largest = fmaxf(largest, fmaxf(scores[tile][2 * r], scores[tile][2 * r + 1]));
      }
      const float peak = fmaxf(peak_[r], QuadMax(largest));
      const float shrink = Power(peak_[r], peak);
      peak_[r] = peak;
      sum_[r] *= shrink;
#pragma unroll
      for (int tile = 0; tile < kSumTiles; ++tile) {
        sums_[tile][2 * r] *= shrink;
        sums_[tile][2 * r + 1] *= shrink;
      }
    }
  }

  __device__ void Exponentiate(float (&scores)[kScoreTiles][4]) {
#pragma unroll
    for (int tile = 0; tile < kScoreTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scores[tile][i] = Power(scores[tile][i], peak_[i / 2]);
        sum_[i / 2] += scores[tile][i];
      }
    }
  }

  __device__ void WriteRow(int64_t element, int r, float factor) const {
    const bool bf16 = plan_.params.query_dtype == KVT_BF16;
#pragma unroll
    for (int tile = 0; tile < kSumTiles; ++tile) {
      const int64_t at = element + tile * 8 + 2 * (threadIdx.x % 4);
      const float low = sums_[tile][2 * r] * factor;
      const float high = sums_[tile][2 * r + 1] * factor;
      if (plan_.to_fp32) {
        *reinterpret_cast<float2*>(static_cast<float*>(plan_.params.output) + at) =
            make_float2(low, high);
      } else {
        *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(plan_.params.output) + at) =
            PackPair(low, high, bf16);
      }
    }
  }

  const AmperePrefillPlan& plan_;
  const PrefillItem& item_;
  int32_t first_[2];  // keys that each row sees
  int32_t last_[2];
  float score_scale_;
  float value_scale_ = 1.0F;
  float peak_[2] = {-INFINITY, -INFINITY};  // largest score so far
  float sum_[2] = {};                       // of this thread's keys
  float sums_[kSumTiles][4] = {};
};

}  // namespace kvtier::kernels
