// SPDX-License-Identifier: Apache-2.0
// Bytes that follow from a number, for processes that check each other's.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace kvtier {

inline void FillFromSeed(uint64_t seed, std::span<std::byte> bytes) {
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (size_t i = 0; i < bytes.size(); i += sizeof(state)) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    std::memcpy(bytes.data() + i, &state, std::min(sizeof(state), bytes.size() - i));
  }
}

}  // namespace kvtier
