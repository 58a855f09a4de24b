// SPDX-License-Identifier: Apache-2.0
// The instructions decode is made of. Names follow PTX where PTX has one.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/hopper/warp.cuh"

namespace kvtier::kernels {

__device__ inline uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ inline uint32_t LoadShared(uint32_t shared) {
  uint32_t value = 0;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(shared) : "memory");
  return value;
}

// Blocks until everything that the stream's previous launch wrote can be read.
__device__ inline void WaitForPreviousLaunch() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Lets the stream's next launch start its blocks once all of this launch's have said so.
__device__ inline void AllowNextLaunch() { asm volatile("griddepcontrol.launch_dependents;"); }

// For data that is read once in a step: it gives way first in L2.
__device__ inline uint64_t EvictFirstPolicy() {
  uint64_t policy = 0;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Copies 16 bytes, or writes 16 zero bytes and reads nothing if `bytes` is 0.
__device__ inline void CopyAsync16(uint32_t shared, const void* global, uint32_t bytes,
                                   uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(shared),
               "l"(global), "r"(bytes), "l"(policy)
               : "memory");
}

__device__ inline void CopyAsync16(uint32_t shared, const void* global, uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(bytes)
               : "memory");
}

__device__ inline void CopyAsync4(uint32_t shared, const void* global, uint32_t bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(global), "r"(bytes)
               : "memory");
}

__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until at most kPending of this thread's newest groups are under way.
template <int kPending>
__device__ inline void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ inline void LoadMatrices(uint32_t shared, uint32_t (&matrices)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(shared)
               : "memory");
}

__device__ inline void LoadMatricesTransposed(uint32_t shared, uint32_t (&matrices)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(shared)
               : "memory");
}

// The 8x8 matrix of 16-bit elements that the warp holds, transposed.
__device__ inline uint32_t TransposeMatrix(uint32_t fragment) {
  uint32_t transposed = 0;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(fragment));
  return transposed;
}

// What was there before.
__device__ inline int32_t AddAcquireRelease(int32_t* global, int32_t value) {
  int32_t before = 0;
  asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(global), "r"(value)
               : "memory");
  return before;
}

__device__ inline float Exp2(float x) {
  float y = 0;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two e4m3 values (the low and the high byte) as two fp16 values; exact.
__device__ inline uint32_t Fp16PairFromE4m3Pair(uint16_t pair) {
  uint32_t result = 0;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(result) : "h"(pair));
  return result;
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
