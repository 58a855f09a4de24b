// SPDX-License-Identifier: Apache-2.0
// The parts of a set of rows, merged in the launch that made them by the blocks that made them: the
// last block to arrive merges, and those that have nothing else to do wait a while to help.
//
// No block relies on another one being resident: one that is not scheduled, or gives up waiting,
// is not needed. Whichever block merges, a row's parts are added in their order, so that equal
// inputs give equal bits.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/hopper/launch.cuh"
#include "kernels/hopper/math.cuh"
#include "kernels/mla/mla.h"

namespace kvtier::kernels {

// In shared memory.
struct MergeClaim {
  int32_t claim;
};

constexpr int kMergeSpan = 128;  // columns of one warp

// The findings of the warps that share a row's parts; shared memory that is free while they merge.
template <int kWarps>
struct MergeScratch {
  float4 sums[kWarps][kMergeSpan / 4];
  float peak[kWarps];
  float total[kWarps];
};

constexpr int64_t kMergeWaitCycles = 60'000;  // 30 to 40 us
constexpr int kMergeFewParts = 8;             // several rows at a time:
constexpr int kMergeRows = 32 / kMergeFewParts;
constexpr int kMergeManyParts = 20;  // that a warp's registers hold
// Past L1, which may hold what an earlier launch wrote.
__device__ inline void LoadColumns(const float* from, float (&columns)[4]) {
  const float4 four = __ldcg(reinterpret_cast<const float4*>(from));
  columns[0] = four.x;
  columns[1] = four.y;
  columns[2] = four.z;
  columns[3] = four.w;
}

// exp(lse - peak), 0 for a part without keys. NaN shows, though it is no peak.
__device__ inline float MergeWeight(float lse, float peak) {
  return lse == -INFINITY ? 0.0F : exp2f((lse - peak) * kLog2E);
}

// Merges rows with few parts, kMergeRows from `row` on, kMergeSpan columns from `column` on, and
// gives them to rows.Write; one warp. Rows from `count` on are not written, a part without keys
// (LSE -infinity) has no weight, whatever its values are.
//   rows.Lse(row, part)           its log-sum-exp
//   rows.Values(row, part)        its head_dim sums, already divided
//   rows.Write(row, column, sums) the result's four columns of this lane
//   rows.WriteLse(row, lse)
template <typename Rows>
__device__ void MergeFew(const Rows& rows, int parts, int row, int count, int column) {
  constexpr int kParts = kMergeFewParts;
  const int lane = threadIdx.x % 32;
  const int lane_column = column + 4 * lane;
  // A lane looks after one part of one row.
  const int own_row = min(row + lane / kParts, count - 1);
  const bool exists = lane % kParts < parts;
  const float lse = exists ? rows.Lse(own_row, lane % kParts) : -INFINITY;
  float loaded[32][4];
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int part = min(i % kParts, parts - 1);
    LoadColumns(rows.Values(min(row + i / kParts, count - 1), part) + lane_column, loaded[i]);
  }
  float peak = lse;
#pragma unroll
  for (int step = 1; step < kParts; step *= 2) {
    peak = fmaxf(peak, __shfl_xor_sync(kFullWarp, peak, step));
  }
  const float weight = MergeWeight(lse, peak);
  float total = weight;
#pragma unroll
  for (int step = 1; step < kParts; step *= 2) total += __shfl_xor_sync(kFullWarp, total, step);
  const float share = total == 0.0F ? 0.0F : weight / total;
#pragma unroll
  for (int r = 0; r < kMergeRows; ++r) {
    float sums[4] = {};
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const float part_share = __shfl_sync(kFullWarp, share, r * kParts + part);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float value = loaded[r * kParts + part][c];
        sums[c] = part_share == 0.0F ? sums[c] : fmaf(part_share, value, sums[c]);
      }
    }
    if (row + r < count) rows.Write(row + r, lane_column, sums);
  }
  if (column == 0 && lane % kParts == 0 && row + lane / kParts < count) {
    rows.WriteLse(own_row, total == 0.0F ? -INFINITY : peak + log2f(total) * kLn2);
  }
}

