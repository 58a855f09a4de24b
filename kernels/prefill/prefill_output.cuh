// SPDX-License-Identifier: Apache-2.0
// The output of consumer warps: rows with their log-sum-exps, or of a part of it that is merged
// later.
#pragma once

#include <cstdint>

#include "kernels/attention/online_softmax.cuh"
#include "kernels/attention/score_tile.cuh"
#include "kernels/hopper/math.cuh"
#include "kernels/prefill/prefill_shared.cuh"
#include "kernels/prefill/prefill_tile.cuh"

namespace kvtier::kernels {

// A warp's 16 rows of a tile, spread over its threads as wgmma.cuh says.
template <typename Traits>
class OutputWriter {
 public:
  static constexpr int kOutputs = Traits::kHeadDim / 2;

  __device__ OutputWriter(const PrefillPlan& plan, int first_row, int lane)
      : plan_(plan), first_row_(first_row), lane_(lane) {}

  // `stage`: kOutputStageBytes of shared memory for this warp alone.
  template <int kScores>
  __device__ __forceinline__ void Finish(const PrefillItem& item, float value_scale,
                                         RunningSoftmax<kScores>& softmax,
                                         float (&output)[kOutputs], uint32_t stage) {
    const kvt_prefill_params& p = plan_.params;
    const int32_t rows = item.query_length * plan_.group - item.first_row;
    float factor[2], lse[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sink = -INFINITY;
      if (p.sinks != nullptr && item.split == 0 && RowOf(r) < rows) {
        sink = p.sinks[PositionOf(plan_, item, RowOf(r)).head];
      }
      softmax.Finish(r, sink, factor[r], lse[r]);
      factor[r] *= value_scale;
    }
    StoreLse(item, rows, lse);
    RescaleRows(output, factor);
    if (plan_.writes_partials) {
      StorePartial(item, rows, output);
    } else {
      StoreOutput(item, rows, output, stage);
    }
  }

 private:
  // The tile's row that is the thread's r-th of two.
  __device__ __forceinline__ int RowOf(int r) const { return first_row_ + lane_ / 4 + 8 * r; }

  __device__ __forceinline__ void StoreLse(const PrefillItem& item, int32_t rows,
                                           const float (&lse)[2]) const {
    const kvt_prefill_params& p = plan_.params;
    const bool is_part = plan_.writes_partials;
    if (!is_part && p.lse == nullptr) return;
    float* to =
        is_part ? plan_.partial_lse + int64_t{item.split} * p.query_tokens * p.q_heads : p.lse;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (lane_ % 4 != 0 || RowOf(r) >= rows) continue;
      const RowPosition place = PositionOf(plan_, item, RowOf(r));
      to[(int64_t{item.query_start} + place.token) * p.q_heads + place.head] = lse[r];
    }
  }

  __device__ __forceinline__ void StorePartial(const PrefillItem& item, int32_t rows,
                                               const float (&output)[kOutputs]) const {
    const kvt_prefill_params& p = plan_.params;
    // The LSE of a part without keys tells that nothing is there, unless a sink gave it one.
    if (ExistingKeys<Traits>(item, item.first_tile) == 0 && p.sinks == nullptr) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (RowOf(r) >= rows) continue;
      const RowPosition place = PositionOf(plan_, item, RowOf(r));
      const int64_t token = item.split * int64_t{p.query_tokens} + item.query_start + place.token;
      float* to = plan_.partial_output + (token * p.q_heads + place.head) * Traits::kHeadDim +
                  2 * (lane_ % 4);
#pragma unroll
      for (int j = 0; j < kOutputs / 4; ++j) {
        *reinterpret_cast<float2*>(to + 8 * j) =
            make_float2(output[4 * j + 2 * r], output[4 * j + 2 * r + 1]);
      }
    }
  }

  // Where a row of this warp's 16 goes, or null behind the sequence's last one.
  __device__ uint16_t* RowAddress(const PrefillItem& item, int32_t rows, int32_t row) const {
    const kvt_prefill_params& p = plan_.params;
    const int32_t tile_row = first_row_ + row;
    if (tile_row >= rows) return nullptr;
    const RowPosition place = PositionOf(plan_, item, tile_row);
    return static_cast<uint16_t*>(p.output) +
           (int64_t{item.query_start} + place.token) * p.output_token_stride +
           place.head * p.output_head_stride;
  }

  // Through shared memory, 64 columns at a time, so that rows leave in whole 128-byte lines.
  __device__ __forceinline__ void StoreOutput(const PrefillItem& item, int32_t rows,
                                              const float (&output)[kOutputs],
                                              uint32_t stage) const {
    const bool bf16 = WritesBf16<Traits>(plan_);
    const auto address = reinterpret_cast<uint64_t>(RowAddress(item, rows, lane_ % 16));
    // Matrix m of four: rows from 8 * (m % 2) on, and of two columns of matrices the one m / 2.
    const uint32_t matrix_row = stage + lane_ % 16 * 128;
#pragma unroll
    for (int part = 0; part < Traits::kHeadDim / 64; ++part) {
      __syncwarp();
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        const float* d = output + 32 * part + 4 * j;
        StoreMatrices(matrix_row + (((j + lane_ / 16) ^ (lane_ % 8)) * 16),
                      {PackPair(d[0], d[1], bf16), PackPair(d[2], d[3], bf16),
                       PackPair(d[4], d[5], bf16), PackPair(d[6], d[7], bf16)});
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = i * 4 + lane_ / 8, chunk = lane_ % 8;
        auto* to = reinterpret_cast<uint16_t*>(__shfl_sync(0xffffffff, address, row));
        if (to == nullptr) continue;
        __stcg(reinterpret_cast<uint4*>(to + part * 64 + chunk * 8),
               LoadShared(stage + row * 128 + ((chunk ^ (row % 8)) * 16)));
      }
    }
  }

  const PrefillPlan& plan_;
  int first_row_;
  int lane_;
};

}  // namespace kvtier::kernels
