// SPDX-License-Identifier: Apache-2.0
// A thread's share of a row of keys, values or queries, two chunks of eight elements, and all that
// is computed with it: the rotation, the largest magnitude, the quantisation.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "kvtier/kv_write.h"

namespace kvtier::kernels {

constexpr int kChunk = 8;  // elements in 16 bytes

// Two elements in a word.
template <typename T>
struct Pairs;
template <>
struct Pairs<__nv_bfloat16> {
  using Type = __nv_bfloat162;
  // The intrinsic takes an instruction more.
  static __device__ float2 Widen(uint32_t word) {
    return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)};
  }
  static __device__ Type Narrow(float a, float b) { return __floats2bfloat162_rn(a, b); }
};
template <>
struct Pairs<__half> {
  using Type = __half2;
  static __device__ float2 Widen(uint32_t word) {
    return __half22float2(reinterpret_cast<const Type&>(word));
  }
  static __device__ Type Narrow(float a, float b) { return __floats2half2_rn(a, b); }
};

// Two chunks, as loaded and as stored.
struct Held {
  uint4 chunk[2];
};

template <typename T>
__device__ __forceinline__ void Widen(const uint4& raw, float (&to)[kChunk]) {
  const uint32_t words[] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = Pairs<T>::Widen(words[i]);
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

// Which two chunks of a row the thread `lane` of the row's `lanes` has. Neighbours have
// neighbouring chunks, so that a row is read in whole lines: thread l has chunk l of the turning
// part's first half and chunk l of its second, and so on for the part that stays.
struct RowPart {
  uint32_t chunk[2];
  bool turns;
};

__device__ __forceinline__ RowPart PartOf(uint32_t rotary_dim, uint32_t lane, uint32_t lanes) {
  const uint32_t turning = rotary_dim / (2 * kChunk);
  const bool turns = lane < turning;
  return {{turns ? lane : lane + turning, turns ? lane + turning : lane + lanes}, turns};
}

struct Angles {
  float cosine[kChunk];
  float sine[kChunk];
};

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

// The angles of a place that turns. Pairs of the neox style (kHalves) span both chunks; those of
// the other lie within one.
template <bool kHalves>
__device__ __forceinline__ Angles LoadAngles(const kvt_rope& rope, int32_t position,
                                             const RowPart& place) {
  const uint32_t first = kHalves ? place.chunk[0] * kChunk : place.chunk[0] * kChunk / 2;
  const uint32_t second = kHalves ? first + kChunk / 2 : place.chunk[1] * kChunk / 2;
  const float* row = rope.cos_sin + int64_t{position} * rope.rotary_dim;
  Angles angles;
  Load4x2(row, first, second, angles.cosine);
  Load4x2(row + rope.rotary_dim / 2, first, second, angles.sine);
  return angles;
}

// Turns (a, b) by the angle; the one place where the rotation's arithmetic is written.
__device__ __forceinline__ void Turn(float& a, float& b, float cosine, float sine) {
  const float turned = __fmaf_rn(a, cosine, -__fmul_rn(b, sine));
  b = __fmaf_rn(b, cosine, __fmul_rn(a, sine));
  a = turned;
}

template <typename T, bool kHalves>
__device__ __forceinline__ Held Rotate(const Held& held, const Angles& angles) {
  float v[2][kChunk];
  Widen<T>(held.chunk[0], v[0]);
  Widen<T>(held.chunk[1], v[1]);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    if constexpr (kHalves) {
      Turn(v[0][i], v[1][i], angles.cosine[i], angles.sine[i]);
    } else {
      Turn(v[i / 4][2 * (i % 4)], v[i / 4][2 * (i % 4) + 1], angles.cosine[i], angles.sine[i]);
    }
  }
  return {Narrow<T>(v[0]), Narrow<T>(v[1])};
}

// The largest magnitude of a row, whose threads call together.
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

// Where a thread's chunks of a row begin, as 16-bit elements, in bytes: the first from the row's
// begin, the second from the first.
struct Chunks {
  uint32_t first;
  uint32_t apart;
};

__device__ __forceinline__ Chunks ChunksOf(const RowPart& place) {
  return {place.chunk[0] * 16, (place.chunk[1] - place.chunk[0]) * 16};
}

// `to`: the first chunk's place.
__device__ __forceinline__ void StoreRow(char* to, const Chunks& chunks, const Held& held) {
  *reinterpret_cast<uint4*>(to) = held.chunk[0];
  *reinterpret_cast<uint4*>(to + chunks.apart) = held.chunk[1];
}

// Likewise. `inverse`: of the scale.
template <typename T>
__device__ __forceinline__ void StoreFp8(char* to, const Chunks& chunks, const Held& held,
                                         float inverse) {
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
    *reinterpret_cast<uint2*>(to + (c == 0 ? 0 : chunks.apart / 2)) =
        make_uint2(words[0], words[1]);
  }
}

}  // namespace kvtier::kernels
