// SPDX-License-Identifier: Apache-2.0
// Whether the kernel for short suffixes serves a launch, and how many CTAs work on one item of it.
#pragma once

#include <array>
#include <cstdint>

namespace kvtier::kernels {

// The most that a cluster may be. Any number up to it may suit the device's groups of
// multiprocessors best, of which each holds whole clusters only.
constexpr int kMaxClusterCtas = 16;

struct ShortQuestion {
  int64_t items;      // tiles of kShortRows rows of queries, times parts of their keys
  double item_bytes;  // of keys and values, of the longest item
  double all_bytes;   // of keys and values, each counted once
  bool fp8;           // the cache
  bool narrow;        // heads of 64
  // Clusters of i + 1 CTAs that the device holds at once.
  std::array<int32_t, kMaxClusterCtas> places;
};

// The number of CTAs that should take the least time; 0 where the kernel for long suffixes should
// take less.
[[nodiscard]] int32_t ChooseClusterCtas(const ShortQuestion& question);

}  // namespace kvtier::kernels
