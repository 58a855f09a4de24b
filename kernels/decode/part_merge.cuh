// SPDX-License-Identifier: Apache-2.0
// Where blocks share a pair, the last of them to finish adds up the blocks' parts, in the order of
// tokens, in the same launch.
#pragma once

#include "kernels/decode/block_merge.cuh"
#include "kernels/hopper/launch.cuh"

namespace kvtier::kernels {

// Side by side, past L1, which may hold what an earlier launch wrote.
template <int kColumns>
__device__ void LoadColumns(const float* from, float (&columns)[kColumns]) {
  if constexpr (kColumns == 2) {
    const float2 pair = __ldcg(reinterpret_cast<const float2*>(from));
    columns[0] = pair.x;
    columns[1] = pair.y;
  } else {
#pragma unroll
    for (int c = 0; c < kColumns; c += 4) {
      const float4 four = __ldcg(reinterpret_cast<const float4*>(from + c));
      columns[c] = four.x;
      columns[c + 1] = four.y;
      columns[c + 2] = four.z;
      columns[c + 3] = four.w;
    }
  }
}

// A head's parts in the workspace.
struct HeadParts {
  const DecodePartStats* stats;  // of the pair's first part
  const float* sums;             // likewise, at this lane's columns
  int count;
  int slot_step;
  int group;
  int head_dim;

  // From the first part's row to that of part `part`.
  __device__ int Row(int part) const {
    return group * max(0, (min(part, count - 1) - 1) * slot_step + 1);
  }
};

// Loads the columns of the parts from `begin` on. Past the end the last part is read once more.
template <int kParts, int kColumns>
__device__ void LoadParts(const HeadParts& parts, int begin, float (&loaded)[kParts][kColumns]) {
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    LoadColumns(parts.sums + parts.Row(begin + i) * parts.head_dim, loaded[i]);
  }
}

// Adds loaded parts, the first of which has its weight in lane `first_lane`.
template <int kParts, int kColumns>
__device__ void AddParts(const float (&loaded)[kParts][kColumns], float weight, int first_lane,
                         float (&sums)[kColumns]) {
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const float part_weight = __shfl_sync(kFullWarp, weight, first_lane + i);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) sums[c] += part_weight * loaded[i][c];
  }
}

// Adds a head's parts, in order, 32 at a time (one for each lane's statistics); `sums` are this
// lane's columns. Returns the whole's statistics.
template <int kColumns>
__device__ DecodePartStats AddUpParts(const HeadParts& parts, float (&sums)[kColumns]) {
  constexpr int kAtOnce = kColumns > 4 ? 4 : 16;  // as many as registers allow, twice
  const int lane = threadIdx.x % 32;
  DecodePartStats total = {-INFINITY, 0};
  for (int base = 0; base < parts.count; base += 32) {
    float first[kAtOnce][kColumns];
    float second[kAtOnce][kColumns];
    const float2 pair =
        __ldcg(reinterpret_cast<const float2*>(&parts.stats[parts.Row(base + lane)]));
    LoadParts(parts, base, first);
    if (base + kAtOnce < parts.count) LoadParts(parts, base + kAtOnce, second);
    const DecodePartStats own =
        base + lane < parts.count ? DecodePartStats{pair.x, pair.y} : DecodePartStats{-INFINITY, 0};
    const float peak = fmaxf(total.peak, WarpMax(own.peak));
    const float shrink = PartWeight(total.peak, peak);
    const float weight = PartWeight(own.peak, peak);
    total = {peak, total.sum * shrink + WarpSum(own.sum * weight)};
#pragma unroll
    for (int c = 0; c < kColumns; ++c) sums[c] *= shrink;
#pragma unroll 1
    for (int i = 0; i < 32 && base + i < parts.count; i += 2 * kAtOnce) {
      if (i > 0) {
        LoadParts(parts, base + i, first);
        LoadParts(parts, base + i + kAtOnce, second);
      }
      AddParts(first, weight, i, sums);
      if (base + i + kAtOnce < parts.count) AddParts(second, weight, i + kAtOnce, sums);
    }
  }
  return total;
}

// Merges a head's parts and writes the output; one warp.
template <typename Traits>
__device__ void MergeHead(const DecodeArguments& arguments, const Segment& segment, int head) {
  constexpr int kColumns = Traits::kHeadDim / 32;  // of each lane, side by side
  const int lane = threadIdx.x % 32;
  const int64_t row = int64_t{segment.first_slot} * arguments.group + head;
  const HeadParts parts = {
      .stats = arguments.workspace.stats + row,
      .sums = arguments.workspace.parts + row * Traits::kHeadDim + lane * kColumns,
      .count = segment.parts,
      .slot_step = segment.slot_step,
      .group = arguments.group,
      .head_dim = Traits::kHeadDim};
  float sums[kColumns] = {};
  const DecodePartStats total = AddUpParts(parts, sums);
  const HeadResult result = FinishHead<Traits>(arguments, segment.head, head, total);
  char* const row_begin = OutputRow(arguments, segment, head);
  if (WritesFp32(arguments)) {
    float* const output = reinterpret_cast<float*>(row_begin) + lane * kColumns;
#pragma unroll
    for (int c = 0; c < kColumns; c += 2) {
      *reinterpret_cast<float2*>(output + c) =
          make_float2(sums[c] * result.factor, sums[c + 1] * result.factor);
    }
  } else {
    uint16_t* const output = reinterpret_cast<uint16_t*>(row_begin) + lane * kColumns;
#pragma unroll
    for (int c = 0; c < kColumns; c += 2) {
      const uint32_t low = OutputBits(arguments.params, sums[c] * result.factor);
      const uint32_t high = OutputBits(arguments.params, sums[c + 1] * result.factor);
      *reinterpret_cast<uint32_t*>(output + c) = low | (high << 16);
    }
  }
  if (lane == 0) WriteLse(arguments, segment, head, result.lse);
}

// After WriteSegment of a part of a shared pair: if it is the pair's last, merges. All threads of
// the block call.
template <typename Traits>
__device__ void ArriveAndMerge(const DecodeArguments& arguments, const Segment& segment,
                               MergeScratch<Traits>* scratch) {
  __syncthreads();
  if (threadIdx.x == 0) {
    int32_t* const arrivals =
        &arguments.workspace
             .arrivals[segment.sequence * arguments.params.kv.kv_heads + segment.head];
    // Releases all that the block wrote before its last barrier, and acquires the others' writes.
    scratch->is_last = AddAcquireRelease(arrivals, 1) == segment.parts - 1;
    // The next launch finds it as this one did.
    if (scratch->is_last) *arrivals = 0;
  }
  __syncthreads();
  if (!scratch->is_last) return;
  for (int head = threadIdx.x / 32; head < arguments.group; head += kDecodeWarps) {
    MergeHead<Traits>(arguments, segment, head);
  }
}

}  // namespace kvtier::kernels
