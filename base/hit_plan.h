// SPDX-License-Identifier: Apache-2.0
// How far a cached prefix is to be loaded, and the engine's costs of computing: shared by the
// cache, the protocol and the client library.
#pragma once

#include <cstdint>

namespace kvtier {

enum class HitPlan : uint8_t {
  kAll = 0,  // every hit
  kCut = 1,  // hits as far as to load them and to compute the rest takes the least time
};

// The time that an engine takes to compute n new tokens behind m that are there:
// us = per_token_us * n + per_pair_us * n * (m + n / 2) + fixed_us.
struct ComputeCost {
  static constexpr float kMaxUs = 1e9f;  // of each coefficient; none is negative

  float per_token_us = 0;
  float per_pair_us = 0;
  float fixed_us = 0;

  // The cost of the tokens from `first` to `end`; 0 for none.
  [[nodiscard]] double Us(uint64_t first, uint64_t end) const {
    if (end <= first) return 0;
    const auto n = static_cast<double>(end - first);
    return fixed_us + n * (per_token_us + per_pair_us * (static_cast<double>(first) + n / 2));
  }
  // All zeros say that it is not known.
  [[nodiscard]] bool known() const { return *this != ComputeCost{}; }
  friend bool operator==(const ComputeCost&, const ComputeCost&) = default;
};

// Which of the blocks that are cached are worth loading. With all zeros every one is.
struct LoadWish {
  HitPlan plan = HitPlan::kAll;
  uint32_t deadline_ms = 0;  // what would arrive later is left out; 0: no deadline
  uint32_t tokens = 0;       // of the sequence; less than the hashes': theirs
  ComputeCost cost;

  [[nodiscard]] bool any() const { return plan != HitPlan::kAll || deadline_ms > 0; }
  friend bool operator==(const LoadWish&, const LoadWish&) = default;
};

// The times that the cache expects of an acquire with a wish.
struct LoadForecast {
  uint64_t load_us = 0;   // until all hits are usable
  uint64_t ready_us = 0;  // and the rest is computed; load_us if what that costs is not known
  friend bool operator==(const LoadForecast&, const LoadForecast&) = default;
};

}  // namespace kvtier
