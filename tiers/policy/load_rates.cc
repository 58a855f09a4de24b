// SPDX-License-Identifier: Apache-2.0
#include "tiers/policy/load_rates.h"

#include <algorithm>

#include "base/result.h"

namespace kvtier {
namespace {

// A sample ends with so many bytes, or after so long; one that ends because nothing more is under
// way must have been this long or large.
constexpr uint64_t kSampleBytes = 32u << 20;
constexpr int64_t kSampleUs = 50'000;
constexpr uint64_t kLeastBytes = 8u << 20;
constexpr int64_t kLeastUs = 20'000;

// The weight of the newest sample.
constexpr double kNewest = 0.3;

double Mixed(double known, double newest) {
  return known > 0 ? known + kNewest * (newest - known) : newest;
}

}  // namespace

void RateMeter::Begin(uint64_t bytes, int64_t now_us) {
  if (under_way_bytes_ == 0) {
    since_us_ = now_us;
    sample_bytes_ = 0;
    arrived_ = false;
  }
  under_way_bytes_ += bytes;
}

void RateMeter::End(uint64_t bytes, bool arrived, int64_t now_us) {
  KVT_CHECK(under_way_bytes_ >= bytes);
  under_way_bytes_ -= bytes;
  if (!arrived) return;
  if (!arrived_) latency_us_ = Mixed(latency_us_, static_cast<double>(now_us - since_us_));
  arrived_ = true;
  sample_bytes_ += bytes;
  const int64_t took_us = now_us - since_us_;
  const bool full = sample_bytes_ >= kSampleBytes || took_us >= kSampleUs;
  const bool long_enough = sample_bytes_ >= kLeastBytes || took_us >= kLeastUs;
  if (full || (under_way_bytes_ == 0 && long_enough)) TakeSample(now_us);
}

// An old rate may be that of another drive, or of one that was busy with something else: it is not
// mixed with a new one.
void RateMeter::TakeSample(int64_t now_us) {
  const double took_us = std::max(1.0, static_cast<double>(now_us - since_us_));
  const double newest = took_us / static_cast<double>(sample_bytes_);
  const bool old = now_us - known_at_us_ > kBelievedUs;
  us_per_byte_ = old ? newest : Mixed(us_per_byte_, newest);
  known_at_us_ = now_us;
  since_us_ = now_us;
  sample_bytes_ = 0;
}

WayPrice RateMeter::PriceNow(uint64_t ahead_bytes, int64_t now_us) const {
  WayPrice price;
  price.us_per_byte = known() ? us_per_byte_ : assumed_us_per_byte_;
  // A way on which nothing arrives is slower than its last sample says, although no new one ends.
  const int64_t waited_us = under_way_bytes_ > 0 ? now_us - since_us_ : 0;
  if (waited_us > kSampleUs) {
    const auto arrived_bytes = static_cast<double>(std::max<uint64_t>(sample_bytes_, 1 << 20));
    price.us_per_byte = std::max(price.us_per_byte, static_cast<double>(waited_us) / arrived_bytes);
  } else if (price.us_per_byte == 0) {
    price.trial_bytes = kTrialBytes;
  }
  price.stale = known() && under_way_bytes_ == 0 && now_us - known_at_us_ > kBelievedUs;
  price.wait_us =
      latency_us_ + static_cast<double>(ahead_bytes + under_way_bytes_) * price.us_per_byte;
  return price;
}

}  // namespace kvtier
