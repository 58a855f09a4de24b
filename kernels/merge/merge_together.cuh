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
  int32_t claim;
};

constexpr int64_t kMergePatienceCycles = 60'000;  // 30 to 40 us
constexpr int kMergeFewParts = 8;                 // several rows at a time
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

// Past L1, which may hold what an earlier launch wrote.
__device__ inline void LoadColumns(const float* from, float (&columns)[4]) {
  const float4 four = __ldcg(reinterpret_cast<const float4*>(from));
  columns[0] = four.x;
  columns[1] = four.y;
  columns[2] = four.z;
  columns[3] = four.w;
}

__device__ inline void LoadColumns(const float* from, float (&columns)[2]) {
  const float2 two = __ldcg(reinterpret_cast<const float2*>(from));
  columns[0] = two.x;
  columns[1] = two.y;
}

// Adds up kColumns columns a lane of kRows rows, which begin at row `row` and column `column`, and
// gives them to rows.Write; one warp. There may be more than kParts parts only if kRows is 1. Of a
// part without keys (LSE -infinity) and of rows from `count` on nothing is read.
//   rows.Lse(row, part)           its log-sum-exp
//   rows.Values(row, part)        its head_dim sums, already divided
//   rows.Write(row, column, sums) the result's columns of this lane
//   rows.WriteLse(row, lse)
template <int kRows, int kColumns, typename Rows>
__device__ void MergeRows(const Rows& rows, int parts, int row, int count, int column) {
  constexpr int kParts = 32 / kRows;  // at a time, and lanes of a row
  const int lane = threadIdx.x % 32;
  const int own_row = row + lane / kParts;
  const int lane_column = column + lane * kColumns;
  float sums[kRows][kColumns] = {};
  float peak = -INFINITY;  // of this lane's row, likewise the total
  float total = 0;
  for (int base = 0; base < parts; base += kParts) {
    const int own_part = base + lane % kParts;
    const bool exists = own_row < count && own_part < parts;
    const float lse = exists ? rows.Lse(own_row, own_part) : -INFINITY;
    const bool seen = lse != -INFINITY;
    float loaded[32][kColumns];
#pragma unroll
    for (int i = 0; i < 32; ++i) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) loaded[i][c] = 0;
      if (!__shfl_sync(kFullWarp, seen, i)) continue;
      LoadColumns(rows.Values(row + i / kParts, base + i % kParts) + lane_column, loaded[i]);
    }
    float largest = fmaxf(peak, lse);
#pragma unroll
    for (int step = 1; step < kParts; step *= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, step));
    }
    const float shrink = peak == -INFINITY ? 0.0F : exp2f((peak - largest) * kMergeLog2E);
    const float weight = seen ? exp2f((lse - largest) * kMergeLog2E) : 0.0F;
    float added = weight;
#pragma unroll
    for (int step = 1; step < kParts; step *= 2) {
      added += __shfl_xor_sync(kFullWarp, added, step);
    }
    peak = largest;
    total = total * shrink + added;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const float part_weight = __shfl_sync(kFullWarp, weight, i);
      const float row_shrink = __shfl_sync(kFullWarp, shrink, i);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        float& sum = sums[i / kParts][c];
        sum = part_weight * loaded[i][c] + (i % kParts == 0 ? sum * row_shrink : sum);
      }
    }
  }
  const float factor = total == 0.0F ? 0.0F : 1.0F / total;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float row_factor = __shfl_sync(kFullWarp, factor, r * kParts);
    if (row + r >= count) continue;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) sums[r][c] *= row_factor;
    rows.Write(row + r, lane_column, sums[r]);
  }
  if (column == 0 && lane % kParts == 0 && own_row < count) {
    rows.WriteLse(own_row, total == 0.0F ? -INFINITY : peak + log2f(total) * kMergeLn2);
  }
}

// Waits until all parts have arrived or patience ends; whether they have.
__device__ inline bool AwaitParts(const MergeState& state, int parts) {
  const int64_t begin = clock64();
  do {
    if (ReadInOrder(&state.arrived) >= parts) return true;
    __nanosleep(20);
  } while (clock64() - begin < kMergePatienceCycles);
  return false;
}

// Merges the rows [first, end), kWarps warps sharing them; `warp` is the caller's number.
template <int kRows, int kHeadDim, int kWarps, typename Rows>
__device__ void MergeRun(const Rows& rows, int parts, int first, int end, int warp) {
  constexpr int kSpan = kHeadDim < 128 ? kHeadDim : 128;  // columns of one warp
  constexpr int kSpans = kHeadDim / kSpan;
  const int items = (end - first + kRows - 1) / kRows * kSpans;
  for (int item = warp; item < items; item += kWarps) {
    MergeRows<kRows, kSpan / 32>(rows, parts, first + item / kSpans * kRows, end,
                                 item % kSpans * kSpan);
  }
}

// After this block has written its part of `count` rows. kThreads threads call together, numbered
// by `thread`; they meet at named barrier kBarrier. `may_wait`: this block has nothing else to do.
//
// Blocks claim runs of rows by counting `claims` up, until they claim one that does not exist; so
// many such claims as there are parts, or departures of blocks that do not merge instead, and
// nobody will look at the state again.
template <int kHeadDim, int kThreads, int kBarrier, typename Rows>
__device__ void MergeTogether(MergeState* state, MergeTurn* turn, const Rows& rows, int parts,
                              int count, int thread, bool may_wait) {
  constexpr int kWarps = kThreads / 32;
  constexpr int kFewestRows = (kWarps * 128 + kHeadDim - 1) / kHeadDim;  // that occupy all warps
  const int run = max(kFewestRows, (count + parts - 1) / parts);
  const int runs = (count + run - 1) / run;
  const auto meet = [] {
    asm volatile("bar.sync %0, %1;" ::"n"(kBarrier), "n"(kThreads) : "memory");
  };
  // Of the block's first thread: takes the next run, or leaves for good.
  const auto claim = [&] {
    const int32_t before = atomicAdd(&state->claims, 1);
    const int32_t taken = before % kMergeDeparture;
    if (taken >= runs && taken - runs + before / kMergeDeparture == parts - 1) *state = {};
    return taken;
  };
  meet();
  if (thread == 0) {
    // Releases what all threads wrote before they met, and acquires the other blocks' parts.
    bool complete = AddInOrder(&state->arrived, 1) == parts - 1;
    if (!complete && may_wait) complete = AwaitParts(*state, parts);
    turn->claim = runs;
    if (complete) {
      turn->claim = claim();
    } else {
      const int32_t before = atomicAdd(&state->claims, kMergeDeparture);
      const int32_t failed = max(0, before % kMergeDeparture - runs);
      if (failed + before / kMergeDeparture == parts - 1) *state = {};
    }
  }
  for (;;) {
    meet();
    const int first = turn->claim * run;
    if (first >= count) return;
    int32_t next = 0;
    if (thread == 0) next = claim();  // under way while this run is merged
    const int end = min(count, first + run);
    if (parts <= kMergeFewParts) {
      MergeRun<32 / kMergeFewParts, kHeadDim, kWarps>(rows, parts, first, end, thread / 32);
    } else {
      MergeRun<1, kHeadDim, kWarps>(rows, parts, first, end, thread / 32);
    }
    meet();
    if (thread == 0) turn->claim = next;
  }
}

}  // namespace kvtier::kernels