// Waits until all parts have arrived or patience ends; whether they have.
__device__ inline bool AwaitParts(const MergeState& state, int parts) {
  const int64_t begin = clock64();
  do {
    if (LoadAcquire(&state.arrived) >= parts) return true;
    __nanosleep(20);
  } while (clock64() - begin < kMergeWaitCycles);
  return false;
}

// Merges the rows [first, end), which have few parts; kWarps warps, of which the caller is `warp`.
template <int kHeadDim, int kWarps, typename Rows>
__device__ void MergeRun(const Rows& rows, int parts, int first, int end, int warp) {
  constexpr int kSpans = kHeadDim / kMergeSpan;
  const int items = (end - first + kMergeRows - 1) / kMergeRows * kSpans;
  for (int item = warp; item < items; item += kWarps) {
    MergeFew(rows, parts, first + item / kSpans * kMergeRows, end, item % kSpans * kMergeSpan);
  }
}

// A sum of parts, not yet divided: of this lane's four columns of a row.
struct MergeSum {
  float columns[4] = {};
  float peak = -INFINITY;
  float total = 0;

  __device__ void Add(float lse, float weight_at_peak, const float (&values)[4]) {
    const float largest = fmaxf(peak, lse);
    const float shrink = MergeWeight(peak, largest);
    const float weight = MergeWeight(lse, largest);
#pragma unroll
    for (int c = 0; c < 4; ++c) columns[c] = columns[c] * shrink + weight * values[c];
    total = total * shrink + weight * weight_at_peak;
    peak = largest;
  }
};

// Parts [begin, end) of a row, kBatch at a time; one warp. Values are read beside their weights,
// not after them; a short batch reads its last part again, which is cheaper than to ask.
template <int kBatch, typename Rows>
__device__ MergeSum AddParts(const Rows& rows, int row, int column, int begin, int end) {
  const int lane = threadIdx.x % 32;
  MergeSum sum;
  for (int base = begin; base < end; base += kBatch) {
    const bool exists = lane < kBatch && base + lane < end;
    const float lse = exists ? rows.Lse(row, base + lane) : -INFINITY;
    float loaded[kBatch][4];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int part = min(base + i, end - 1);
      LoadColumns(rows.Values(row, part) + column + 4 * lane, loaded[i]);
    }
    const float largest = fmaxf(sum.peak, WarpMax(lse));
    const float shrink = MergeWeight(sum.peak, largest);
    const float weight = MergeWeight(lse, largest);
    sum.peak = largest;
    sum.total = sum.total * shrink + WarpSum(weight);
#pragma unroll
    for (int c = 0; c < 4; ++c) sum.columns[c] *= shrink;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const float part_weight = __shfl_sync(kFullWarp, weight, i);
      if (part_weight == 0.0F) continue;  // whatever its values are
#pragma unroll
      for (int c = 0; c < 4; ++c) sum.columns[c] += part_weight * loaded[i][c];
    }
  }
  return sum;
}

template <typename Rows>
__device__ void WriteSum(const Rows& rows, int row, int column, const MergeSum& sum) {
  const int lane = threadIdx.x % 32;
  const float factor = sum.total == 0.0F ? 0.0F : 1.0F / sum.total;
  float divided[4];
#pragma unroll
  for (int c = 0; c < 4; ++c) divided[c] = sum.columns[c] * factor;
  rows.Write(row, column + 4 * lane, divided);
  if (column == 0 && lane == 0) {
    rows.WriteLse(row, sum.total == 0.0F ? -INFINITY : sum.peak + log2f(sum.total) * kLn2);
  }
}

