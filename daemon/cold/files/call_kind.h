// SPDX-License-Identifier: Apache-2.0
// Whether calls of a file system copy, or wait for a device or a server.
#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace kvtier {

// Looks at some calls: whether the thread went to sleep in them. The clock alone does not tell a
// copy of 2 MiB, or one that gave way to another program, from a server's answer. Guarded by its
// owner; the first calls count as such that wait.
class CallKind {
 public:
  // A copy sleeps now and then, for a lock of the file system: one call does not change the kind.
  static constexpr size_t kTurn = 2;
  static constexpr size_t kLookedAt = 4;

  // How often the calling thread has slept, if it is to look at the call that begins.
  [[nodiscard]] std::optional<int64_t> Begin() {
    if (++calls_ % kLookedAt != 0) return std::nullopt;
    return CountSleeps();
  }
  // The time that a call took that was looked at, and how often its thread slept in it.
  void End(std::chrono::nanoseconds taken, int64_t sleeps) {
    const bool has_waited = sleeps > 0 && taken > kLittle;
    if (has_waited) waited_ = std::min(waited_ + 1, 2 * kTurn);
    if (!has_waited && waited_ > 0) --waited_;
  }
  [[nodiscard]] bool AreCopies() const { return waited_ < kTurn; }

  [[nodiscard]] static int64_t CountSleeps() {
    rusage used{};
    ::getrusage(RUSAGE_THREAD, &used);
    return used.ru_nvcsw;
  }

 private:
  static constexpr std::chrono::microseconds kLittle{20};

  size_t calls_ = 0;
  size_t waited_ = 2 * kTurn;  // falls with each call that copies
};

}  // namespace kvtier
