// SPDX-License-Identifier: Apache-2.0
// The parts of an item, which the CTAs of a cluster have in their shared memory, become rows of the
// output; each CTA merges a share of the rows.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/hopper/math.cuh"
#include "kernels/prefill/prefill_tile.cuh"
#include "kernels/prefill/short_shared.cuh"

namespace kvtier::kernels {

// Where columns from `column` on of a row of sums lie, from the keys' place of the stage that holds
// them; the right half of the columns in the values' place. Chunks of four columns are swapped so
// that eight rows' fall into different banks.
template <typename Traits>
__device__ __forceinline__ uint32_t SumsOffset(int row, int column) {
  constexpr int kColumns = Traits::kHeadDim / 2;
  const uint32_t half = column / kColumns * (Traits::kStages * Traits::kTileBytes);
  const int chunk = column % kColumns / 4;
  return half + row * (kColumns * 4) + (chunk ^ (row % 8)) * 16 + column % 4 * 4;
}

// Rows of an item that one CTA merges: [first, first + count).
struct RowShare {
  int32_t rows;  // of every CTA but the last ones
  int32_t first;
  int32_t count;
};

__device__ __forceinline__ RowShare ShareOf(int32_t rows, int32_t ctas, int32_t rank) {
  const int32_t share = (rows + ctas - 1) / ctas;
  const int32_t first = rank * share;
  return {share, first, max(0, min(rows, first + share) - first)};
}

// One warpgroup; a thread has four columns of a row.
template <typename Traits>
class ShortMerger {
 public:
  __device__ ShortMerger(const PrefillPlan& plan, const ShortShared<Traits>& shared, int thread)
      : plan_(plan), shared_(shared), thread_(thread) {}

  __device__ void Merge(const PrefillItem& item, const RowShare& share, int32_t ctas) const {
    constexpr int kChunks = Traits::kHeadDim / 4;
    const int column = thread_ % kChunks * 4;
#pragma unroll 1
    for (int r = thread_ / kChunks; r < share.count; r += 128 / kChunks) {
      MergeColumns(item, share, r, column, ctas);
    }
  }

 private:
  static constexpr int kAtOnce = 8;  // parts whose loads are under way together

  __device__ __forceinline__ void MergeColumns(const PrefillItem& item, const RowShare& share,
                                               int r, int column, int32_t ctas) const {
    const kvt_prefill_params& p = plan_.params;
    const RowPosition place = PositionOf(plan_, item, share.first + r);
    const float sink = p.sinks != nullptr && item.split == 0 ? p.sinks[place.head] : -INFINITY;
    const float* const lse = shared_.parts.lse + r;
    float peak = sink;
#pragma unroll 4
    for (int part = 0; part < ctas; ++part) peak = fmaxf(peak, lse[part * share.rows]);
    float total = sink == -INFINITY ? 0.0f : Exp2((sink - peak) * kLog2E);
    float4 sums = {};
    const uint32_t own =
        SharedAddress(shared_.keys[0]) + SumsOffset<Traits>(share.first + r, column);
#pragma unroll 1
    for (int base = 0; base < ctas; base += kAtOnce) {
      float weight[kAtOnce];
      float4 values[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int part = base + i;
        const float part_lse = part < ctas ? lse[part * share.rows] : -INFINITY;
        weight[i] = 0.0f;
        values[i] = {};
        if (part_lse == -INFINITY) continue;
        weight[i] = Exp2((part_lse - peak) * kLog2E);
        values[i] =
            LoadPeer(PeerAddress(own + shared_.parts.stages[part] * Traits::kTileBytes, part));
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        total += weight[i];
        sums.x = fmaf(weight[i], values[i].x, sums.x);
        sums.y = fmaf(weight[i], values[i].y, sums.y);
        sums.z = fmaf(weight[i], values[i].z, sums.z);
        sums.w = fmaf(weight[i], values[i].w, sums.w);
      }
    }
    const float factor = total == 0.0f ? 0.0f : __fdividef(1.0f, total);
    const int64_t token = int64_t{item.query_start} + place.token;
    Write(item, token, place.head, column,
          {sums.x * factor, sums.y * factor, sums.z * factor, sums.w * factor});
    if (column == 0) {
      WriteLse(item, token, place.head, total == 0.0f ? -INFINITY : peak + __logf(total));
    }
  }

  __device__ void WriteLse(const PrefillItem& item, int64_t token, int32_t head, float lse) const {
    const kvt_prefill_params& p = plan_.params;
    const int64_t at = token * p.q_heads + head;
    if (plan_.writes_partials) {
      plan_.partial_lse[int64_t{item.split} * p.query_tokens * p.q_heads + at] = lse;
    } else if (p.lse != nullptr) {
      p.lse[at] = lse;
    }
  }

  __device__ void Write(const PrefillItem& item, int64_t token, int32_t head, int column,
                        const float4& v) const {
    const kvt_prefill_params& p = plan_.params;
    const bool bf16 = WritesBf16<Traits>(plan_);
    if (plan_.writes_partials) {
      const int64_t row = (item.split * int64_t{p.query_tokens} + token) * p.q_heads + head;
      *reinterpret_cast<float4*>(plan_.partial_output + row * Traits::kHeadDim + column) = v;
      return;
    }
    auto* const to = static_cast<uint16_t*>(p.output) + token * p.output_token_stride +
                     head * p.output_head_stride + column;
    *reinterpret_cast<uint2*>(to) = make_uint2(PackPair(v.x, v.y, bf16), PackPair(v.z, v.w, bf16));
  }

  const PrefillPlan& plan_;
  const ShortShared<Traits>& shared_;
  int thread_;
};

}  // namespace kvtier::kernels
