// SPDX-License-Identifier: Apache-2.0
// From the warps' sums to the output, or to a part of it where blocks share a pair.
#pragma once

#include "kernels/decode/head_group.cuh"

namespace kvtier::kernels {

// Shared memory of a block beside its rings.
template <typename Traits>
struct MergeScratch {
  DecodePartStats warps[kDecodeWarps][kDecodeMaxGroup];
  float factors[kDecodeMaxGroup];  // what each head's sums are multiplied with when written
  int is_last;
};

// exp2(peak - largest), 0 for a part without tokens.
__device__ inline float PartWeight(float peak, float largest) {
  return peak == -INFINITY ? 0.0F : Exp2(peak - largest);
}

// The numbers that turn a head's sums into its output.
struct HeadResult {
  float factor;
  float lse;
};

template <typename Traits>
__device__ HeadResult FinishHead(const DecodeArguments& arguments, int kv_head, int head,
                                 DecodePartStats stats) {
  const kvt_decode_params& params = arguments.params;
  float peak = stats.peak;
  float sum = stats.sum;
  if (params.sinks != nullptr) {
    const float sink = params.sinks[kv_head * arguments.group + head] * kLog2E;
    peak = fmaxf(stats.peak, sink);
    sum = stats.sum * PartWeight(stats.peak, peak) + PartWeight(sink, peak);
  }
  if (!(sum > 0)) {
    // No tokens, or NaN among them, which must show.
    return {sum == 0 ? 0.0F : sum, sum == 0 ? -INFINITY : sum};
  }
  float factor = PartWeight(stats.peak, peak) / sum;
  if constexpr (Traits::kFp8Cache) {
    const kvt_scales& scales = params.kv.value_scales;
    if (!arguments.per_token_scales && scales.values != nullptr) {
      factor *= scales.values[kv_head * scales.head_stride];
    }
  }
  return {factor, (peak + log2f(sum)) * kLn2};
}

__device__ inline uint16_t OutputBits(const kvt_decode_params& params, float value) {
  return params.query_dtype == KVT_BF16 ? __bfloat16_as_ushort(__float2bfloat16_rn(value))
                                        : __half_as_ushort(__float2half_rn(value));
}

// Where a head's row of output begins; its elements have 1 << output_shift bytes.
__device__ inline char* OutputRow(const DecodeArguments& arguments, const Segment& segment,
                                  int head) {
  const kvt_decode_params& params = arguments.params;
  const int64_t element = segment.sequence * params.output_sequence_stride +
                          (segment.head * arguments.group + head) * params.output_head_stride;
  return static_cast<char*>(params.output) + (element << arguments.output_shift);
}

__device__ inline bool WritesFp32(const DecodeArguments& arguments) {
  return arguments.output_shift == 2;
}

__device__ inline void WriteLse(const DecodeArguments& arguments, const Segment& segment, int head,
                                float lse) {
  const kvt_decode_params& params = arguments.params;
  if (params.lse == nullptr) return;
  const int64_t row = int64_t{segment.sequence} * params.q_heads;
  params.lse[row + segment.head * arguments.group + head] = lse;
}

// Writes one column of one head: the output if the block has the pair to itself, else its part.
template <typename Traits>
__device__ void WriteColumn(const DecodeArguments& arguments, const Segment& segment, int head,
                            int column, float value) {
  if (segment.parts == 1) {
    char* const row = OutputRow(arguments, segment, head);
    if (WritesFp32(arguments)) {
      reinterpret_cast<float*>(row)[column] = value;
    } else {
      reinterpret_cast<uint16_t*>(row)[column] = OutputBits(arguments.params, value);
    }
  } else {
    const int64_t row = int64_t{segment.own_slot} * arguments.group + head;
    __stcg(&arguments.workspace.parts[row * Traits::kHeadDim + column], value);
  }
}

// A head's statistics over the block: writes the values of which each head has one, and returns the
// factor of its sums.
template <typename Traits>
__device__ float WriteHead(const DecodeArguments& arguments, const Segment& segment, int head,
                           DecodePartStats stats) {
  if (segment.parts == 1) {
    const HeadResult result = FinishHead<Traits>(arguments, segment.head, head, stats);
    WriteLse(arguments, segment, head, result.lse);
    return result.factor;
  }
  const int64_t row = int64_t{segment.own_slot} * arguments.group + head;
  __stcg(reinterpret_cast<float2*>(&arguments.workspace.stats[row]),
         make_float2(stats.peak, stats.sum));
  return 1.0F;
}

// Adds up the warps' statistics. Ends with the factors written but not yet visible to all.
template <typename Traits>
__device__ void MergeStats(const DecodeArguments& arguments, const Segment& segment,
                           const HeadGroup<Traits>& group, MergeScratch<Traits>* scratch) {
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < Traits::kHeadTiles; ++n) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      if (lane < 4) {
        scratch->warps[warp][n * 8 + 2 * lane + c] = {group.peak(n, c), group.sum(n, c)};
      }
    }
  }
  __syncthreads();
  if (threadIdx.x >= arguments.group) return;
  DecodePartStats total = {-INFINITY, 0};
