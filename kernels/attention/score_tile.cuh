// SPDX-License-Identifier: Apache-2.0
// A warpgroup's tile of scores, and its tile of output, as the threads hold them in registers: 64
// rows of queries by as many keys, or columns of values. Shared by both prefill kernels and MLA.
//
// Index 4 * j + 2 * r + e of a thread's sums is column 8 * j + 2 * (lane % 4) + e of its row r,
// where r is 0 or 1: rows 16 * warp + lane / 4 and 8 below (wgmma.cuh). The four lanes of a quad
// share a row.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/hopper/math.cuh"
#include "kernels/hopper/wgmma.cuh"

namespace kvtier::kernels {

// Lifts probabilities times scales of values out of the range where fp16 loses digits; the output
// is divided by it.
constexpr float kValueScaleLift = 64.0f;

template <int kCount>
__device__ __forceinline__ void Clear(float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) sums[i] = 0.0f;
}

// Multiplies each row by its own factor.
template <int kCount>
__device__ __forceinline__ void RescaleRows(float (&sums)[kCount], const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    sums[i] *= factor[0];
    sums[i + 1] *= factor[0];
    sums[i + 2] *= factor[1];
    sums[i + 3] *= factor[1];
  }
}

// Whether any row of the warp has a factor to be multiplied with. The whole warp calls.
__device__ __forceinline__ bool NeedsRescale(const float (&factor)[2]) {
  return __any_sync(kFullWarp, factor[0] != 1.0f || factor[1] != 1.0f);
}

// Multiplies column c by scales[c] * lift; `scales` lies in shared memory.
template <int kScores>
__device__ __forceinline__ void ScaleColumns(float (&scores)[kScores], const float* scales,
                                             int lane, float lift = 1.0f) {
#pragma unroll
  for (int j = 0; j < kScores / 4; ++j) {
    const float2 pair = *reinterpret_cast<const float2*>(scales + 8 * j + 2 * (lane % 4));
    scores[4 * j] *= pair.x * lift;
    scores[4 * j + 1] *= pair.y * lift;
    scores[4 * j + 2] *= pair.x * lift;
    scores[4 * j + 3] *= pair.y * lift;
  }
}

// tanh(score * factor): the cap itself is multiplied with the softmax's scale.
template <int kScores>
__device__ __forceinline__ void ApplySoftCap(float (&scores)[kScores], float factor) {
#pragma unroll
  for (int i = 0; i < kScores; ++i) scores[i] = Tanh(scores[i] * factor);
}

// The visible range of each of a thread's two rows: the keys [first, last].
struct VisibleKeys {
  int32_t first[2];
  int32_t last[2];
};

// Keys outside of the visible range get no weight. `first_key`: the position of column 0.
template <int kScores>
__device__ __forceinline__ void MaskInvisible(float (&scores)[kScores], int32_t first_key, int lane,
                                              const VisibleKeys& visible) {
  const int32_t base = first_key + 2 * (lane % 4);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int32_t last = visible.last[r] - base, first = visible.first[r] - base;
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int column = 8 * j + e;
        if (column > last || column < first) scores[4 * j + 2 * r + e] = -INFINITY;
      }
    }
  }
}

// Probabilities as the register operand of the second multiplication: scores of 16 columns are
// already where the operand's 16 x 16 fragment wants them.
template <typename Element, int kScores>
__device__ __forceinline__ void PackProbabilities(const float (&scores)[kScores],
                                                  uint32_t (&probabilities)[kScores / 2]) {
#pragma unroll
  for (int i = 0; i < kScores / 2; ++i) {
    probabilities[i] = PackPair(scores[2 * i], scores[2 * i + 1], wgmma::kIsBf16<Element>);
  }
}

}  // namespace kvtier::kernels
