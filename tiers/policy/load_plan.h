// SPDX-License-Identifier: Apache-2.0
// Which blocks of a cached prefix are worth loading, and which are computed sooner. Pure.
//
// Attention is causal: a token's keys and values need those of all tokens before it, at each layer.
// So an engine loads a head of the prefix and then computes the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/acquired.h"
#include "base/hit_plan.h"
#include "tiers/policy/load_rates.h"

namespace kvtier {

// Where a block of the prefix is.
enum class BlockSource : uint8_t {
  kHere,  // usable now
  kHost,  // in host memory, or on its way from there
  kDisk,
  kCold,
};

struct LoadQuestion {
  HitPlan plan = HitPlan::kAll;
  // Nothing that would arrive later is loaded; 0: no deadline.
  double deadline_us = 0;
  // The whole sequence, of which the rest behind the hits is computed.
  uint64_t tokens = 0;
  // If it is not known, nothing is slower than computing.
  ComputeCost cost;

  std::span<const BlockSource> blocks;  // the hits, in order
  uint64_t block_bytes = 0;
  uint64_t block_tokens = 0;
  uint64_t covered_tokens = 0;  // by all of them: the last may be a partial one
  LoadPrices prices{};
};

struct LoadAnswer {
  size_t end = 0;       // the blocks before it are served, the others computed
  double load_us = 0;   // until all that is served is here
  double ready_us = 0;  // and all else is computed; load_us if the cost is not known
  // Why hits were left out; kNone: none was.
  MissReason declined_for = MissReason::kNone;
};

[[nodiscard]] LoadAnswer PlanLoad(const LoadQuestion& question);

// A forecast's time, in whole microseconds. A client may name costs and tokens that come to more
// than any integer holds: such a time is told as the longest.
inline constexpr uint64_t kLongestForecastUs = uint64_t{1} << 62;
[[nodiscard]] inline uint64_t ForecastUs(double us) {
  constexpr auto kLongest = static_cast<double>(kLongestForecastUs);
  return us < kLongest ? static_cast<uint64_t>(us) : kLongestForecastUs;
}

}  // namespace kvtier
