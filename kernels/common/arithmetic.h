// SPDX-License-Identifier: Apache-2.0
// Small arithmetic that hosts and kernels share: alignment of addresses and strides, the regions of
// a workspace, and division by a number known only at run time.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define KVT_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define KVT_HOST_DEVICE inline
#endif

namespace kvtier::kernels {

// For loads and stores of 16 bytes; a null pointer is aligned.
[[nodiscard]] inline bool IsAligned16(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}
[[nodiscard]] inline bool IsAligned16(int64_t bytes) { return bytes % 16 == 0; }

[[nodiscard]] inline bool IsPowerOfTwo(int32_t value) {
  return value > 0 && std::has_single_bit(static_cast<uint32_t>(value));
}

// Bytes, up to where the next region of a workspace begins.
inline constexpr size_t kRegionAlignment = 256;
[[nodiscard]] constexpr size_t AlignUp(size_t bytes) {
  return (bytes + kRegionAlignment - 1) / kRegionAlignment * kRegionAlignment;
}

// Division as a multiplication: a kernel that decodes one linear index into several dimensions
// would otherwise spend its time dividing. Exact for dividends below 2^31 and divisors in [1,
// 2^31).
class FastDivide {
 public:
  FastDivide() = default;
  explicit FastDivide(uint32_t divisor) : divisor_(divisor) {
    while (shift_ < 32 && (uint64_t{1} << shift_) < divisor) ++shift_;
    multiplier_ = ((uint64_t{1} << 32) * ((uint64_t{1} << shift_) - divisor)) / divisor + 1;
  }

  KVT_HOST_DEVICE uint32_t divisor() const { return divisor_; }

  // Returns dividend / divisor and leaves the remainder in `remainder`.
  KVT_HOST_DEVICE uint32_t Divide(uint32_t dividend, uint32_t& remainder) const {
    const uint32_t high = static_cast<uint32_t>((uint64_t{dividend} * multiplier_) >> 32);
    const uint32_t quotient = (high + dividend) >> shift_;
    remainder = dividend - quotient * divisor_;
    return quotient;
  }

 private:
  uint32_t divisor_ = 1;
  uint32_t shift_ = 0;
  uint64_t multiplier_ = 1;
};

}  // namespace kvtier::kernels
