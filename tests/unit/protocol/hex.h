// SPDX-License-Identifier: Apache-2.0
// Bytes as hexadecimal text, for comparisons that a failing test prints readably.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace kvtier {

inline std::string HexOf(std::span<const std::byte> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    text.push_back(kDigits[std::to_integer<int>(byte) >> 4]);
    text.push_back(kDigits[std::to_integer<int>(byte) & 15]);
  }
  return text;
}

}  // namespace kvtier
