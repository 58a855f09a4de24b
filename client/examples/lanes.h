// SPDX-License-Identifier: Apache-2.0
// Sixteen floats as one value, and what is needed to compute with them the same way on every
// machine.
//
// A build for any x86-64 must use the widest vectors it meets, and yet text must not depend on the
// machine: a KV block computed here may be continued there. So code is written for 16 lanes,
// whatever the hardware has, each lane is IEEE single precision without fused multiply-add
// (-ffp-contract=off), and sums over lanes have one fixed order. Wider vectors then change the
// speed and nothing else.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvtier::generate {

inline constexpr size_t kLanes = 16;

// `aligned(4)`: may be loaded from any float's address.
using Lanes = float __attribute__((vector_size(64), aligned(4), may_alias));
using HalfLanes = float __attribute__((vector_size(32)));
using QuarterLanes = float __attribute__((vector_size(16)));
using IntLanes = int32_t __attribute__((vector_size(64)));

// Compiles a function once for each width of vectors; the dynamic linker picks. Sanitizers
// instrument the picking itself, before they are ready for it, and get the plain one.
#if defined(__x86_64__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define KVT_VECTOR_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define KVT_VECTOR_CLONES
#endif
#define KVT_INLINE inline __attribute__((always_inline))

// Lanes go by pointer below: how they are passed by value depends on the vectors a caller has.

KVT_INLINE const Lanes& At(const float* values) { return *reinterpret_cast<const Lanes*>(values); }
KVT_INLINE Lanes& At(float* values) { return *reinterpret_cast<Lanes*>(values); }

// The sum of all lanes: halves are added until one is left.
KVT_INLINE float SumOf(const Lanes* lanes) {
  const HalfLanes half = __builtin_shufflevector(*lanes, *lanes, 0, 1, 2, 3, 4, 5, 6, 7) +
                         __builtin_shufflevector(*lanes, *lanes, 8, 9, 10, 11, 12, 13, 14, 15);
  const QuarterLanes quarter = __builtin_shufflevector(half, half, 0, 1, 2, 3) +
                               __builtin_shufflevector(half, half, 4, 5, 6, 7);
  return (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
}

// e^x of each lane to 2 ulp, for x <= 88; 0 below -87.
KVT_INLINE void ExpInPlace(Lanes* x) {
  constexpr float kLog2E = 1.44269504f;
  constexpr float kLn2High = 0.693359375f;  // exact in few bits: its multiples are exact too
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr float kRoundToInteger = 12582912.0f;  // 1.5 * 2^23: adding it drops the fraction
  const Lanes lowest = Lanes{} - 87.0f;
  const Lanes clamped = *x < lowest ? lowest : *x;
  const Lanes exponent = (clamped * kLog2E + kRoundToInteger) - kRoundToInteger;
  const Lanes rest = (clamped - exponent * kLn2High) - exponent * kLn2Low;
  Lanes series = rest * (1.0f / 720) + (1.0f / 120);
  series = series * rest + (1.0f / 24);
  series = series * rest + (1.0f / 6);
  series = series * rest + 0.5f;
  series = series * rest + 1.0f;
  series = series * rest + 1.0f;
  const IntLanes power_of_two = (__builtin_convertvector(exponent, IntLanes) + 127) << 23;
  const Lanes result = series * reinterpret_cast<const Lanes&>(power_of_two);
  *x = *x < lowest ? Lanes{} : result;
}

}  // namespace kvtier::generate
