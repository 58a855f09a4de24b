// SPDX-License-Identifier: Apache-2.0
// The latest trace events, as many as there is space for: a new one takes the place of the oldest.
//
// A reader takes a copy of the events that it needs at once or asks again by number: an event may
// be overwritten as soon as the next one is recorded.
#pragma once

#include <algorithm>
#include <cstdint>
#include <ranges>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "tiers/types/tracer.h"

namespace kvtier {

// Takes all of its memory when it is made, so that recording never allocates. Event loop only.
class TraceRing final : public Tracer {
 public:
  // REQUIRES: capacity > 0.
  explicit TraceRing(uint64_t capacity) : events_(capacity) { KVT_CHECK(capacity > 0); }

  // Times are from the monotonic clock itself: the daemon's coarse clock is too coarse.
  void Record(const TraceEvent& event) override {
    TraceEvent& slot = events_[end_++ % events_.size()];
    slot = event;
    if (slot.time_us == 0) slot.time_us = ClockUs();
  }
  [[nodiscard]] int64_t NowUs() const override { return ClockUs(); }

  // Events are numbered from 0 on; those from first() to end() are still there.
  [[nodiscard]] uint64_t first() const { return end_ > events_.size() ? end_ - events_.size() : 0; }
  [[nodiscard]] uint64_t end() const { return end_; }
  [[nodiscard]] uint64_t capacity() const { return events_.size(); }
  // REQUIRES: first() <= number < end().
  [[nodiscard]] const TraceEvent& operator[](uint64_t number) const {
    return events_[number % events_.size()];
  }
  // The first event recorded at `time_us` or later; end() if there is none. By bisection, since
  // events are recorded in the order of their times.
  [[nodiscard]] uint64_t FirstSince(int64_t time_us) const {
    const auto numbers = std::views::iota(first(), end_);
    return *std::ranges::partition_point(
        numbers, [&](uint64_t number) { return (*this)[number].time_us < time_us; });
  }

  [[nodiscard]] static int64_t ClockUs() { return MonotonicUs(); }

 private:
  std::vector<TraceEvent> events_;
  uint64_t end_ = 0;
};

}  // namespace kvtier
