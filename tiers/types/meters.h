// SPDX-License-Identifier: Apache-2.0
// How much was moved, and how long things took: the meters behind the cache's metrics.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/enum_names.h"

namespace kvtier {

// The directions of copies.
#define KVT_COPY_LANES(X)                   \
  X(kPoolToHost, "pool_to_host", "offload") \
  X(kHostToPool, "host_to_pool", "load")    \
  X(kHostToDisk, "host_to_disk", "write")   \
  X(kDiskToHost, "disk_to_host", "read")    \
  X(kPoolToPool, "pool_to_pool", "load from another pool or an engine's region")
KVT_NAMED_ENUM(CopyLane, KVT_COPY_LANES)

// The bytes moved in one direction between tiers, and for how long anything was moving: bytes by
// busy time is the throughput that was reached, whatever the share of idle time. Several copies may
// be in flight at once; their time counts once. Event loop only.
class CopyMeter {
 public:
  void Begin(int64_t now_ms) {
    Account(now_ms);
    ++under_way_;
  }
  // REQUIRES: a Begin before.
  void End(int64_t now_ms) {
    Account(now_ms);
    --under_way_;
  }
  // Time until the last Begin or End in which something was under way.
  [[nodiscard]] uint64_t busy_ms() const { return busy_ms_; }
  [[nodiscard]] uint64_t under_way() const { return under_way_; }

 private:
  void Account(int64_t now_ms) {
    if (under_way_ > 0 && now_ms > since_ms_) busy_ms_ += static_cast<uint64_t>(now_ms - since_ms_);
    since_ms_ = now_ms;
  }

  uint64_t under_way_ = 0;
  uint64_t busy_ms_ = 0;
  int64_t since_ms_ = 0;
};

// How often something took about how long: counts per fixed class of duration, and the sum. One
// thread at a time; copies are snapshots.
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
