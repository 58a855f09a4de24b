// Rotary embedding, quantisation and paged write of a step's keys and values in one pass. A thread
// owns sixteen elements of two rows (a key and its value, or two query heads): the two chunks of
// eight that the rope turns against each other, so that nothing crosses threads but the maximum of
// a dynamically scaled row.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/blocks/fast_divide.h"
#include "kernels/blocks/overlapped_launch.cuh"
#include "kvtier/kv_write.h"

namespace kvtier::kernels {
namespace {

constexpr int kThreads = 64;
constexpr int kCtasPerProcessor = 17;  // all that registers allow
constexpr int kChunk = 8;              // elements of one 16-byte load
constexpr float kFp8Max = 448.0f;

struct WritePlan {
  kvt_kv_write_params params;
  FastDivide lanes_per_row;  // head_dim / 16, a power of two up to 16
  FastDivide units;          // per token: kv_heads (key and value), then pairs of query heads
  uint32_t threads;
  uint32_t first_blocks;  // that fit the device at once
};

template <typename T>
struct Pairs;
template <>
struct Pairs<__nv_bfloat16> {
  using Type = __nv_bfloat162;
  static __device__ float2 Widen(Type v) { return __bfloat1622float2(v); }
  static __device__ Type Narrow(float a, float b) { return __floats2bfloat162_rn(a, b); }
};
template <>
struct Pairs<__half> {
  using Type = __half2;
  static __device__ float2 Widen(Type v) { return __half22float2(v); }
  static __device__ Type Narrow(float a, float b) { return __floats2half2_rn(a, b); }
};

// Two chunks of a row, as loaded and as stored.
struct Held {
  uint4 chunk[2];
};

template <typename T>
__device__ __forceinline__ void Widen(const uint4& raw, float (&to)[kChunk]) {
  const uint32_t words[] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = Pairs<T>::Widen(reinterpret_cast<const typename Pairs<T>::Type&>(words[i]));
    to[2 * i] = pair.x;
    to[2 * i + 1] = pair.y;
  }
}

template <typename T>
__device__ __forceinline__ uint4 Narrow(const float (&v)[kChunk]) {
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const auto pair = Pairs<T>::Narrow(v[2 * i], v[2 * i + 1]);
    words[i] = reinterpret_cast<const uint32_t&>(pair);
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// Read-only, and issued where it is written: a wait for earlier launches may follow.
__device__ __forceinline__ float4 LoadPinned(const float* address) {
  float4 v;
  asm volatile("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(address));
  return v;
}

__device__ __forceinline__ void Load4x2(const float* row, uint32_t first, uint32_t second,
                                        float (&to)[kChunk]) {
  const float4 low = LoadPinned(row + first);
  const float4 high = LoadPinned(row + second);
  to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
  to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
}

// Turns (a, b) by the angle; the one place where the rotation's arithmetic is written.
__device__ __forceinline__ void Turn(float& a, float& b, float cosine, float sine) {
  const float turned = __fmaf_rn(a, cosine, -__fmul_rn(b, sine));
  b = __fmaf_rn(b, cosine, __fmul_rn(a, sine));
  a = turned;
}

// Which two chunks of a row the thread with this index owns, and the angles that turn them.
struct Angles {
  uint32_t chunk[2];
  bool turns;
  float cosine[kChunk];
  float sine[kChunk];
};

// Neighbouring threads own neighbouring chunks, so that a row is read in whole lines: thread l of a
// row's `lanes` has chunk l of the turning part's first half and chunk l of its second, and so on
// for the part that stays.
__device__ __forceinline__ Angles MakeAngles(const kvt_rope& rope, uint32_t token, uint32_t lane,
                                             uint32_t lanes) {
  const uint32_t turning = rope.style == KVT_ROPE_NONE ? 0 : rope.rotary_dim / (2 * kChunk);
  Angles angles;
  angles.turns = lane < turning;
  angles.chunk[0] = angles.turns ? lane : lane + turning;
  angles.chunk[1] = angles.turns ? lane + turning : lane + lanes;
  if (angles.turns) {
    // Pairs of the neox style span both chunks; those of the other lie within one.
    const bool halves = rope.style == KVT_ROPE_NEOX;
    const uint32_t first = halves ? lane * kChunk : angles.chunk[0] * kChunk / 2;
    const uint32_t second = halves ? first + kChunk / 2 : angles.chunk[1] * kChunk / 2;
    const float* row = rope.cos_sin + int64_t{rope.positions[token]} * rope.rotary_dim;
    Load4x2(row, first, second, angles.cosine);
    Load4x2(row + rope.rotary_dim / 2, first, second, angles.sine);
  }
  return angles;
}

template <typename T>
__device__ __forceinline__ Held Rotate(const Held& held, const Angles& angles, bool halves) {
  if (!angles.turns) return held;
  float v[2][kChunk];
  Widen<T>(held.chunk[0], v[0]);
  Widen<T>(held.chunk[1], v[1]);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    if (halves) {
      Turn(v[0][i], v[1][i], angles.cosine[i], angles.sine[i]);
    } else {
      Turn(v[i / 4][2 * (i % 4)], v[i / 4][2 * (i % 4) + 1], angles.cosine[i], angles.sine[i]);
    }
  }
  return {Narrow<T>(v[0]), Narrow<T>(v[1])};
}

// Volatile, so that a load stays ahead of the branch that may not want it.
__device__ __forceinline__ uint4 LoadEarly(const void* address) {
  uint4 v;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address));
  return v;
}

