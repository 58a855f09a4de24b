// SPDX-License-Identifier: Apache-2.0
// Merges partial attention results by their log-sum-exp. A thread owns four elements of a row and
// has those of 8 or 16 parts in flight at once; the weights are recomputed by each thread, which
// costs nothing beside the bytes.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "kernels/blocks/merge_lse.h"
#include "kernels/common/arithmetic.h"
#include "kernels/common/refusal.h"
#include "kernels/hopper/launch.cuh"
#include "kernels/hopper/math.cuh"
#include "kvtier/block_ops.h"

namespace kvtier::kernels {
namespace {

constexpr int kThreads = 128;
constexpr int kCtasPerProcessor = 8;
constexpr int kElements = 4;
constexpr int kFewParts = 8;
constexpr int kManyParts = 16;
// Fewer threads than this cannot fill a device; then what counts is how long one takes.
constexpr int64_t kFewThreads = 64 * 1024;

struct MergePlan {
  kvt_merge_lse_params params;
  FastDivide chunks_per_row;
  FastDivide heads;
  uint32_t threads;
  const int32_t* token_limit;
};

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

__device__ __forceinline__ void Widen(const float4& raw, float (&to)[kElements], const float*) {
  to[0] = raw.x, to[1] = raw.y, to[2] = raw.z, to[3] = raw.w;
}
__device__ __forceinline__ void Widen(const uint2& raw, float (&to)[kElements],
                                      const __nv_bfloat16*) {
  const float2 low = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(raw.x));
  const float2 high = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(raw.y));
  to[0] = low.x, to[1] = low.y, to[2] = high.x, to[3] = high.y;
}
__device__ __forceinline__ void Widen(const uint2& raw, float (&to)[kElements], const __half*) {
  const float2 low = __half22float2(reinterpret_cast<const __half2&>(raw.x));
  const float2 high = __half22float2(reinterpret_cast<const __half2&>(raw.y));
  to[0] = low.x, to[1] = low.y, to[2] = high.x, to[3] = high.y;
}

__device__ __forceinline__ void Store(void* output, int64_t at, kvt_dtype dtype,
                                      const float (&v)[kElements]) {
  if (dtype == KVT_FP32) {
    __stcg(reinterpret_cast<float4*>(static_cast<float*>(output) + at),
           make_float4(v[0], v[1], v[2], v[3]));
    return;
  }
  const bool bf16 = dtype == KVT_BF16;
  __stcg(reinterpret_cast<uint2*>(static_cast<uint16_t*>(output) + at),
         make_uint2(PackPair(v[0], v[1], bf16), PackPair(v[2], v[3], bf16)));
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
    for (int i = 0; i < kPartsAtOnce; ++i) maximum = fmaxf(maximum, lse[i]);
    return maximum;
  }

  // A part without weight adds nothing, whatever it holds.
  __device__ __forceinline__ void AddTo(float maximum, float (&sum)[kElements],
                                        float& weights) const {
#pragma unroll
    for (int i = 0; i < kPartsAtOnce; ++i) {
      const float weight = Weight(lse[i], maximum);
      if (weight == 0.0f) continue;
      float held[kElements];
      Widen(raw[i], held, static_cast<const T*>(nullptr));
      weights += weight;
#pragma unroll
      for (int j = 0; j < kElements; ++j) sum[j] = fmaf(weight, held[j], sum[j]);
    }
  }
};

template <typename T, int kPartsAtOnce>
__global__ void __launch_bounds__(kThreads, kPartsAtOnce == kFewParts ? kCtasPerProcessor : 1)
    MergeLseKernel(const __grid_constant__ MergePlan plan) {
  const kvt_merge_lse_params& p = plan.params;
  const uint32_t thread = blockIdx.x * kThreads + threadIdx.x;
  if (thread >= plan.threads) return;
  uint32_t chunk, head;
  const uint32_t row = plan.chunks_per_row.Divide(thread, chunk);
  const uint32_t token = plan.heads.Divide(row, head);
  const T* values =
      static_cast<const T*>(p.partials) + int64_t{row} * p.head_dim + int64_t{chunk} * kElements;
  WaitOnDependentGrids();
  const int32_t limit = plan.token_limit != nullptr ? *plan.token_limit : p.tokens;
  HeldParts<T, kPartsAtOnce> held;
  held.Load(p, values, row, 0);
  float maximum = held.Maximum();
#pragma unroll 8
  for (int part = kPartsAtOnce; part < p.parts; ++part) {
    maximum = fmaxf(maximum, p.partial_lse[part * p.lse_part_stride + row]);
  }
  float sum[kElements] = {};
  float weights = 0.0f;
  if (maximum != -INFINITY) {
    held.AddTo(maximum, sum, weights);
    for (int first = kPartsAtOnce; first < p.parts; first += kPartsAtOnce) {
      held.Load(p, values, row, first);
      held.AddTo(maximum, sum, weights);
    }
  }
  // Only now, so that nothing waits for the limit.
  if (static_cast<int32_t>(token) >= limit) return;
  const float inverse = weights > 0.0f ? 1.0f / weights : 0.0f;
#pragma unroll
  for (int i = 0; i < kElements; ++i) sum[i] *= inverse;
  Store(p.output,
        token * p.output_token_stride + head * p.output_head_stride + int64_t{chunk} * kElements,
        p.output_dtype, sum);
  if (p.lse != nullptr && chunk == 0) {
    p.lse[row] = isinf(maximum) ? maximum : maximum + logf(weights);
  }
}

