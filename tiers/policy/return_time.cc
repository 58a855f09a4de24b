// SPDX-License-Identifier: Apache-2.0
#include "tiers/policy/return_time.h"

#include <algorithm>

namespace kvtier {
namespace {

// The part of itself that one time moves the quartile by, up and down together.
constexpr double kStep = 0.25;
constexpr double kShorter = 0.75;

}  // namespace

void ReturnTime::Note(uint32_t waited_s) {
  if (waited_s > kMostS) return;
  // Times are whole seconds, rounded down.
  const bool longer = waited_s + 0.5 > seconds_;
  seconds_ *= 1 + kStep * (longer ? kShorter : kShorter - 1);
  seconds_ = std::clamp<double>(seconds_, kLeastS, kMostS);
}

}  // namespace kvtier