#pragma unroll
  for (int w = 0; w < kDecodeWarps; ++w) {
    total.peak = fmaxf(total.peak, scratch->warps[w][lane].peak);
  }
#pragma unroll
  for (int w = 0; w < kDecodeWarps; ++w) {
    const DecodePartStats part = scratch->warps[w][lane];
    total.sum += part.sum * PartWeight(part.peak, total.peak);
  }
  scratch->factors[lane] = WriteHead<Traits>(arguments, segment, lane, total);
}

// This warp's share of the block's sums of heads [first, first + kMergeHeads) of tile n, as
// [column][head], to `sums`.
template <typename Traits>
__device__ void ShareSums(const DecodeArguments& arguments, const HeadGroup<Traits>& group,
                          const MergeScratch<Traits>& scratch, int n, int first, float* sums) {
  const int t = threadIdx.x % 4;
  if (2 * t < first || 2 * t >= first + Traits::kMergeHeads) return;
  if (n * 8 + 2 * t >= arguments.group) return;
  float weight[2];
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    float largest = -INFINITY;
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) {
      largest = fmaxf(largest, scratch.warps[w][n * 8 + 2 * t + c].peak);
    }
    weight[c] = PartWeight(group.peak(n, c), largest);
  }
#pragma unroll
  for (int tile = 0; tile < HeadGroup<Traits>::kSumTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int column = HeadGroup<Traits>::SumsRow(tile, half);
      *reinterpret_cast<float2*>(&sums[column * Traits::kMergeHeads + 2 * t - first]) =
          make_float2(group.value_sum(tile, n, half, 0) * weight[0],
                      group.value_sum(tile, n, half, 1) * weight[1]);
    }
  }
}

// Adds up the warps' shares of heads [first_head, first_head + kMergeHeads) and writes them.
template <typename Traits>
__device__ void WriteSums(const DecodeArguments& arguments, const Segment& segment, int first_head,
                          const MergeScratch<Traits>& scratch, const float* sums) {
  constexpr int kHeads = Traits::kMergeHeads;
#pragma unroll
  for (int column = threadIdx.x; column < Traits::kHeadDim; column += kDecodeThreads) {
#pragma unroll 1
    for (int i = 0; i < kHeads && first_head + i < arguments.group; i += 4) {
      float total[4] = {};
#pragma unroll
      for (int w = 0; w < kDecodeWarps; ++w) {
        const float4 share =
            *reinterpret_cast<const float4*>(&sums[(w * Traits::kHeadDim + column) * kHeads + i]);
        total[0] += share.x;
        total[1] += share.y;
        total[2] += share.z;
        total[3] += share.w;
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int head = first_head + i + k;
        if (head >= arguments.group) break;
        WriteColumn<Traits>(arguments, segment, head, column, total[k] * scratch.factors[head]);
      }
    }
  }
}

// Adds up the block's warps for a segment and writes the result. All threads of the block call;
// `sums` is kMergeBytes of shared memory.
template <typename Traits>
__device__ void WriteSegment(const DecodeArguments& arguments, const Segment& segment,
                             const HeadGroup<Traits>& group, MergeScratch<Traits>* scratch,
                             float* sums) {
  constexpr int kHeads = Traits::kMergeHeads;
  float* const warp_sums = sums + (threadIdx.x / 32) * Traits::kHeadDim * kHeads;
  MergeStats(arguments, segment, group, scratch);
#pragma unroll
  for (int n = 0; n < Traits::kHeadTiles; ++n) {
#pragma unroll 1
    for (int first = 0; first < 8 && n * 8 + first < arguments.group; first += kHeads) {
      if (n + first > 0) __syncthreads();  // the sums before have been read
      ShareSums(arguments, group, *scratch, n, first, warp_sums);
      __syncthreads();
      WriteSums(arguments, segment, n * 8 + first, *scratch, sums);
    }
  }
}

}  // namespace kvtier::kernels