__device__ __forceinline__ int64_t LoadSlot(const int64_t* address) {
  int64_t slot;
  asm volatile("ld.volatile.global.s64 %0, [%1];" : "=l"(slot) : "l"(address));
  return slot;
}

template <typename T>
__device__ __forceinline__ Held LoadRow(const void* base, int64_t at, const Angles& angles) {
  const T* row = static_cast<const T*>(base) + at;
  return {LoadEarly(row + angles.chunk[0] * kChunk), LoadEarly(row + angles.chunk[1] * kChunk)};
}

template <typename T>
__device__ __forceinline__ void StoreRow(void* base, int64_t at, const Angles& angles,
                                         const Held& held) {
  T* row = static_cast<T*>(base) + at;
  *reinterpret_cast<uint4*>(row + angles.chunk[0] * kChunk) = held.chunk[0];
  *reinterpret_cast<uint4*>(row + angles.chunk[1] * kChunk) = held.chunk[1];
}

struct Slot {
  int64_t block;
  int64_t token;
};

template <typename T>
__device__ __forceinline__ float RowMaximum(const Held& held, uint32_t lanes) {
  float maximum = 0.0f;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    float v[kChunk];
    Widen<T>(held.chunk[c], v);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) maximum = fmaxf(maximum, fabsf(v[i]));
  }
  const uint32_t group = ((1u << lanes) - 1) << (threadIdx.x % 32 / lanes * lanes);
  for (uint32_t distance = lanes / 2; distance > 0; distance /= 2) {
    maximum = fmaxf(maximum, __shfl_xor_sync(group, maximum, distance));
  }
  return maximum;
}

// A scale that does not depend on the slot can be on its way before the slot is known.
__device__ __forceinline__ bool IsPerHead(const kvt_scales& scales) {
  return (scales.block_stride | scales.token_stride) == 0;
}

__device__ __forceinline__ float EarlyScale(const WritePlan& plan, const kvt_scales& scales,
                                            uint32_t head) {
  const bool known = scales.values != nullptr && IsPerHead(scales);
  return known && !plan.params.dynamic_scales ? scales.values[head * scales.head_stride] : 1.0f;
}

// The row's scale: given, or found and written by the row's first thread.
template <typename T>
__device__ __forceinline__ float RowScale(const WritePlan& plan, const kvt_scales& scales,
                                          const Slot& slot, uint32_t head, const Held& held,
                                          uint32_t lane, float early) {
  const int64_t at = slot.block * scales.block_stride + slot.token * scales.token_stride +
                     head * scales.head_stride;
  if (!plan.params.dynamic_scales) {
    return scales.values == nullptr || IsPerHead(scales) ? early : scales.values[at];
  }
  const float maximum = RowMaximum<T>(held, plan.lanes_per_row.divisor());
  const float scale = maximum > 0.0f ? __fdiv_rn(maximum, kFp8Max) : 1.0f;
  if (lane == 0) const_cast<float*>(scales.values)[at] = scale;
  return scale;
}

template <typename T>
__device__ __forceinline__ void StoreFp8(void* base, int64_t at, const Angles& angles,
                                         const Held& held, float scale) {
  const float inverse = __fdiv_rn(1.0f, scale);
  auto* row = static_cast<uint8_t*>(base) + at;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    float v[kChunk];
    Widen<T>(held.chunk[c], v);
    uint32_t words[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const auto quantised = [&](int j) -> uint32_t {
        return __nv_cvt_float2_to_fp8x2(
            make_float2(__fmul_rn(v[4 * i + j], inverse), __fmul_rn(v[4 * i + j + 1], inverse)),
            __NV_SATFINITE, __NV_E4M3);
      };
      words[i] = quantised(0) | quantised(2) << 16;
    }
    *reinterpret_cast<uint2*>(row + angles.chunk[c] * kChunk) = make_uint2(words[0], words[1]);
  }
}

