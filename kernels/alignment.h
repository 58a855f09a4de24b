// SPDX-License-Identifier: Apache-2.0
// What kernels ask of addresses and strides, and where the regions of a workspace begin.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

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

}  // namespace kvtier::kernels
