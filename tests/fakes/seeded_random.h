// SPDX-License-Identifier: Apache-2.0
// Random choices that are the same on every machine for the same seed (the standard distributions
// are not).
#pragma once

#include <cstdint>

namespace kvtier {

// SplitMix64: tiny state, cheap to seed, good enough to pick faults and interleavings.
class SeededRandom {
 public:
  explicit SeededRandom(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15ull;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }

  // 0 <= result < bound. REQUIRES: bound > 0.
  uint64_t Below(uint64_t bound) { return Next() % bound; }
  // low <= result <= high.
  uint64_t Between(uint64_t low, uint64_t high) { return low + Below(high - low + 1); }
  // True with the given probability.
  bool Chance(double probability) {
    return probability > 0 && static_cast<double>(Next() >> 11) * 0x1p-53 < probability;
  }
  // A generator of its own, so that one consumer's draws do not shift another's.
  SeededRandom Fork() { return SeededRandom(Next()); }

 private:
  uint64_t state_;
};

}  // namespace kvtier
