// SPDX-License-Identifier: Apache-2.0
// The hours of which a tenant has blocks on disk, whose keys are needed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_set>

namespace kvtier {

// Any thread, as a value. Hours count from 1970, by the wall clock.
class HoursInUse {
 public:
  // A block was written at some time from `first_s` to `last_s`. After the clock has been set by
  // more than a day, all later hours count, for a key that is wiped too late does less harm.
  void Add(int64_t first_s, int64_t last_s) {
    const uint32_t first = HourOf(first_s), last = HourOf(last_s);
    if (last - first > kMostHours) {
      from_ = std::min(from_, first);
      return;
    }
    for (uint32_t hour = first; hour <= last; ++hour) hours_.insert(hour);
  }
  [[nodiscard]] bool Contains(uint32_t hour) const {
    return hour >= from_ || hours_.contains(hour);
  }

 private:
  static constexpr uint32_t kMostHours = 24;
  [[nodiscard]] static uint32_t HourOf(int64_t time_s) {
    return static_cast<uint32_t>(std::clamp<int64_t>(time_s, 0, UINT32_MAX) / 3600);
  }

  std::unordered_set<uint32_t> hours_;
  uint32_t from_ = UINT32_MAX;
};

using HoursOfTenants = std::map<std::string, HoursInUse>;

}  // namespace kvtier
