// SPDX-License-Identifier: Apache-2.0
// Division by a number known only at run time, as a multiplication: a kernel that decodes one
// linear index into several dimensions would otherwise spend its time dividing.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define KVT_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define KVT_HOST_DEVICE inline
#endif

namespace kvtier::kernels {

// Exact for dividends below 2^31 and divisors in [1, 2^31).
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
