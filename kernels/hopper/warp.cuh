// SPDX-License-Identifier: Apache-2.0
// Sums and the like over the 32 lanes of a warp.
#pragma once

#include <cstdint>

namespace kvtier::kernels {

constexpr uint32_t kFullWarp = 0xFFFFFFFFU;

__device__ inline int InclusiveWarpSum(int value) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int below = __shfl_up_sync(kFullWarp, value, step);
    if (lane >= step) value += below;
  }
  return value;
}

__device__ inline float WarpMax(float value) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    value = fmaxf(value, __shfl_xor_sync(kFullWarp, value, step));
  }
  return value;
}

__device__ inline float WarpSum(float value) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) value += __shfl_xor_sync(kFullWarp, value, step);
  return value;
}

}  // namespace kvtier::kernels