// Merges the items [first, end), an item being kMergeSpan columns of a row, `share` warps (a power
// of two) to each. All kWarps warps call together; `meet` is their barrier.
template <int kHeadDim, int kWarps, typename Rows, typename Meet>
__device__ void MergeItems(const Rows& rows, int parts, int first, int end, int share, int warp,
                           MergeScratch<kWarps>* scratch, const Meet& meet) {
  constexpr int kSpans = kHeadDim / kMergeSpan;
  const int lane = threadIdx.x % 32;
  const int own_parts = (parts + share - 1) / share;
  for (int base = first; base < end; base += kWarps / share) {
    const int item = base + warp / share, rank = warp % share;
    const int row = item / kSpans, column = item % kSpans * kMergeSpan;
    MergeSum sum;
    const int own_begin = rank * own_parts, own_end = min(parts, own_begin + own_parts);
    if (item < end && own_parts <= kMergeFewParts / 2) {
      sum = AddParts<kMergeFewParts / 2>(rows, row, column, own_begin, own_end);
    } else if (item < end) {
      sum = AddParts<kMergeManyParts>(rows, row, column, own_begin, own_end);
    }
    if (share > 1) {
      scratch->sums[warp][lane] =
          make_float4(sum.columns[0], sum.columns[1], sum.columns[2], sum.columns[3]);
      if (lane == 0) {
        scratch->peak[warp] = sum.peak;
        scratch->total[warp] = sum.total;
      }
      meet();
      for (int other = 1; rank == 0 && other < share; ++other) {
        const float4 four = scratch->sums[warp + other][lane];
        const float columns[4] = {four.x, four.y, four.z, four.w};
        sum.Add(scratch->peak[warp + other], scratch->total[warp + other], columns);
      }
      meet();
    }
    if (rank == 0 && item < end) WriteSum(rows, row, column, sum);
  }
}

// After this block has written its part of `count` rows. kThreads threads call together, numbered
// by `thread`; they meet at named barrier kBarrier. `may_wait`: this block has nothing else to do.
//
// `scratch` is shared memory that has no other use meanwhile.
//
// Blocks claim runs of rows, or items, by counting `claims` up, until they claim one that does not
// exist; so many such claims as there are parts, or departures of blocks that do not merge instead,
// and no block will look at the state again.
template <int kHeadDim, int kThreads, int kBarrier, typename Rows>
__device__ void MergeCooperatively(MergeState* state, MergeClaim* turn,
                                   MergeScratch<kThreads / 32>* scratch, const Rows& rows,
                                   int parts, int count, int thread, bool may_wait) {
  constexpr int kWarps = kThreads / 32;
  // With few parts, rows are claimed, at least as many as occupy all warps; with many, items, which
  // several warps share if there are few for each block.
  const bool few = parts <= kMergeFewParts;
  constexpr int kFewestRows = kWarps * kMergeSpan / kHeadDim;
  const int all = few ? count : count * (kHeadDim / kMergeSpan);
  const int fair = (all + parts - 1) / parts;
  int share = 1;
  while (!few && share < kWarps && 2 * share * fair <= kWarps) share *= 2;
  const int at_once = kWarps / share;
  const int run = few ? max(kFewestRows, fair) : (fair + at_once - 1) / at_once * at_once;
  const int runs = (all + run - 1) / run;
  const auto meet = [] {
    asm volatile("bar.sync %0, %1;" ::"n"(kBarrier), "n"(kThreads) : "memory");
  };
  // Run by the block's first thread: takes the next run, or leaves for good.
  const auto claim = [&] {
    const int32_t before = atomicAdd(&state->claims, 1);
    const int32_t taken = before % kMergeDeparture;
    if (taken >= runs && taken - runs + before / kMergeDeparture == parts - 1) *state = {};
    return taken;
  };
  meet();
  if (thread == 0) {
    // Releases what all threads wrote before they met, and acquires the other blocks' parts.
    bool complete = AddAcquireRelease(&state->arrived, 1) == parts - 1;
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
    if (first >= all) return;
    int32_t next = 0;
    if (thread == 0) next = claim();  // under way while this run is merged
    const int end = min(all, first + run);
    if (few) {
      MergeRun<kHeadDim, kWarps>(rows, parts, first, end, thread / 32);
    } else {
      MergeItems<kHeadDim, kWarps>(rows, parts, first, end, share, thread / 32, scratch, meet);
    }
    meet();
    if (thread == 0) turn->claim = next;
  }
}

}  // namespace kvtier::kernels
