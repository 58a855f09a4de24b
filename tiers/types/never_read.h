// SPDX-License-Identifier: Apache-2.0
// What writing to disk has not been worth.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvtier {

// Bytes of blocks that left the disk without having been loaded from there, by the blocks' age.
struct NeverRead {
  struct Age {
    const char* name;
    int64_t below_s;
  };
  static constexpr std::array<Age, 4> kAges{{{"under_1h", 3'600},
                                             {"under_6h", 6 * 3'600},
                                             {"under_24h", 24 * 3'600},
                                             {"over_24h", INT64_MAX}}};
  std::array<uint64_t, kAges.size()> bytes{};

  void Add(int64_t age_s, uint64_t block_bytes) {
    size_t age = 0;
    while (age + 1 < kAges.size() && age_s >= kAges[age].below_s) ++age;
    bytes[age] += block_bytes;
  }
};

}  // namespace kvtier
