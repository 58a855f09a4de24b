// SPDX-License-Identifier: Apache-2.0
// The sizes of the steps in which a thread has the kernel fill memory with pages.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "base/units.h"

namespace kvtier {

// The kernel lets no other thread of the process map or unmap memory during a step, the event loop
// neither. A machine brings gigabytes a second, or a hundredth of that where a hypervisor has to
// find the memory first: steps have a length of time, not of bytes. For use by one thread.
class PopulateSteps {
 public:
  static constexpr uint64_t kMostBytes = 8 * kMiB;
  static constexpr uint64_t kLeastBytes = 64 * kKiB;
  // A step that took longer is followed by a shorter one, and by a longer one if it took less than
  // a quarter.
  static constexpr std::chrono::milliseconds kLong{4};

  [[nodiscard]] uint64_t next_bytes() const { return next_bytes_; }
  void Took(std::chrono::nanoseconds time) {
    if (time > kLong) {
      next_bytes_ = std::max(kLeastBytes, next_bytes_ / 2);
    } else if (time < kLong / 4) {
      next_bytes_ = std::min(kMostBytes, next_bytes_ * 2);
    }
  }
  // `step` is a step of the next size.
  template <typename Step>
  auto Time(const Step& step) {
    const auto begin = std::chrono::steady_clock::now();
    const auto outcome = step();
    Took(std::chrono::steady_clock::now() - begin);
    return outcome;
  }

 private:
  // The first step is a trial.
  uint64_t next_bytes_ = kMiB;
};

}  // namespace kvtier