template <typename T, bool kFp8>
__device__ __forceinline__ void WriteCache(const WritePlan& plan, bool is_key, const Slot& slot,
                                           uint32_t head, uint32_t lane, const Angles& angles,
                                           const Held& held, float early_scale) {
  const kvt_paged_kv& cache = plan.params.cache;
  void* base = is_key ? cache.key : cache.value;
  const int64_t at =
      slot.block * cache.block_stride + slot.token * cache.token_stride + head * cache.head_stride;
  if constexpr (kFp8) {
    const kvt_scales& scales = is_key ? cache.key_scales : cache.value_scales;
    StoreFp8<T>(base, at, angles, held,
                RowScale<T>(plan, scales, slot, head, held, lane, early_scale));
  } else {
    StoreRow<T>(base, at, angles, held);
  }
}

template <typename T>
__device__ void TurnQueries(const kvt_kv_write_params& p, uint32_t token, uint32_t head,
                            const Angles& angles) {
  const bool halves = p.rope.style == KVT_ROPE_NEOX;
  const int64_t from = token * p.query_token_stride, to = token * p.query_output_token_stride;
  const bool has_second = head + 1 < static_cast<uint32_t>(p.query_heads);
  const Held first = LoadRow<T>(p.query, from + head * p.query_head_stride, angles);
  Held second = first;
  if (has_second) second = LoadRow<T>(p.query, from + (head + 1) * p.query_head_stride, angles);
  StoreRow<T>(p.query_output, to + head * p.query_output_head_stride, angles,
              Rotate<T>(first, angles, halves));
  if (has_second) {
    StoreRow<T>(p.query_output, to + (head + 1) * p.query_output_head_stride, angles,
                Rotate<T>(second, angles, halves));
  }
}

template <typename T, bool kFp8>
__global__ void __launch_bounds__(kThreads, kCtasPerProcessor)
    KvWriteKernel(const __grid_constant__ WritePlan plan) {
  const kvt_kv_write_params& p = plan.params;
  const uint32_t thread = blockIdx.x * kThreads + threadIdx.x;
  if (thread >= plan.threads) return;
  uint32_t lane, unit;
  const uint32_t token = plan.units.Divide(plan.lanes_per_row.Divide(thread, lane), unit);
  const uint32_t lanes = plan.lanes_per_row.divisor();
  const auto kv_heads = static_cast<uint32_t>(p.cache.kv_heads);
  // Worth it only for blocks that may come up before earlier launches have ended.
  const bool settled = p.tables_settled != 0 && blockIdx.x < plan.first_blocks;
  const bool turns_queries = unit >= kv_heads;
  const Angles straight = MakeAngles(kvt_rope{}, token, lane, lanes);
  const auto load_value = [&] {
    return LoadRow<T>(p.value, token * p.value_token_stride + unit * p.value_head_stride, straight);
  };
  LetLaterGridsStart();
  if (!settled) WaitForEarlierGrids();
  // The rows are on their way before it is known whether and where they are wanted.
  Held value = {};
  if (!settled && !turns_queries) value = load_value();
  const int64_t slot = LoadSlot(p.slot_mapping + token);
  const Angles angles = MakeAngles(p.rope, token, lane, lanes);
  if (settled) {
    WaitForEarlierGrids();
  }
  if (turns_queries) {
    TurnQueries<T>(p, token, 2 * (unit - kv_heads), angles);
    return;
  }
  if (settled) value = load_value();
  const Held key = LoadRow<T>(p.key, token * p.key_token_stride + unit * p.key_head_stride, angles);
  const float key_scale = EarlyScale(plan, p.cache.key_scales, unit);
  const float value_scale = EarlyScale(plan, p.cache.value_scales, unit);
  if (slot < 0) return;
  const int page_shift = __ffs(p.cache.page_tokens) - 1;
  const Slot at{slot >> page_shift, slot & (p.cache.page_tokens - 1)};
  WriteCache<T, kFp8>(plan, true, at, unit, lane, angles,
                      Rotate<T>(key, angles, p.rope.style == KVT_ROPE_NEOX), key_scale);
  WriteCache<T, kFp8>(plan, false, at, unit, lane, straight, value, value_scale);
}

