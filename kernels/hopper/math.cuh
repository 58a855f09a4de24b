// SPDX-License-Identifier: Apache-2.0
// Arithmetic in registers: exponentials, reductions over lanes, pairs of 16-bit numbers, and the
// matrix instruction of single warps (mma.sync; wgmma.cuh has that of warpgroups).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/common/call.h"
#include "kernels/hopper/shared_memory.cuh"

namespace kvtier::kernels {

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

__device__ __forceinline__ float Exp2(float x) {
  float y = 0;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// tanh to within rounding; the hardware's own is too coarse to be multiplied by a cap.
__device__ __forceinline__ float Tanh(float x) {
  return 1.0f - __fdividef(2.0f, Exp2(2.0f * kLog2E * x) + 1.0f);
}

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

// Over the four threads of a quad, which share a row of a matrix instruction's sums.
__device__ __forceinline__ float QuadMax(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}

__device__ __forceinline__ float QuadSum(float x) {
  x += __shfl_xor_sync(0xffffffff, x, 1);
  return x + __shfl_xor_sync(0xffffffff, x, 2);
}

// Two numbers as a register of 16-bit operands, `a` in the lower half.
__device__ __forceinline__ uint32_t PackPair(float a, float b, bool bf16) {
  if (bf16) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
    return reinterpret_cast<const uint32_t&>(pair);
  }
  const __half2 pair = __floats2half2_rn(a, b);
  return reinterpret_cast<const uint32_t&>(pair);
}

// An fp8 cache is multiplied in fp16, which holds all values of e4m3.

// A pair; what fp16 cannot hold saturates.
__device__ __forceinline__ uint32_t Fp16FromBf16(uint32_t pair) {
  uint32_t narrow;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;"
      : "=r"(narrow)
      : "f"(__uint_as_float(pair & 0xffff0000)), "f"(__uint_as_float(pair << 16)));
  return narrow;
}

// The lower or the upper two of four e4m3 values. In PTX, since the intrinsic takes 16 bits and the
// compiler then spends instructions on cutting them out.
__device__ __forceinline__ uint32_t Fp16FromFp8(uint32_t four, bool upper) {
  uint32_t two;
  if (upper) {
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.rn.f16x2.e4m3x2 %0, high;\n}\n"
        : "=r"(two)
        : "r"(four));
  } else {
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.rn.f16x2.e4m3x2 %0, low;\n}\n"
        : "=r"(two)
        : "r"(four));
  }
  return two;
}

// Eight e4m3 values into 16 bytes of shared memory.
__device__ __forceinline__ void StoreWide(uint32_t to, uint2 raw) {
  StoreShared(to, make_uint4(Fp16FromFp8(raw.x, false), Fp16FromFp8(raw.x, true),
                             Fp16FromFp8(raw.y, false), Fp16FromFp8(raw.y, true)));
}

// Two e4m3 values (the low and the high byte) as two fp16 values; exact.
template <Family kFamily = Family::kHopper>
__device__ inline uint32_t Fp16PairFromE4m3Pair(uint16_t pair) {
  if constexpr (kFamily == Family::kHopper) {
    uint32_t result = 0;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(result) : "h"(pair));
    return result;
  } else {
    // Ampere has no instruction for it. Exponent and mantissa move to where fp16 has them, which
    // multiplies a value by 2^-8, as fp16's exponents count from 15 and e4m3's from 7.
    const uint32_t halves = __byte_perm(pair, 0, 0x1404);
    const uint32_t magnitudes = (halves & 0x7F007F00U) >> 1;
    const __half2 scaled = __hmul2(reinterpret_cast<const __half2&>(magnitudes),
                                   __half2half2(__ushort_as_half(0x5C00)));  // 2^8
    // Only a NaN, all of whose bits but the sign are set, carries into bit 14.
    const uint32_t nan = ((magnitudes + 0x00800080U) & 0x40004000U) >> 14;
    return reinterpret_cast<const uint32_t&>(scaled) | (nan * 0x7E00U) | (halves & 0x80008000U);
  }
}

// The 8x8 matrix of 16-bit elements that the warp holds, transposed.
__device__ inline uint32_t TransposeMatrix(uint32_t fragment) {
  uint32_t transposed = 0;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(fragment));
  return transposed;
}

// sums += a * b, for a 16 x 16, b 16 x 8, sums 16 x 8, in the fragment layouts of mma.m16n8k16.
struct Bf16Math {
  using Element = __nv_bfloat16;
  __device__ static void MultiplyAdd(float (&sums)[4], const uint32_t (&a)[4],
                                     const uint32_t (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
  __device__ static uint32_t Pack(float low, float high) {
    uint32_t pair = 0;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
  }
};

struct Fp16Math {
  using Element = __half;
  __device__ static void MultiplyAdd(float (&sums)[4], const uint32_t (&a)[4],
                                     const uint32_t (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
  __device__ static uint32_t Pack(float low, float high) {
    uint32_t pair = 0;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
  }
};

}  // namespace kvtier::kernels
