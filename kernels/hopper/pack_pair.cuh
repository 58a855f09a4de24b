// SPDX-License-Identifier: Apache-2.0
// Two numbers as a register of 16-bit operands.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace kvtier::kernels {

__device__ __forceinline__ uint32_t PackPair(float a, float b, bool bf16) {
  if (bf16) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
    return reinterpret_cast<const uint32_t&>(pair);
  }
  const __half2 pair = __floats2half2_rn(a, b);
  return reinterpret_cast<const uint32_t&>(pair);
}

}  // namespace kvtier::kernels
