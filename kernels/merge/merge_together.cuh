// The parts of a set of rows, merged in the launch that made them by the blocks that made them:
// the last to arrive merges, and those that have nothing else to do wait a while to help. Nobody
// relies on the others being there: a block that is not scheduled, or gives up waiting, is not
// missed. Whoever merges, a row's parts are added in their order, so that equal inputs give equal
// bits.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/decode/warp.cuh"
#include "kernels/merge/merge_state.h"

namespace kvtier::kernels {

// In shared memory.
struct MergeTurn {
  int32_t complete;  // whether all parts were seen
  int32_t claim;
};

constexpr int64_t kMergePatienceCycles = 60'000;  // 30 to 40 us
constexpr int kMergePartsAtOnce = 32;             // a lane's weight for each
constexpr float kMergeLog2E = 1.4426950408889634F;
constexpr float kMergeLn2 = 0.6931471805599453F;

__device__ inline int32_t AddInOrder(int32_t* global, int32_t value) {
  int32_t before = 0;
  asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(global), "r"(value)
               : "memory");
  return before;
}

__device__ inline int32_t ReadInOrder(const int32_t* global) {
  int32_t value = 0;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(global) : "memory");
  return value;
}

// What a row's parts come to: by what their weighted sum is multiplied, and the log-sum-exp.
struct MergedRow {
  float factor;
  float lse;
};

// Adds up kColumns columns of a row, which begin at `column`, and gives them to rows.Write. One
// warp. Of a part without keys (LSE -infinity) nothing is read.
//   rows.Lse(row, part)              its log-sum-exp
//   rows.Values(row, part)           its head_dim sums, already divided
//   rows.Write(row, column, sums, n) the result's columns of this lane
//   rows.WriteLse(row, lse)
template <int kColumns, typename Rows>
__device__ void MergeRow(const Rows& rows, int parts, int row, int column) {
  const int lane = threadIdx.x % 32;
  float largest = -INFINITY;
  for (int p = lane; p < parts; p += 32) largest = fmaxf(largest, rows.Lse(row, p));
  largest = WarpMax(largest);
  float sums[kColumns] = {};
  float total = 0;
  for (int base = 0; base < parts; base += kMergePartsAtOnce) {
    const float lse = base + lane < parts ? rows.Lse(row, base + lane) : -INFINITY;
    const float weight = lse == -INFINITY ? 0.0F : exp2f((lse - largest) * kMergeLog2E);
    float loaded[kMergePartsAtOnce][kColumns];
#pragma unroll
    for (int i = 0; i < kMergePartsAtOnce; ++i) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) loaded[i][c] = 0;
      if (__shfl_sync(kFullWarp, weight, i) == 0.0F) continue;
      const float* const from = rows.Values(row, base + i) + column + lane * kColumns;
      if constexpr (kColumns == 4) {
        const float4 four = __ldcg(reinterpret_cast<const float4*>(from));
        loaded[i][0] = four.x;
        loaded[i][1] = four.y;
        loaded[i][2] = four.z;
        loaded[i][3] = four.w;
      } else {
        const float2 two = __ldcg(reinterpret_cast<const float2*>(from));
        loaded[i][0] = two.x;
        loaded[i][1] = two.y;
      }
    }
#pragma unroll
    for (int i = 0; i < kMergePartsAtOnce; ++i) {
      const float part_weight = __shfl_sync(kFullWarp, weight, i);
      total += part_weight;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) sums[c] += part_weight * loaded[i][c];
    }
  }
  const float factor = total == 0.0F ? 0.0F : 1.0F / total;
#pragma unroll
  for (int c = 0; c < kColumns; ++c) sums[c] *= factor;
  rows.Write(row, column + lane * kColumns, sums);
  if (column == 0 && lane == 0) {
    rows.WriteLse(row, total == 0.0F ? -INFINITY : largest + log2f(total) * kMergeLn2);
  }
}

// Waits until all parts have arrived or patience ends; whether they have.
__device__ inline bool AwaitParts(const MergeState& state, int parts) {
  const int64_t begin = clock64();
  do {
    if (ReadInOrder(&state.arrived) >= parts) return true;
    __nanosleep(100);
  } while (clock64() - begin < kMergePatienceCycles);
  return false;
}

// After this block has written its part of `count` rows. kThreads threads call together, numbered
// by `thread`; they meet at named barrier kBarrier. `may_wait`: this block has nothing else to do.
template <int kHeadDim, int kThreads, int kBarrier, typename Rows>
__device__ void MergeTogether(MergeState* state, MergeTurn* turn, const Rows& rows, int parts,
                              int count, int thread, bool may_wait) {
  constexpr int kSpan = kHeadDim < 128 ? kHeadDim : 128;  // columns of one warp
  constexpr int kSpans = kHeadDim / kSpan;
  constexpr int kWarps = kThreads / 32;
  const auto meet = [] {
    asm volatile("bar.sync %0, %1;" ::"n"(kBarrier), "n"(kThreads) : "memory");
  };
  meet();
  if (thread == 0) {
    // Releases what all threads wrote before they met, and acquires the other blocks' parts.
    bool complete = AddInOrder(&state->arrived, 1) == parts - 1;
    if (!complete && may_wait) complete = AwaitParts(*state, parts);
    turn->complete = complete ? 1 : 0;
  }
  meet();
  if (turn->complete != 0) {
    const int run = max((kWarps + kSpans - 1) / kSpans, (count + parts - 1) / parts);
    for (;;) {
      if (thread == 0) turn->claim = atomicAdd(&state->claimed, 1);
      meet();
      const int first = turn->claim * run;
      if (first >= count) break;
      const int items = min(run, count - first) * kSpans;
      for (int item = thread / 32; item < items; item += kWarps) {
        MergeRow<kSpan / 32>(rows, parts, first + item / kSpans, item % kSpans * kSpan);
      }
      meet();
    }
  }
  meet();
  if (thread == 0 && AddInOrder(&state->departed, 1) == parts - 1) {
    *state = MergeState{};  // the next launch finds it as this one did
  }
}

}  // namespace kvtier::kernels
