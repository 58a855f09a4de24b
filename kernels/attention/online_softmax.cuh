// SPDX-License-Identifier: Apache-2.0
// The running softmax over a row's keys, tile after tile, of the 64 rows of a warpgroup. A thread
// holds two rows' share of the scores (score_tile.cuh); the four threads of a quad share a row.
//
// Both kinds keep exponentials relative to a maximum that moves only when a score exceeds it by
// more than a slack: then earlier sums hardly ever need rescaling. Probabilities may exceed 1 by
// the power of two that is the slack, which 16-bit operands bear.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/hopper/math.cuh"

namespace kvtier::kernels {

constexpr float kSoftmaxSlack = 4.0f;  // of scores as base-2 logarithms

// The largest of a thread's scores in each of its two rows. Eight chains of maxima, so that no
// instruction waits for the one before.
template <int kScores>
__device__ __forceinline__ void RowMaxima(const float (&scores)[kScores], float (&maximum)[2]) {
  float chains[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) chains[i] = scores[i];
#pragma unroll
  for (int i = 8; i < kScores; ++i) chains[i % 8] = fmaxf(chains[i % 8], scores[i]);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    maximum[r] =
        fmaxf(fmaxf(chains[2 * r], chains[2 * r + 1]), fmaxf(chains[2 * r + 4], chains[2 * r + 5]));
  }
}

// The softmax of a warpgroup that sees all keys of its rows.
template <int kScores>
class RunningSoftmax {
 public:
  // `scale` takes scores to base-2 logarithms.
  __device__ explicit RunningSoftmax(float scale) : scale_(scale) {}

  // Whether any of this thread's new scores is so far above its row's maximum that it must be
  // raised.
  __device__ __forceinline__ bool ExceedsMax(const float (&scores)[kScores]) const {
    float maximum[2];
    RowMaxima(scores, maximum);
    return maximum[0] > limit_[0] || maximum[1] > limit_[1];
  }

  // Takes in the maxima of new scores; `correction` is what earlier sums must be multiplied with. A
  // maximum that grows a little stays as it was, so that there is hardly ever anything to multiply.
  __device__ __forceinline__ void UpdateMax(const float (&scores)[kScores],
                                            float (&correction)[2]) {
    float own[2];
    RowMaxima(scores, own);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float maximum = QuadMax(own[r]);
      correction[r] = 1.0f;
      if (maximum > limit_[r]) {
        // Before the first key there is nothing to multiply, and no maximum either.
        correction[r] = limit_[r] == -INFINITY ? 0.0f : Exp2(offset_[r] - maximum * scale_);
        limit_[r] = maximum + kSoftmaxSlack / scale_;
        offset_[r] = maximum * scale_;
        sum_[r] *= correction[r];
      }
    }
  }

  // Replaces the scores by probabilities relative to the maxima.
  __device__ __forceinline__ void Exponentiate(float (&scores)[kScores]) {
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const int r = i / 2 % 2;
      scores[i] = Exp2(fmaf(scores[i], scale_, -offset_[r]));
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kScores; i += 4) sum += scores[i + 2 * r] + scores[i + 2 * r + 1];
      sum_[r] += sum;
    }
  }

  // Call once after the last update: adds the weight of a sink (-infinity: none), and returns the
  // factor that divides the sums of values, and the log-sum-exp.
  __device__ __forceinline__ void Finish(int r, float sink, float& factor, float& lse) {
    const float sum = QuadSum(sum_[r]);
    if (limit_[r] == -INFINITY) {
      // No key, or NaN alone, which is no maximum but makes the sum NaN and must show.
      factor = 0.0f;
      lse = sink + sum;
      return;
    }
    const float total = sum + Exp2(sink * kLog2E - offset_[r]);
    factor = __fdividef(1.0f, total);
    lse = offset_[r] * kLn2 + __logf(total);
  }

 private:
  float scale_;
  float limit_[2] = {-INFINITY, -INFINITY};
  float sum_[2] = {};
  float offset_[2] = {};  // maxima as base-2 logarithms; 0 as long as no key was seen
};

// The softmax of rows whose keys two warpgroups share (MLA): the maximum goes from one to the other
// with the weights that are relative to it, and each adds up its own weights.
template <int kScores>
class MlaSoftmax {
 public:
  // `scale` takes scores to base-2 logarithms.
  __device__ explicit MlaSoftmax(float scale) : scale_(scale) {}

  // The row_max that new scores ask for. One that would grow a little stays as it is, so that there
  // is hardly ever anything to rescale.
  __device__ __forceinline__ void NewRowMax(const float (&scores)[kScores],
                                            float (&row_max)[2]) const {
    float maxima[2];
    RowMaxima(scores, maxima);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float maximum = QuadMax(maxima[r]);
      row_max[r] = (maximum - row_max_[r]) * scale_ > kSoftmaxSlack ? maximum : row_max_[r];
    }
  }

  // Takes new row_max; `factors` is what earlier sums must be multiplied with.
  __device__ __forceinline__ void SetRowMax(const float (&row_max)[2], float (&factors)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      factors[r] = row_max[r] == row_max_[r] ? 1.0f : Exp2((row_max_[r] - row_max[r]) * scale_);
      row_max_[r] = row_max[r];
      sums_[r] *= factors[r];
    }
  }

  // Replaces scores by weights.
  __device__ __forceinline__ void Exponentiate(float (&scores)[kScores]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float offset = row_max_[r] == -INFINITY ? 0.0f : row_max_[r] * scale_;
      float sum = 0.0f;
#pragma unroll
      for (int i = 2 * r; i < kScores; i += 4) {
        scores[i] = Exp2(fmaf(scores[i], scale_, -offset));
        scores[i + 1] = Exp2(fmaf(scores[i + 1], scale_, -offset));
        sum += scores[i] + scores[i + 1];
      }
      sums_[r] += sum;
    }
  }

  // The sum of all that this warpgroup has added up.
  [[nodiscard]] __device__ __forceinline__ float Sum(int r) const { return QuadSum(sums_[r]); }

  // From the sum of both warpgroups: by what values must be divided, as a factor, and the
  // log-sum-exp.
  __device__ __forceinline__ void Finish(int r, float total, float& factor, float& lse) const {
    const bool any = row_max_[r] != -INFINITY;
    factor = any ? __fdividef(1.0f, total) : 0.0f;
    // Without any the total is 0, or NaN, which is no maximum and must show.
    lse = any ? row_max_[r] * scale_ * kLn2 + __logf(total) : total - INFINITY;
  }

 private:
  float scale_;
  float row_max_[2] = {-INFINITY, -INFINITY};
  float sums_[2] = {};
};

}  // namespace kvtier::kernels
