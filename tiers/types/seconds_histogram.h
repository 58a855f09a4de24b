// SPDX-License-Identifier: Apache-2.0
// How often something took about how long: counts per fixed class of duration, and the sum.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvtier {

// One thread at a time; copies are snapshots.
template <size_t kBoundCount>
class SecondsHistogram {
 public:
  // `bounds_us` are the classes' inclusive upper bounds in microseconds, ascending; it is borrowed
  // for ever (a constant). A last class without bound follows.
  explicit constexpr SecondsHistogram(const std::array<int64_t, kBoundCount>* bounds_us)
      : bounds_us_(bounds_us) {}

  // A negative duration (a clock was set back) counts as none.
  void ObserveUs(int64_t us) {
    us = std::max<int64_t>(us, 0);
    const auto bound = std::ranges::lower_bound(*bounds_us_, us);
    ++counts_[static_cast<size_t>(bound - bounds_us_->begin())];
    sum_us_ += static_cast<uint64_t>(us);
  }
  void ObserveMs(int64_t ms) { ObserveUs(ms * 1000); }

  [[nodiscard]] std::span<const int64_t> bounds_us() const { return *bounds_us_; }
  // Per class, not cumulative; one more than there are bounds.
  [[nodiscard]] std::span<const uint64_t> counts() const { return counts_; }
  [[nodiscard]] uint64_t sum_us() const { return sum_us_; }

 private:
  const std::array<int64_t, kBoundCount>* bounds_us_;
  std::array<uint64_t, kBoundCount + 1> counts_{};
  uint64_t sum_us_ = 0;
};

// How long blocks live and lie idle: from a quarter of a second to a week.
inline constexpr int64_t kSecondUs = 1'000'000;
inline constexpr std::array<int64_t, 13> kBlockAgeBoundsUs = {
    kSecondUs / 4,     kSecondUs,          4 * kSecondUs,      15 * kSecondUs,    60 * kSecondUs,
    240 * kSecondUs,   900 * kSecondUs,    3600 * kSecondUs,   14400 * kSecondUs, 43200 * kSecondUs,
    86400 * kSecondUs, 259200 * kSecondUs, 604800 * kSecondUs,
};

class BlockAgeHistogram : public SecondsHistogram<kBlockAgeBoundsUs.size()> {
 public:
  BlockAgeHistogram() : SecondsHistogram(&kBlockAgeBoundsUs) {}
};

}  // namespace kvtier
