// SPDX-License-Identifier: Apache-2.0
// Which blocks of a cached prefix are worth loading, and which are computed sooner. Pure.
//
// Attention is causal: a token's keys and values need those of all tokens before it, at each layer.
// So the head of a prefix can be computed while its tail is loaded, since the tail was computed
// before, from this same head; but a tail cannot be computed before its head has arrived. Two forms
// follow: load a head and then compute the rest, or compute a gap behind the pool's blocks while
// the blocks behind the gap are loaded, and then compute the rest.
#pragma once

#include <array>
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
  // A gap has at most so many blocks.
  size_t most_gap_blocks = SIZE_MAX;
  LoadPrices prices{};
};

// Blocks [gap_first, gap_end) are computed; those before it are here, those from it to `end` are
// served, and what follows `end` is computed. Without a gap, gap_first == gap_end.
struct LoadAnswer {
  size_t gap_first = 0;
  size_t gap_end = 0;
  size_t end = 0;
  double load_us = 0;   // until all that is served is here
  double ready_us = 0;  // and all else is computed; load_us if the cost is not known
  // Why hits were left out; kNone: none was.
  MissReason declined_for = MissReason::kNone;

  [[nodiscard]] size_t gap() const { return gap_end - gap_first; }
};

[[nodiscard]] LoadAnswer PlanLoad(const LoadQuestion& question);

// A forecast's time, in whole microseconds. A client may name costs and tokens that come to more
// than any integer holds: such a time is told as the longest.
inline constexpr uint64_t kLongestForecastUs = uint64_t{1} << 62;
[[nodiscard]] inline uint64_t ForecastUs(double us) {
  constexpr auto kLongest = static_cast<double>(kLongestForecastUs);
  return us < kLongest ? static_cast<uint64_t>(us) : kLongestForecastUs;
}

// The same where only a whole prefix can be taken, for an engine that loads into memory of its own:
// one of several, each of which needs so many bytes over each way.
struct PrefixOffer {
  uint64_t tokens = 0;
  std::array<uint64_t, kLoadWayCount> bytes{};  // by LoadWay
};
struct PrefixChoice {
  size_t index = 0;
  double load_us = 0;
  double ready_us = 0;
};
// `offers` ascend; the first is the engine's own prefix, without any bytes. A wish for kBothEnds is
// one for kCut. least_trial_bytes: the bytes that may be loaded in any case to learn a rate, those
// of a block. REQUIRES: not empty.
[[nodiscard]] PrefixChoice ChoosePrefix(const LoadWish& wish, std::span<const PrefixOffer> offers,
                                        uint64_t least_trial_bytes, LoadPrices prices);

}  // namespace kvtier
