// SPDX-License-Identifier: Apache-2.0
// What a thread of a consumer warpgroup holds, and small steps over it.
#pragma once

#include <cstdint>

#include "kernels/hopper/pipeline.cuh"
#include "kernels/hopper/warp.cuh"
#include "kernels/hopper/wgmma.cuh"
#include "kernels/mla/mla_arguments.h"

namespace kvtier::kernels {

constexpr int kMlaScores = kMlaTileTokens / 2;  // of a thread
constexpr int kMlaWords = kMlaTileTokens / 4;   // its weights in pairs
constexpr int kMlaOutputs = kMlaHalfDim / 2;

// From lane 0, so that the compiler knows it is the same for the whole warp; else it would keep one
// descriptor for each multiplication in registers, and move each where the instruction wants it.
// Only the lower half differs between matrices.
__device__ __forceinline__ uint64_t Uniform(uint64_t descriptor) {
  return (descriptor & 0xFFFFFFFF00000000U) |
         __shfl_sync(kFullWarp, static_cast<uint32_t>(descriptor), 0);
}

__device__ __forceinline__ void ArriveWarp(TransactionBarrier& barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier.Arrive();
}

__device__ __forceinline__ void Rescale(float (&output)[kMlaOutputs], const float (&factor)[2]) {
  if (!__any_sync(kFullWarp, factor[0] != 1.0f || factor[1] != 1.0f)) return;
#pragma unroll
  for (int i = 0; i < kMlaOutputs; i += 4) {
    output[i] *= factor[0];
    output[i + 1] *= factor[0];
    output[i + 2] *= factor[1];
    output[i + 3] *= factor[1];
  }
}

__device__ __forceinline__ void Clear(float (&output)[kMlaOutputs]) {
#pragma unroll
  for (int i = 0; i < kMlaOutputs; ++i) output[i] = 0.0f;
}

}  // namespace kvtier::kernels
