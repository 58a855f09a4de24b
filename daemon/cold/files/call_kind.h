// SPDX-License-Identifier: Apache-2.0
// Whether calls of a file system copy, or wait for a device or a server.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <ctime>
#include <optional>

namespace kvtier {

// Compares the time that some calls take with the processor's time that they use, since the clock
// alone does not tell a copy of 2 MiB from a server's answer. Guarded by its owner; the first calls
// count as such that wait.
class CallKind {
 public:
  // A thread that gives way to another program seems to have waited, so that one call does not
  // change the kind.
  static constexpr size_t kTurn = 2;
  static constexpr size_t kLookedAt = 4;

  // The calling thread's time, if it is to look at the call that begins.
  [[nodiscard]] std::optional<std::chrono::nanoseconds> Begin() {
    if (++calls_ % kLookedAt != 0) return std::nullopt;
    return ThreadTime();
  }
  // The time that a call took that was looked at, and its thread's in it.
  void End(std::chrono::nanoseconds taken, std::chrono::nanoseconds computed) {
    const bool has_waited = taken > 2 * computed + kLittle;
    if (has_waited) waited_ = std::min(waited_ + 1, 2 * kTurn);
    if (!has_waited && waited_ > 0) --waited_;
  }
  [[nodiscard]] bool AreCopies() const { return waited_ < kTurn; }

  [[nodiscard]] static std::chrono::nanoseconds ThreadTime() {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  }

 private:
  static constexpr std::chrono::microseconds kLittle{20};

  size_t calls_ = 0;
  size_t waited_ = 2 * kTurn;  // falls with each call that copies
};

}  // namespace kvtier
