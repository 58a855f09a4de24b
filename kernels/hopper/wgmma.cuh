// SPDX-License-Identifier: Apache-2.0
// Hopper's warpgroup matrix instructions (wgmma) for 16-bit operands and fp32 sums: shared-memory
// descriptors, ordering, and the three widths that prefill attention needs.
//
// The 128 threads of a warpgroup call these together. A matrix of m64 x N sums is spread so that
// thread t holds of row 16 * (t / 32) + t % 32 / 4, and of the row 8 below, the columns
// 8j + 2 * (t % 4) and the next: d[4j], d[4j + 1] in the first row, d[4j + 2], d[4j + 3] in the
// second.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace kvtier::kernels::wgmma {

// A matrix in shared memory in 128-byte swizzled atoms of 8 rows by 128 bytes. `leading` and
// `stride` are the distances in bytes between atoms: along the contiguous dimension (used only
// where that is not the summed one) and across it.
__device__ __forceinline__ uint64_t Descriptor(uint32_t shared_address, uint32_t leading,
                                               uint32_t stride) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  return kSwizzle128 | uint64_t{stride >> 4} << 32 | uint64_t{leading >> 4} << 16 |
         (shared_address & 0x3ffff) >> 4;
}

// The same matrix `bytes` further on.
__device__ __forceinline__ uint64_t Advance(uint64_t descriptor, uint32_t bytes) {
  return descriptor + (bytes >> 4);
}

// Before the first multiplication after registers that it uses were written.
__device__ __forceinline__ void Fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Closes a group of multiplications.
__device__ __forceinline__ void Commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most `kPending` groups are unfinished.
template <int kPending>
__device__ __forceinline__ void Wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving uses of the sums across a wait.
template <int kCount>
__device__ __forceinline__ void Settle(float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

#define KVT_REGISTERS_16             \
  "%0, %1, %2, %3, %4, %5, %6, %7, " \
  "%8, %9, %10, %11, %12, %13, %14, %15"
#define KVT_REGISTERS_32                     \
  "%0, %1, %2, %3, %4, %5, %6, %7, "         \
  "%8, %9, %10, %11, %12, %13, %14, %15, "   \
  "%16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define KVT_REGISTERS_48                     \
  "%0, %1, %2, %3, %4, %5, %6, %7, "         \
  "%8, %9, %10, %11, %12, %13, %14, %15, "   \
  "%16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, " \
  "%40, %41, %42, %43, %44, %45, %46, %47"
#define KVT_REGISTERS_64                     \
  "%0, %1, %2, %3, %4, %5, %6, %7, "         \
  "%8, %9, %10, %11, %12, %13, %14, %15, "   \
  "%16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, " \
  "%40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, " \
  "%56, %57, %58, %59, %60, %61, %62, %63"
#define KVT_REGISTERS_128                            \
  "%0, %1, %2, %3, %4, %5, %6, %7, "                 \
  "%8, %9, %10, %11, %12, %13, %14, %15, "           \
  "%16, %17, %18, %19, %20, %21, %22, %23, "         \
  "%24, %25, %26, %27, %28, %29, %30, %31, "         \
  "%32, %33, %34, %35, %36, %37, %38, %39, "         \
  "%40, %41, %42, %43, %44, %45, %46, %47, "         \
  "%48, %49, %50, %51, %52, %53, %54, %55, "         \
  "%56, %57, %58, %59, %60, %61, %62, %63, "         \
  "%64, %65, %66, %67, %68, %69, %70, %71, "         \
  "%72, %73, %74, %75, %76, %77, %78, %79, "         \
  "%80, %81, %82, %83, %84, %85, %86, %87, "         \
  "%88, %89, %90, %91, %92, %93, %94, %95, "         \
  "%96, %97, %98, %99, %100, %101, %102, %103, "     \
  "%104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, " \
  "%120, %121, %122, %123, %124, %125, %126, %127"

#define KVT_SUMS_8(d, i)                                                                      \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define KVT_SUMS_16(d, i) KVT_SUMS_8(d, i), KVT_SUMS_8(d, i + 8)
#define KVT_SUMS_32(d, i) \
  KVT_SUMS_8(d, i), KVT_SUMS_8(d, i + 8), KVT_SUMS_8(d, i + 16), KVT_SUMS_8(d, i + 24)
#define KVT_SUMS_48(d, i) KVT_SUMS_32(d, i), KVT_SUMS_16(d, i + 32)
#define KVT_SUMS_64(d, i) KVT_SUMS_32(d, i), KVT_SUMS_32(d, i + 32)
#define KVT_SUMS_128(d, i) KVT_SUMS_64(d, i), KVT_SUMS_64(d, i + 64)

// a in shared memory or in registers, b in shared memory, both contiguous along the summed
// dimension; or b along N (TRANSPOSED 1).
#define KVT_WGMMA_FROM_SHARED(N, SUMS, TYPE, A, B, ACC)                             \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #ACC                            \
               ", 0;\n"                                                             \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE      \
               " {" KVT_REGISTERS_##SUMS "}, %" #A ", %" #B ", p, 1, 1, 0, 0;\n}\n" \
               : KVT_SUMS_##SUMS(d, 0)                                              \
               : "l"(a), "l"(b), "r"(accumulate))
