// SPDX-License-Identifier: Apache-2.0
// The seed of a run, to repeat a failure with.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace kvtier {

// $KVTIER_SEED, or `fallback`; printed, so that a failure names it.
[[nodiscard]] inline uint64_t SeedFromEnvironment(uint64_t fallback) {
  const char* text = std::getenv("KVTIER_SEED");
  const uint64_t seed = text != nullptr ? std::strtoull(text, nullptr, 10) : fallback;
  std::printf("KVTIER_SEED=%llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

}  // namespace kvtier
