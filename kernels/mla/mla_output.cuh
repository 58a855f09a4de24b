// SPDX-License-Identifier: Apache-2.0
// Where an MLA segment's result goes: to the output, or to a part of it that is merged later.
#pragma once

#include <cstdint>

#include "kernels/decode/decode_schedule.cuh"
#include "kernels/hopper/math.cuh"
#include "kernels/hopper/wgmma.cuh"
#include "kernels/mla/mla.h"

namespace kvtier::kernels {

template <typename Output>
class MlaOutput {
 public:
  __device__ MlaOutput(const MlaArguments& arguments, const Segment& segment, int head_tile)
      : arguments_(arguments), segment_(segment), first_head_(head_tile * kMlaTileHeads) {}

  [[nodiscard]] __device__ int Rows() const {
    return min(kMlaTileHeads, arguments_.q_heads - first_head_);
  }

  // Writes the LSE of the segment at hand.
  __device__ void WriteOwnLse(int row, float lse) const {
    if (row >= Rows()) return;
    if (segment_.parts > 1) {
      __stcg(arguments_.part_lse + PartRow(segment_.own_slot, row), lse);
    } else {
      WriteLse(row, lse);
    }
  }

  // A thread's share (wgmma.cuh) of 256 columns from `column` on of rows `row` and `row` + 8.
  __device__ __forceinline__ void WriteHalf(int row, int column,
                                            const float (&sums)[kMlaHalfDim / 2]) const {
    const int own_column = column + 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (row + 8 * r >= Rows()) continue;
      if (segment_.parts > 1) {
        float* const to = arguments_.parts +
                          PartRow(segment_.own_slot, row + 8 * r) * KVT_MLA_LATENT_DIM + own_column;
#pragma unroll
        for (int j = 0; j < kMlaHalfDim / 8; ++j) {
          __stcg(reinterpret_cast<float2*>(to + 8 * j),
                 make_float2(sums[4 * j + 2 * r], sums[4 * j + 2 * r + 1]));
        }
      } else {
        uint16_t* const to = WholeRow(row + 8 * r) + own_column;
#pragma unroll
        for (int j = 0; j < kMlaHalfDim / 8; ++j) {
          *reinterpret_cast<uint32_t*>(to + 8 * j) =
              Pair(sums[4 * j + 2 * r], sums[4 * j + 2 * r + 1]);
        }
      }
    }
  }

  // The segment's pair, as merge_together.cuh reads it.
  [[nodiscard]] __device__ float Lse(int row, int part) const {
    return __ldcg(arguments_.part_lse + PartRow(SlotOf(part), row));
  }
  [[nodiscard]] __device__ const float* Values(int row, int part) const {
    return arguments_.parts + PartRow(SlotOf(part), row) * KVT_MLA_LATENT_DIM;
  }
  __device__ void Write(int row, int column, const float (&sums)[4]) const {
    *reinterpret_cast<uint2*>(WholeRow(row) + column) =
        make_uint2(Pair(sums[0], sums[1]), Pair(sums[2], sums[3]));
  }
  __device__ void WriteLse(int row, float lse) const {
    if (arguments_.lse == nullptr) return;
    arguments_.lse[int64_t{segment_.sequence} * arguments_.q_heads + first_head_ + row] = lse;
  }

 private:
  static __device__ uint32_t Pair(float low, float high) {
    return PackPair(low, high, wgmma::kIsBf16<Output>);
  }

  // Slots as decode_schedule.cuh numbers them.
  __device__ int SlotOf(int part) const {
    return segment_.first_slot + max(0, (part - 1) * segment_.slot_step + 1);
  }

  __device__ int64_t PartRow(int slot, int row) const {
    return int64_t{slot} * arguments_.q_heads + first_head_ + row;
  }

  __device__ uint16_t* WholeRow(int row) const {
    return static_cast<uint16_t*>(arguments_.output) +
           segment_.sequence * arguments_.output_sequence_stride +
           (first_head_ + row) * arguments_.output_head_stride;
  }

  const MlaArguments& arguments_;
  const Segment& segment_;
  int first_head_;
};

}  // namespace kvtier::kernels