bool IsPowerOfTwo(int32_t v) { return v > 0 && (v & (v - 1)) == 0; }

bool IsAligned16(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

bool IsValidRope(const kvt_rope& rope, int32_t head_dim) {
  if (rope.style == KVT_ROPE_NONE) return true;
  return (rope.style == KVT_ROPE_NEOX || rope.style == KVT_ROPE_GPTJ) && rope.positions &&
         rope.cos_sin && IsAligned16(rope.cos_sin) && rope.rotary_dim > 0 &&
         rope.rotary_dim % 16 == 0 && rope.rotary_dim <= head_dim;
}

bool AreAligned(const kvt_kv_write_params& p) {
  const kvt_paged_kv& c = p.cache;
  constexpr int64_t kGranule = 8;  // elements in 16 bytes
  const int64_t inputs =
      p.key_token_stride | p.key_head_stride | p.value_token_stride | p.value_head_stride;
  const int64_t queries = p.query_token_stride | p.query_head_stride | p.query_output_token_stride |
                          p.query_output_head_stride;
  const int64_t cache = c.block_stride | c.token_stride | c.head_stride;
  return IsAligned16(p.key) && IsAligned16(p.value) && IsAligned16(p.query) &&
         IsAligned16(p.query_output) && IsAligned16(c.key) && IsAligned16(c.value) &&
         inputs % kGranule == 0 && (p.query == nullptr || queries % kGranule == 0) &&
         cache % (c.dtype == KVT_FP8_E4M3 ? 2 * kGranule : kGranule) == 0;
}

bool IsValid(const kvt_kv_write_params& p) {
  const kvt_paged_kv& c = p.cache;
  const bool tables = p.key && p.value && p.slot_mapping && c.key && c.value;
  const bool counts = p.tokens >= 0 && c.kv_heads > 0 && IsPowerOfTwo(c.page_tokens) &&
                      c.page_tokens >= 16 && c.page_tokens <= 256;
  const bool query = p.query == nullptr || (p.query_output != nullptr && p.query_heads > 0);
  const bool scales = !p.dynamic_scales || (c.key_scales.values && c.value_scales.values);
  return tables && counts && query && scales && AreAligned(p) && IsValidRope(p.rope, c.head_dim);
}

template <typename T>
cudaError_t Launch(const WritePlan& plan, cudaStream_t stream) {
  const unsigned grid = (plan.threads + kThreads - 1) / kThreads;
  const auto kernel =
      plan.params.cache.dtype == KVT_FP8_E4M3 ? KvWriteKernel<T, true> : KvWriteKernel<T, false>;
  return LaunchOverlapped(kernel, grid, kThreads, 0, stream, plan);
}

}  // namespace
}  // namespace kvtier::kernels

extern "C" kvt_kernel_status kvt_kv_write(const kvt_kv_write_params* params, void* stream) {
  using namespace kvtier::kernels;
  if (params == nullptr || !IsValid(*params)) return KVT_KERNEL_INVALID_ARGUMENT;
  const kvt_paged_kv& cache = params->cache;
  const bool sixteen_bit = params->dtype == KVT_BF16 || params->dtype == KVT_FP16;
  const bool fits = cache.dtype == params->dtype || cache.dtype == KVT_FP8_E4M3;
  if (!sixteen_bit || !fits || !IsPowerOfTwo(cache.head_dim) || cache.head_dim < 16 ||
      cache.head_dim > 256) {
    return KVT_KERNEL_UNSUPPORTED;
  }
  const uint32_t lanes = cache.head_dim / (2 * kChunk);
  const uint32_t units =
      cache.kv_heads + (params->query != nullptr ? (params->query_heads + 1) / 2 : 0);
  const int64_t threads = int64_t{params->tokens} * units * lanes;
  if (threads == 0) return KVT_KERNEL_OK;
  if (threads >= INT32_MAX) return KVT_KERNEL_UNSUPPORTED;
  int device = 0;
  int processors = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) {
    return KVT_KERNEL_LAUNCH_FAILED;
  }
  const WritePlan plan{*params, FastDivide(lanes), FastDivide(units),
                       static_cast<uint32_t>(threads),
                       static_cast<uint32_t>(processors) * kCtasPerProcessor};
  const auto on = static_cast<cudaStream_t>(stream);
  const cudaError_t error =
      params->dtype == KVT_BF16 ? Launch<__nv_bfloat16>(plan, on) : Launch<__half>(plan, on);
  return error == cudaSuccess ? KVT_KERNEL_OK : KVT_KERNEL_LAUNCH_FAILED;
}
