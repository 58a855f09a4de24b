// SPDX-License-Identifier: Apache-2.0
// Keeps requests from a store that does not answer them: after some failures in a row none is let
// through, until a probe that nothing waits for has succeeded.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace kvtier {

// Event loop only; `clock` is borrowed.
class CircuitBreaker {
 public:
  enum class State : uint8_t {
    kClosed,    // requests pass
    kOpen,      // none does
    kHalfOpen,  // a probe is under way, and nothing else passes
  };

  explicit CircuitBreaker(const Clock* clock) : clock_(*clock) {}

  [[nodiscard]] State state() const { return state_; }
  [[nodiscard]] bool Passes() const { return state_ == State::kClosed; }
  [[nodiscard]] uint64_t openings() const { return openings_; }

  // True once whenever it is time for a probe; the caller sends it and tells how it ended.
  [[nodiscard]] bool TakeProbe() {
    if (state_ != State::kOpen || clock_.MonotonicMs() < probe_at_ms_) return false;
    state_ = State::kHalfOpen;
    return true;
  }
  void ProbeEnded(bool succeeded) {
    if (state_ != State::kHalfOpen) return;
    if (!succeeded) return Open();
    state_ = State::kClosed;
    failures_ = 0;
  }
  // How a request ended that had passed. Answers that come when the breaker is open already say
  // nothing new.
  void RequestEnded(bool succeeded) {
    if (state_ != State::kClosed) return;
    failures_ = succeeded ? 0 : failures_ + 1;
    if (succeeded) wait_ms_ = 0;
    if (failures_ == kFailuresToOpen) Open();
  }

  static constexpr uint32_t kFailuresToOpen = 3;
  static constexpr int64_t kFirstWaitMs = 500;
  static constexpr int64_t kLongestWaitMs = 30'000;

 private:
  // The longer no request has succeeded, the more seldom the store is asked. A store that answers
  // probes alone, which are short, would else take most requests again twice a second.
  void Open() {
    if (state_ == State::kClosed) ++openings_;
    wait_ms_ = std::clamp(2 * wait_ms_, kFirstWaitMs, kLongestWaitMs);
    state_ = State::kOpen;
    probe_at_ms_ = clock_.MonotonicMs() + wait_ms_;
  }

  const Clock& clock_;
  State state_ = State::kClosed;
  uint32_t failures_ = 0;  // in a row
  int64_t wait_ms_ = 0;    // the last one; 0 if a request has succeeded since
  int64_t probe_at_ms_ = 0;
  uint64_t openings_ = 0;
};

}  // namespace kvtier
