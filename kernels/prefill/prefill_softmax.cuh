// SPDX-License-Identifier: Apache-2.0
// The running softmax of a warpgroup's 64 rows. A thread holds two of them (wgmma.cuh says which
// columns); the four threads of a quad share them.
#pragma once

#include <cmath>
#include <cstdint>

namespace kvtier::kernels {

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float QuadMax(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}

__device__ __forceinline__ float QuadSum(float x) {
  x += __shfl_xor_sync(0xffffffff, x, 1);
  return x + __shfl_xor_sync(0xffffffff, x, 2);
}

// tanh to within rounding; the hardware's own is too coarse to be multiplied by a cap.
__device__ __forceinline__ float Tanh(float x) {
  return 1.0f - __fdividef(2.0f, Exp2(2.0f * kLog2E * x) + 1.0f);
}

// Sums of a thread's two rows, each with its own factor.
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

// Of a thread's parts of its two rows. Eight chains, so that none waits for itself.
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

template <int kScores>
class RunningSoftmax {
 public:
  // `scale` takes scores to base-2 logarithms.
  __device__ explicit RunningSoftmax(float scale) : scale_(scale) {}

  // Whether any of this thread's new scores is so far above its row's maximum that it must be
  // raised.
  __device__ __forceinline__ bool Exceeds(const float (&scores)[kScores]) const {
    float maximum[2];
    RowMaxima(scores, maximum);
    return maximum[0] > limit_[0] || maximum[1] > limit_[1];
  }

  // Takes in the maxima of new scores; `correction` is what earlier sums must be multiplied with. A
  // maximum that grows a little stays as it was, so that there is hardly ever anything to multiply.
  __device__ __forceinline__ void Raise(const float (&scores)[kScores], float (&correction)[2]) {
    float own[2];
    RowMaxima(scores, own);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float maximum = QuadMax(own[r]);
      correction[r] = 1.0f;
      if (maximum > limit_[r]) {
        // Before the first key there is nothing to multiply, and no maximum either.
        correction[r] = limit_[r] == -INFINITY ? 0.0f : Exp2(offset_[r] - maximum * scale_);
        limit_[r] = maximum + kSlack / scale_;
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

  // Once after the last update: adds the weight of a sink (-infinity: none), and returns by what
  // the sums of values must be divided, as a factor, and the log-sum-exp.
  __device__ __forceinline__ void Finish(int r, float sink, float& factor, float& lse) {
    const float sum = QuadSum(sum_[r]);
    if (limit_[r] == -INFINITY) {
      factor = 0.0f;
      lse = sink;
      return;
    }
    const float total = sum + Exp2(sink * kLog2E - offset_[r]);
    factor = __fdividef(1.0f, total);
    lse = offset_[r] * kLn2 + __logf(total);
  }

 private:
  // Probabilities may exceed 1 by this power of two.
  static constexpr float kSlack = 4.0f;

  float scale_;
  float limit_[2] = {-INFINITY, -INFINITY};
  float sum_[2] = {};
  float offset_[2] = {};  // maxima as base-2 logarithms; 0 as long as no key was seen
};

}  // namespace kvtier::kernels
