// Whether the kernel for short suffixes serves a launch, and how many CTAs work on one item of it.
#pragma once

#include <array>
#include <cstdint>

namespace kvtier::kernels {

// What a cluster may be: 1, 2, 4, 8 or 16 CTAs.
constexpr int kClusterSizes = 5;

struct ShortQuestion {
  int64_t items;      // tiles of kShortRows rows of queries, times parts of their keys; a bound
  double item_bytes;  // of keys and values, of the longest item
  double all_bytes;   // of keys and values, each counted once
  // Clusters of 1 << i CTAs that the device holds at once.
  std::array<int32_t, kClusterSizes> places;
};

// The number of CTAs that should take the least time; 0 where the kernel for long suffixes should
// take less.
[[nodiscard]] int32_t ChooseClusterCtas(const ShortQuestion& question);

}  // namespace kvtier::kernels
