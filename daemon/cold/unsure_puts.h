// SPDX-License-Identifier: Apache-2.0
// Puts that were given up after their bytes had gone out: the server may store them yet.
#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

namespace kvtier {

// Any thread.
class UnsurePuts {
 public:
  using Time = std::chrono::steady_clock::time_point;
  // Servers, and proxies before them, give up a request that takes so long.
  static constexpr std::chrono::seconds kMayTake{60};
  static constexpr std::string_view kWhy =
      "a write that was given up may yet be stored: delete again in a minute";

  void Add(std::string name, Time now = std::chrono::steady_clock::now()) {
    const std::lock_guard lock(mutex_);
    std::erase_if(given_up_, [now](const auto& put) { return put.second + kMayTake <= now; });
    given_up_.insert_or_assign(std::move(name), now);
  }
  // Whether an object whose name begins so may come.
  [[nodiscard]] bool MayCome(std::string_view prefix,
                             Time now = std::chrono::steady_clock::now()) const {
    const std::lock_guard lock(mutex_);
    return std::ranges::any_of(given_up_, [&](const auto& put) {
      return put.first.starts_with(prefix) && now < put.second + kMayTake;
    });
  }
  // The same of an erasure, which asks at each of its parts: one that may come at the first may
  // also come behind the names that later parts look at.
  [[nodiscard]] bool MayComeInErasure(std::string_view prefix, bool is_first,
                                      Time now = std::chrono::steady_clock::now()) {
    const bool may_come = is_first && MayCome(prefix, now);
    const std::lock_guard lock(mutex_);
    if (is_first) may_come_in_erasure_ = may_come;
    return may_come_in_erasure_;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, Time> given_up_;  // by name
  bool may_come_in_erasure_ = false;      // the one under way
};

}  // namespace kvtier
