// SPDX-License-Identifier: Apache-2.0
// The running softmax of 64 rows whose tokens two warpgroups share: what weights are relative to,
// the peak, goes from one to the other, and each adds up its own weights.
#pragma once

#include <cmath>

#include "kernels/prefill/prefill_softmax.cuh"

namespace kvtier::kernels {

// Of two rows (wgmma.cuh), which the four threads of a quad share.
template <int kScores>
class MlaSoftmax {
 public:
  // `scale` takes scores to base-2 logarithms.
  __device__ explicit MlaSoftmax(float scale) : scale_(scale) {}

  // The peaks that new scores ask for. One that would grow a little stays as it is, so that there
  // is hardly ever anything to rescale.
  __device__ __forceinline__ void PeaksFor(const float (&scores)[kScores],
                                           float (&peaks)[2]) const {
    float maxima[2];
    RowMaxima(scores, maxima);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float maximum = QuadMax(maxima[r]);
      peaks[r] = (maximum - peaks_[r]) * scale_ > kSlack ? maximum : peaks_[r];
    }
  }

  // Takes new peaks; `factors` is what earlier sums must be multiplied with.
  __device__ __forceinline__ void MoveTo(const float (&peaks)[2], float (&factors)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      factors[r] = peaks[r] == peaks_[r] ? 1.0f : Exp2((peaks_[r] - peaks[r]) * scale_);
      peaks_[r] = peaks[r];
      sums_[r] *= factors[r];
    }
  }

  // Replaces scores by weights.
  __device__ __forceinline__ void Exponentiate(float (&scores)[kScores]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float offset = peaks_[r] == -INFINITY ? 0.0f : peaks_[r] * scale_;
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

  // Of all that this warpgroup has added up.
  [[nodiscard]] __device__ __forceinline__ float Sum(int r) const { return QuadSum(sums_[r]); }

  // From the sum of both warpgroups: by what values must be divided, as a factor, and the
  // log-sum-exp.
  __device__ __forceinline__ void Finish(int r, float total, float& factor, float& lse) const {
    const bool any = peaks_[r] != -INFINITY;
    factor = any ? __fdividef(1.0f, total) : 0.0f;
    lse = any ? peaks_[r] * scale_ * kLn2 + __logf(total) : -INFINITY;
  }

 private:
  // Weights may exceed 1 by this power of two.
  static constexpr float kSlack = 4.0f;

  float scale_;
  float peaks_[2] = {-INFINITY, -INFINITY};
  float sums_[2] = {};
};

}  // namespace kvtier::kernels
