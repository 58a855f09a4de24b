// SPDX-License-Identifier: Apache-2.0
// Merges partial attention results by their log-sum-exp. A thread owns four elements of a row and
// has those of 8 or 16 parts in flight at once; the weights are recomputed by each thread, which
// costs nothing beside the bytes. Compiled once for each Family (KVT_FAMILY).
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "kernels/hopper/launch.cuh"
#include "kernels/hopper/math.cuh"
#include "kernels/merge/merge_lse.h"

namespace kvtier::kernels {
// Named: CMakeLists.txt says why.
inline namespace merge_lse {

constexpr int kThreads = 128;
constexpr int kCtasPerProcessor = 8;
constexpr int kFewParts = 8;
constexpr int kManyParts = 16;
// Fewer threads than this cannot fill a device; then what counts is how long one takes.
constexpr uint32_t kFewThreads = 64 * 1024;

// Four elements as they lie in memory.
template <typename T>
struct Raw {
  using Type = uint2;
};
template <>
struct Raw<float> {
  using Type = float4;
};

template <typename T>
__device__ __forceinline__ typename Raw<T>::Type LoadRaw(const T* from) {
  return __ldcs(reinterpret_cast<const typename Raw<T>::Type*>(from));
}

__device__ __forceinline__ void Widen(const float4& raw, float (&to)[kMergeElements],
                                      const float*) {
  to[0] = raw.x, to[1] = raw.y, to[2] = raw.z, to[3] = raw.w;
}
__device__ __forceinline__ void Widen(const uint2& raw, float (&to)[kMergeElements],
                                      const __nv_bfloat16*) {
  const float2 low = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(raw.x));
  const float2 high = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(raw.y));
  to[0] = low.x, to[1] = low.y, to[2] = high.x, to[3] = high.y;
}
__device__ __forceinline__ void Widen(const uint2& raw, float (&to)[kMergeElements],
                                      const __half*) {
  const float2 low = __half22float2(reinterpret_cast<const __half2&>(raw.x));
  const float2 high = __half22float2(reinterpret_cast<const __half2&>(raw.y));
  to[0] = low.x, to[1] = low.y, to[2] = high.x, to[3] = high.y;
}

__device__ __forceinline__ void Store(void* output, int64_t at, kvt_dtype dtype,
                                      const float (&v)[kMergeElements]) {
  if (dtype == KVT_FP32) {
    __stcg(reinterpret_cast<float4*>(static_cast<float*>(output) + at),
           make_float4(v[0], v[1], v[2], v[3]));
    return;
  }
  const bool bf16 = dtype == KVT_BF16;
  __stcg(reinterpret_cast<uint2*>(static_cast<uint16_t*>(output) + at),
         make_uint2(PackPair(v[0], v[1], bf16), PackPair(v[2], v[3], bf16)));
}

// NaN if either is: it must not look like no key at all.
__device__ __forceinline__ float MaxOrNan(float a, float b) {
  float larger = 0;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}

// exp(lse - maximum), where equal infinities are equals.
__device__ __forceinline__ float Weight(float lse, float maximum) {
  if (lse == maximum) return 1.0f;
  return lse == -INFINITY ? 0.0f : __expf(lse - maximum);
}

// One thread's elements of some parts, all of whose loads are in flight at once.
template <typename T, int kPartsAtOnce>
struct HeldParts {
  typename Raw<T>::Type raw[kPartsAtOnce];
  float lse[kPartsAtOnce];

  __device__ __forceinline__ void Load(const kvt_merge_lse_params& p, const T* values, uint32_t row,
                                       int first) {
#pragma unroll
    for (int i = 0; i < kPartsAtOnce; ++i) {
      lse[i] = -INFINITY;
      if (first + i >= p.parts) continue;
      lse[i] = p.partial_lse[(first + i) * p.lse_part_stride + row];
      raw[i] = LoadRaw(values + (first + i) * p.part_stride);
    }
  }

  __device__ __forceinline__ float Maximum() const {
    float maximum = -INFINITY;
#pragma unroll
    for (int i = 0; i < kPartsAtOnce; ++i) maximum = MaxOrNan(maximum, lse[i]);
    return maximum;
  }