bool IsFloat(kvt_dtype dtype) {
  return dtype == KVT_FP32 || dtype == KVT_BF16 || dtype == KVT_FP16;
}

kvt_kernel_status Check(const kvt_merge_lse_params& p) {
  const auto valid = CheckRules(
      {{p.partials != nullptr && IsAligned16(p.partials),
        "partials must be given, aligned to 16 bytes"},
       {p.partial_lse != nullptr, "partial_lse must be given"},
       {p.output != nullptr && IsAligned16(p.output), "output must be given, aligned to 16 bytes"},
       {p.parts > 0 && p.heads > 0, "parts and heads must be above 0"},
       {p.tokens >= 0, "tokens must not be negative"},
       {p.head_dim > 0 && p.head_dim % 8 == 0, "head_dim must be a multiple of 8, above 0"},
       {(p.part_stride | p.output_token_stride | p.output_head_stride) % 8 == 0,
        "strides must be multiples of 8 elements"}});
  if (valid != KVT_KERNEL_OK) return valid;
  return CheckTypes(
      {{IsFloat(p.partial_dtype), "partial_dtype", p.partial_dtype, "fp32, bf16 and fp16"},
       {IsFloat(p.output_dtype), "output_dtype", p.output_dtype, "fp32, bf16 and fp16"}});
}

}  // namespace

kvt_kernel_status LaunchMergeLse(const kvt_merge_lse_params& params, const int32_t* token_limit,
                                 cudaStream_t stream) {
  if (const auto status = Check(params); status != KVT_KERNEL_OK) return status;
  const int64_t threads = int64_t{params.tokens} * params.heads * (params.head_dim / kElements);
  if (threads == 0) return KVT_KERNEL_OK;
  Device device;
  if (const auto status = CheckDevice(&device); status != KVT_KERNEL_OK) return status;
  const auto counted =
      CheckBuilt({{threads < INT32_MAX, "tokens * heads * head_dim / 4", threads, "below 2^31"}});
  if (counted != KVT_KERNEL_OK) return counted;
  const MergePlan plan{params, FastDivide(params.head_dim / kElements), FastDivide(params.heads),
                       static_cast<uint32_t>(threads), token_limit};
  const auto grid = static_cast<unsigned>((threads + kThreads - 1) / kThreads);
  const bool few = threads < kFewThreads && params.parts > kFewParts;
  const auto kernel = params.partial_dtype == KVT_BF16   ? MergeLseKernel<__nv_bfloat16, kFewParts>
                      : params.partial_dtype == KVT_FP16 ? MergeLseKernel<__half, kFewParts>
                      : few                              ? MergeLseKernel<float, kManyParts>
                                                         : MergeLseKernel<float, kFewParts>;
  // As the attention kernels before and after it: a multiprocessor stands still while it divides
  // its memory into cache and shared memory anew.
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                           cudaSharedmemCarveoutMaxShared);
  if (error == cudaSuccess) error = LaunchOverlapped(kernel, grid, kThreads, 0, stream, plan);
  return error == cudaSuccess ? KVT_KERNEL_OK : KVT_KERNEL_LAUNCH_FAILED;
}

}  // namespace kvtier::kernels

extern "C" kvt_kernel_status kvt_merge_lse(const kvt_merge_lse_params* params, void* stream) {
  const auto given = kvtier::kernels::CheckRules({{params != nullptr, "params must be given"}});
  if (given != KVT_KERNEL_OK) return given;
  return kvtier::kernels::LaunchMergeLse(*params, nullptr, static_cast<cudaStream_t>(stream));
}