#define KVT_WGMMA_FROM_REGISTERS(N, SUMS, TYPE, A0, A1, A2, A3, B, ACC, TRANSPOSED)             \
  asm volatile(                                                                                 \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %" #ACC                                                 \
      ", 0;\n"                                                                                  \
      "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" KVT_REGISTERS_##SUMS \
      "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1, %" #TRANSPOSED ";\n}\n"   \
      : KVT_SUMS_##SUMS(d, 0)                                                                   \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(kTransposed))

template <typename T>
inline constexpr bool kIsBf16 = false;
template <>
inline constexpr bool kIsBf16<__nv_bfloat16> = true;

// d = a * b^T (+ d), both in shared memory, N = 32, 64, 96 or 128.
template <typename T, int kSums>
__device__ __forceinline__ void FromShared(float (&d)[kSums], uint64_t a, uint64_t b,
                                           int accumulate) {
  static_assert(kSums == 16 || kSums == 32 || kSums == 48 || kSums == 64);
  if constexpr (kSums == 16) {
    if constexpr (kIsBf16<T>) {
      KVT_WGMMA_FROM_SHARED(32, 16, "bf16", 16, 17, 18);
    } else {
      KVT_WGMMA_FROM_SHARED(32, 16, "f16", 16, 17, 18);
    }
  } else if constexpr (kSums == 32) {
    if constexpr (kIsBf16<T>) {
      KVT_WGMMA_FROM_SHARED(64, 32, "bf16", 32, 33, 34);
    } else {
      KVT_WGMMA_FROM_SHARED(64, 32, "f16", 32, 33, 34);
    }
  } else if constexpr (kSums == 48) {
    if constexpr (kIsBf16<T>) {
      KVT_WGMMA_FROM_SHARED(96, 48, "bf16", 48, 49, 50);
    } else {
      KVT_WGMMA_FROM_SHARED(96, 48, "f16", 48, 49, 50);
    }
  } else {
    if constexpr (kIsBf16<T>) {
      KVT_WGMMA_FROM_SHARED(128, 64, "bf16", 64, 65, 66);
    } else {
      KVT_WGMMA_FROM_SHARED(128, 64, "f16", 64, 65, 66);
    }
  }
}

// d = a * b (+ d), a in registers, N = 64, 128 or 256; kTransposed 0: b contiguous along the summed
// dimension, 1: along N.
template <typename T, int kTransposed = 1, int kSums>
__device__ __forceinline__ void FromRegisters(float (&d)[kSums], const uint32_t* a, uint64_t b,
                                              int accumulate = 1) {
  static_assert(kSums == 32 || kSums == 64 || kSums == 128);
  if constexpr (kSums == 32) {
    if constexpr (kIsBf16<T>) {
      KVT_WGMMA_FROM_REGISTERS(64, 32, "bf16", 32, 33, 34, 35, 36, 37, 38);
    } else {
      KVT_WGMMA_FROM_REGISTERS(64, 32, "f16", 32, 33, 34, 35, 36, 37, 38);
    }
  } else if constexpr (kSums == 64) {
    if constexpr (kIsBf16<T>) {
      KVT_WGMMA_FROM_REGISTERS(128, 64, "bf16", 64, 65, 66, 67, 68, 69, 70);
    } else {
      KVT_WGMMA_FROM_REGISTERS(128, 64, "f16", 64, 65, 66, 67, 68, 69, 70);
    }
  } else {
    if constexpr (kIsBf16<T>) {
      KVT_WGMMA_FROM_REGISTERS(256, 128, "bf16", 128, 129, 130, 131, 132, 133, 134);
    } else {
      KVT_WGMMA_FROM_REGISTERS(256, 128, "f16", 128, 129, 130, 131, 132, 133, 134);
    }
  }
}

#undef KVT_WGMMA_FROM_SHARED
#undef KVT_WGMMA_FROM_REGISTERS
#undef KVT_SUMS_128
#undef KVT_SUMS_64
#undef KVT_SUMS_32
#undef KVT_SUMS_16
#undef KVT_SUMS_8
#undef KVT_REGISTERS_128
#undef KVT_REGISTERS_64
#undef KVT_REGISTERS_32
#undef KVT_REGISTERS_16

}  // namespace kvtier::kernels::wgmma
