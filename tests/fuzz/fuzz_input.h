// SPDX-License-Identifier: Apache-2.0
// The bytes of a fuzzer as a row of choices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvtier {

// When the bytes are used up, every choice is the first one.
class FuzzInput {
 public:
  explicit FuzzInput(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  [[nodiscard]] bool empty() const { return bytes_.empty(); }
  uint8_t Byte() {
    if (bytes_.empty()) return 0;
    const uint8_t byte = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return byte;
  }
  // 0 <= result < bound, from one byte. REQUIRES: 0 < bound <= 256.
  uint32_t Below(uint32_t bound) { return Byte() % bound; }
  // One of two, the second for half of all bytes.
  bool Flag() { return (Byte() & 1) != 0; }
  // One of `choices`, which must not be empty.
  template <typename T, size_t kCount>
  T OneOf(const T (&choices)[kCount]) {
    return choices[Below(kCount)];
  }

 private:
  std::span<const uint8_t> bytes_;
};

}  // namespace kvtier
