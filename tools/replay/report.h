// SPDX-License-Identifier: Apache-2.0
// The results of a replay.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"

namespace kvtier {

// asked = pool + host + disk + miss.
struct HitCounts {
  uint64_t asked = 0;
  std::array<uint64_t, kTierCount> hit{};
  uint64_t miss = 0;
  friend bool operator==(const HitCounts&, const HitCounts&) = default;

  void Add(const HitCounts& other);
};

// Bytes that were waited for, and for how long.
struct OnloadTime {
  uint64_t bytes = 0;
  double seconds = 0;

  void Add(const OnloadTime& other);
  // 0 when nothing was loaded.
  [[nodiscard]] double GigabytesPerSecond() const;
};

struct ReplayReport {
  uint64_t requests = 0;
  HitCounts blocks;
  HitCounts tokens;
  uint64_t wrong_blocks = 0;
  std::vector<double> acquire_us;  // one per request that was answered
  std::array<OnloadTime, kTierCount> onload{};
  double seconds = 0;

  // Counts of troubles. All of these blocks count as misses.
  uint64_t requests_without_daemon = 0;  // the connection was down, or went down meanwhile
  uint64_t requests_without_room = 0;    // the pool could not hold the missed blocks
  uint64_t blocks_lost_loading = 0;      // promised by an acquire, but the load failed
  uint64_t blocks_committed_twice = 0;   // another client was first
  uint64_t errors = 0;                   // refusals that should not occur

  // `seconds` becomes the longer of the two: clients run side by side.
  void Add(const ReplayReport& other);
  // True when every request was answered and served as promised.
  [[nodiscard]] bool Complete() const;

  // {"schema":"kvtier.replay/1",...}, one line.
  [[nodiscard]] std::string ToJson() const;
};

// The value that at least `share` of the samples do not exceed (nearest rank); 0 without samples.
// Reorders `samples`.
[[nodiscard]] double Percentile(std::span<double> samples, double share);

}  // namespace kvtier