  // A part without weight adds nothing, whatever it holds.
  __device__ __forceinline__ void AddTo(float maximum, float (&sum)[kMergeElements],
                                        float& weights) const {
#pragma unroll
    for (int i = 0; i < kPartsAtOnce; ++i) {
      const float weight = Weight(lse[i], maximum);
      if (weight == 0.0f) continue;
      float held[kMergeElements];
      Widen(raw[i], held, static_cast<const T*>(nullptr));
      weights += weight;
#pragma unroll
      for (int j = 0; j < kMergeElements; ++j) sum[j] = fmaf(weight, held[j], sum[j]);
    }
  }
};

template <Family kFamily, typename T, int kPartsAtOnce>
__global__ void __launch_bounds__(kThreads, kPartsAtOnce == kFewParts ? kCtasPerProcessor : 1)
    MergeLseKernel(const __grid_constant__ MergePlan plan) {
  const kvt_merge_lse_params& p = plan.params;
  const uint32_t thread = blockIdx.x * kThreads + threadIdx.x;
  if (thread >= plan.threads) return;
  uint32_t chunk, head;
  const uint32_t row = plan.chunks_per_row.Divide(thread, chunk);
  const uint32_t token = plan.heads.Divide(row, head);
  const T* values = static_cast<const T*>(p.partials) + int64_t{row} * p.head_dim +
                    int64_t{chunk} * kMergeElements;
  WaitOnDependentGrids<kFamily>();
  const int32_t first_token = plan.first_token != nullptr ? *plan.first_token : 0;
  const int32_t limit = plan.token_limit != nullptr ? *plan.token_limit : p.tokens;
  HeldParts<T, kPartsAtOnce> held;
  held.Load(p, values, row, 0);
  float maximum = held.Maximum();
#pragma unroll 8
  for (int part = kPartsAtOnce; part < p.parts; ++part) {
    maximum = MaxOrNan(maximum, p.partial_lse[part * p.lse_part_stride + row]);
  }
  float sum[kMergeElements] = {};
  float weights = 0.0f;
  if (maximum != -INFINITY) {
    held.AddTo(maximum, sum, weights);
    for (int first = kPartsAtOnce; first < p.parts; first += kPartsAtOnce) {
      held.Load(p, values, row, first);
      held.AddTo(maximum, sum, weights);
    }
  }
  // Only now, so that nothing waits for the limits.
  if (static_cast<int32_t>(token) < first_token || static_cast<int32_t>(token) >= limit) return;
  const float inverse = weights > 0.0f ? 1.0f / weights : 0.0f;
#pragma unroll
  for (int i = 0; i < kMergeElements; ++i) sum[i] *= inverse;
  Store(
      p.output,
      token * p.output_token_stride + head * p.output_head_stride + int64_t{chunk} * kMergeElements,
      p.output_dtype, sum);
  if (p.lse != nullptr && chunk == 0) {
    p.lse[row] = isinf(maximum) ? maximum : maximum + logf(weights);
  }
}

}  // namespace merge_lse

template <Family kFamily>
cudaError_t LaunchMerge(const MergePlan& plan, cudaStream_t stream) {
  const kvt_dtype dtype = plan.params.partial_dtype;
  const auto grid = static_cast<unsigned>((plan.threads + kThreads - 1) / kThreads);
  const bool few = plan.threads < kFewThreads && plan.params.parts > kFewParts;
  const auto kernel = dtype == KVT_BF16   ? MergeLseKernel<kFamily, __nv_bfloat16, kFewParts>
                      : dtype == KVT_FP16 ? MergeLseKernel<kFamily, __half, kFewParts>
                      : few               ? MergeLseKernel<kFamily, float, kManyParts>
                                          : MergeLseKernel<kFamily, float, kFewParts>;
  // As the attention kernels before and after it: a multiprocessor stands still while it divides
  // its memory into cache and shared memory anew.
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  if (error != cudaSuccess) return error;
  return LaunchOverlapped<kFamily>(kernel, grid, kThreads, 0, stream, plan);
}

template cudaError_t LaunchMerge<Family::KVT_FAMILY>(const MergePlan& plan, cudaStream_t stream);

}  // namespace kvtier::kernels
