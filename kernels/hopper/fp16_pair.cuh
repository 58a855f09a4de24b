// SPDX-License-Identifier: Apache-2.0
// Two numbers of another type as a register of fp16: what goes over an fp8 cache is multiplied in
// fp16, which holds all values of e4m3.
#pragma once

#include <cstdint>

#include "kernels/hopper/pipeline.cuh"

namespace kvtier::kernels {

// Saturates.
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

}  // namespace kvtier::kernels
